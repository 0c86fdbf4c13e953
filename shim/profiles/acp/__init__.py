"""The Agent Client Protocol, version 1: what any agent says and is told that speaks it. Measured with gemini, opencode.

`link` knows who was asked what, `calls` puts a call into Claude's words, `stream` translates, `speech` is what the
agent is told.
"""

"""The Agent Client Protocol: what any agent says and is told that speaks it. Measured with gemini
and opencode.

`session` knows who was asked what, `calls` puts a call into Claude's words, `translator`
translates, `child_input` is what the agent is told, `versions` says what differs between version 1
and the draft of version 2, `upserts` keeps what version 2 says by its id. Files and terminals of
ours are not offered: each measured agent has its own, and asks before it uses them.
"""

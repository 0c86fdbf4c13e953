"""MCP servers that a frontend names: their files, and the way to those that live in its own
process.
"""

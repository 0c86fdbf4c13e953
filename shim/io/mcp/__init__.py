"""MCP servers of a frontend: their configuration files, and connections to servers in the
frontend's own process.
"""

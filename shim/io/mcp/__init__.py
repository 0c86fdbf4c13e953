"""MCP servers of a frontend: their configuration files, and the connection to servers in the
frontend's own process.
"""

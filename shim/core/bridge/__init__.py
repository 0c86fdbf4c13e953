"""The bridge without its I/O: the protocol between a session's host and the clients, and the state
of a background session.
"""

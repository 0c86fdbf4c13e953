"""The bridge without I/O: the protocol between a host and its clients, and the state of a
background session.
"""

"""Claude's interfaces: the command line, the stream-json lines, the control protocol and the
permissions.
"""

"""The pure core: no await, clock, file, environment or randomness. Bytes in, bytes and commands
out.
"""

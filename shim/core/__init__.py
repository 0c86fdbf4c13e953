"""The core of the shim, without side effects. It takes bytes, and returns bytes and commands. It
does not use await, the clock, files, the environment or random numbers.
"""

"""The pure core. It takes bytes, and returns bytes and commands. It does not use await, the clock,
files, the environment or random numbers.
"""

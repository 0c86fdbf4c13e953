"""Fuzzing: inputs, how they are changed, what they are run through, and the two fuzzers (`make
fuzz`).
"""

"""Fuzzing: inputs, edits of inputs, the targets that run them, and the two fuzzers (`make
fuzz`).
"""

"""The recording format without I/O: encode, parse, verify and redact records, and replay one side
of a recording.
"""

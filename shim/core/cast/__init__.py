"""The recording format, without I/O: encodes, parses, verifies and redacts records, and replays one
side of a recording.
"""

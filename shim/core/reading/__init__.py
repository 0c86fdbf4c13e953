"""Parses a child's bytes into objects and counts every repair. Encodes objects as JSON."""

# A longer line is dropped while it arrives. No vendor prints one on purpose, and 64 MB is three
# times the largest measured line (a base64 image inside a cumulative message).
MAX_LINE_BYTES = 64 * 1024 * 1024

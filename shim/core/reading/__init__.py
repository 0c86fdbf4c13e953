"""Parses a child's output into objects, and counts every repair. Encodes objects as JSON."""

# The maximum length of a line. A longer line is dropped while it arrives. No vendor prints such a
# line on purpose: 64 MB is three times the largest measured line (a base64 image inside a
# cumulative message).
MAX_LINE_BYTES = 64 * 1024 * 1024

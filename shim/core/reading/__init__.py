"""Parses a child's bytes into objects and counts every repair, and encodes objects as JSON."""

# A longer line is skipped while it streams by: no agent prints one on purpose, and 64 MB is
# three times the largest seen (a base64 image inside a cumulative message).
MAX_LINE_BYTES = 64 * 1024 * 1024

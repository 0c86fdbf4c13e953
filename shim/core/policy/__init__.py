"""Permission rules: what the real claude would decide about a tool call under the same flags and
settings.
"""

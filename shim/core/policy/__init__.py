"""Permissions: what the real claude would do with a call under the same flags and settings."""

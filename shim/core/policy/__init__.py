"""Permissions: what the real claude would decide about a call under the same flags and settings."""

"""Secrets: the table of what they look like, and what takes them out."""

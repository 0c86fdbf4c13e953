"""Secrets: the table of their patterns, and the code that removes them."""

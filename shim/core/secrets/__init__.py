"""Removes secrets: the table of secret patterns, and the code that applies it."""

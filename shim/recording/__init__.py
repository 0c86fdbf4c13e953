"""Runs written down as casts, found again and played again."""

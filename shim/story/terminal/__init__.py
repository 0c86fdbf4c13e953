"""Draws sessions for a person, on a terminal or as plain lines."""

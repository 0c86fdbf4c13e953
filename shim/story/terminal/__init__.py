"""Displays sessions on a terminal or as plain lines of text."""

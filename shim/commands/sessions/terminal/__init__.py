"""Attaches a terminal to a background session, to control or to watch it."""

"""Hooks: the frontend's callbacks, and the commands in Claude's settings files."""

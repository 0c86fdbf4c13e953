"""Hooks: the frontend's own callbacks, and the commands of Claude's settings files."""

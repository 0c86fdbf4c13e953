"""Compiles a profile's rules and tools to Python functions."""

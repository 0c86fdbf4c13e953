"""A profile's rules and tools, compiled to Python functions."""

"""Vendors described in TOML: the format, its check, and the engine that runs its rules."""

"""Vendors described in TOML: how a profile is loaded, checked, compiled and run."""

"""Validates the values of profiles and settings, and locates errors in their files."""

"""Implements `shim bridge`, and code that all commands for background sessions share."""

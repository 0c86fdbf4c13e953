"""Implements `shim install` and `shim uninstall`."""

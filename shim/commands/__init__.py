"""Implements the commands `claude`, `shim` and `yume-cli`."""

"""Implements shell completion for `shim` and for the drop-in `claude`."""

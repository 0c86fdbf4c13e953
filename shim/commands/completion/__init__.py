"""Shell completion of `shim` and of the drop-in `claude`."""

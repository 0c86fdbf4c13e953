"""The entry points of the drop-in `claude`."""

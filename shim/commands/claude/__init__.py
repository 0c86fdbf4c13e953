"""The doors of the drop-in `claude`."""

"""The commands `shim fleet …`."""

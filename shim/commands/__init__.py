"""The commands `claude`, `shim` and `yume-cli`."""

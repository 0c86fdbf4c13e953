"""What a person types: `claude`, `shim` and `yume-cli`."""

"""The host: one process for each background session."""

"""The host: one process a session."""

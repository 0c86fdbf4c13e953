"""The session host: one process for each background session."""

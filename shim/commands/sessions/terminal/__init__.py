"""A terminal that is attached to a background session, or watches it."""

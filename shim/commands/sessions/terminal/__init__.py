"""A background session in a terminal: attached to, or watched."""

"""How one vendor answers a message: a child for each message, one for all of them, or the next vendor of a list."""

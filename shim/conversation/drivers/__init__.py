"""How one vendor answers a message: a child for each message, or one child for all of them."""

"""A session that lives on its own, in a terminal: attached to, or watched."""

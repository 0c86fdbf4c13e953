"""Unix sockets: their folders, and connections of the same user."""

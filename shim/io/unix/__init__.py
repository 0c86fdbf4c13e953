"""Unix sockets: their folders, and connections of our own user."""

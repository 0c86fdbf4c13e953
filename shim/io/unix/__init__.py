"""Unix sockets: private socket folders, and connections from processes of the same user."""

"""The drop-in as a client of a session that lives on its own (topic "bridge")."""

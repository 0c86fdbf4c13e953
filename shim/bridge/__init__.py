"""Background sessions: their hosts, and the clients that attach to them (topic "bridge")."""

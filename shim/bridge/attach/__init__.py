"""Attaches a frontend to a background session (topic "bridge")."""

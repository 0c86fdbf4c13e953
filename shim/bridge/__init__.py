"""Sessions that outlive their frontend: hosts, and those who attach to them (topic "bridge")."""

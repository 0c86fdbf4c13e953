"""Child processes: found, probed, started, fed, read and ended."""

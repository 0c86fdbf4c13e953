"""Claude's interfaces: its command line, its lines, its control protocol and its permissions."""

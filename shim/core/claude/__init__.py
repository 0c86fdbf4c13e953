"""What Claude looks like: its command line, its lines, its control protocol and its permissions."""

"""Claude's command line: what it asks for, and how it is read."""

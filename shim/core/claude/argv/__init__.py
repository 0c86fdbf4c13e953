"""Claude's command line: its flags, its parser and its model names."""

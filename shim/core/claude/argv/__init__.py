"""Claude's command line: its flags, its parser and the names of models."""

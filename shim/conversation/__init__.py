"""Plans a conversation from its command line, and runs the message loop until the last result."""

"""Sessions for a person, in a terminal or as plain lines."""

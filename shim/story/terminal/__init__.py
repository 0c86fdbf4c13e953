"""A session drawn for a person, in a terminal or as plain lines."""

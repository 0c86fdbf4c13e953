"""A session as a person reads it, apart from what it is drawn on."""

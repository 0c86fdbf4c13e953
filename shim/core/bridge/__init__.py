"""The bridge, pure: what a host and its clients say to each other."""

"""From the file of a profile to its vendor: all that is needed before the child is started."""

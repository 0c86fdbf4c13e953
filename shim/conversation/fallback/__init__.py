"""Several vendors for one conversation: the next of a list is asked where one does not answer."""

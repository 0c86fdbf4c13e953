"""Several vendors for one conversation: if one vendor does not answer, the next one is asked."""

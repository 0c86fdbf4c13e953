"""Builds the adapter of a vendor from its profile, as far as the start of the child needs it."""

"""Builds a vendor's adapter from its profile. Only the parts that start the child are compiled."""

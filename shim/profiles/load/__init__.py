"""Builds a vendor's adapter from its profile. Only the parts that are needed to start the child are
compiled.
"""

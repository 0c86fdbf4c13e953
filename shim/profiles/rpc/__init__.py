"""Shared code for programs that exchange JSON requests and responses line by line: the child's
session, and the forms that the user fills in.
"""

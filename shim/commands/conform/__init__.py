"""Checks any claude-like command against Claude's contract, as a black box."""

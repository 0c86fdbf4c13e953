"""Checks any claude-compatible command against Claude's contract, as a black box."""

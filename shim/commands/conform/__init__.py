"""The contract as a black-box check of any claude-like command."""

"""Runs a conversation: plans it from an invocation, and then runs its loop until the last result."""

"""From an invocation to its last result: what is decided, then the loop that runs."""

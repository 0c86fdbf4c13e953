"""From a child's bytes to objects, with an account of every repair; and back to JSON."""

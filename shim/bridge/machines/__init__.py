"""Background sessions of other machines, over SSH."""

"""What is wrong with a profile, and where."""

"""Finds, probes, starts, feeds, reads and stops the vendors' child processes."""

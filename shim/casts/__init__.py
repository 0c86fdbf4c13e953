"""Recordings: how a run is written down, read, cleaned, proved whole, listed and searched."""

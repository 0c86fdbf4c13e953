"""Data that is stored between runs: settings, sessions, spilled texts and user profiles."""

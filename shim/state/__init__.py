"""Data that is stored between runs: settings, sessions, spilled texts, and the profiles of a user."""

"""Data that is kept between runs: settings, sessions, spilled texts, and the profiles of a user."""

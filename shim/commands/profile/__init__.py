"""Implements `shim vendor`, which drafts and checks a user's vendor profiles."""

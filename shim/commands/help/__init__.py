"""Formats help pages, and shows the topics of the manual."""

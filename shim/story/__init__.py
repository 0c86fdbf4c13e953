"""Presents sessions to people and tools: session steps and totals, terminal views, and exports."""

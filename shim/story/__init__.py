"""Sessions for people and tools: steps and totals, terminal views, exports."""

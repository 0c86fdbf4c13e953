"""Sessions for people and tools: steps and sums, terminal views, exports."""

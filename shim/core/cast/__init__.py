"""Casts, the recording format: records, their checks, and one side of a recording played again. Pure."""

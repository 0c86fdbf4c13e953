"""Exports a recording as an HTML page, Markdown, Claude's events, ATIF, or OpenTelemetry spans."""

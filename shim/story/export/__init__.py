"""Exports of a recording: an HTML page, Markdown, Claude's events, ATIF, OpenTelemetry spans."""

"""Exports of a recording: a page, Markdown, Claude's events, ATIF, OpenTelemetry spans."""

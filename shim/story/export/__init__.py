"""A recording for somebody who was not there: as a page, Markdown, events, ATIF or OpenTelemetry's spans."""

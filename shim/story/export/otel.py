"""Implements `shim export --to otel`, which writes OpenTelemetry GenAI spans as OTLP JSON, in one
ExportTraceServiceRequest.

Each span is written as soon as it is complete. OTLP JSON represents 64-bit integers as strings, and
ids as hexadecimal strings.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim import __version__
from shim.core.reading.json_text import dump_json
from shim.story.export.spans import (
    SCHEMA_URL,
    SCOPE_NAME,
    AttributeValue,
    OtelSpan,
    OtelSpanBuilder,
)

STATUS_ERROR = 2  # the OTLP status code for errors

WriteFunction = Callable[[bytes], None]


def write_recording_export(
    path: str, write: WriteFunction, *, redact: bool, content: bool = False
) -> None:
    """Write the spans of the recording at `path`. Raise RecordingError if the file is not a
    recording.
    """
    spans = OtelSpanBuilder(path, redact=redact, content=content)
    head = {"attributes": _encode_attributes(spans.resource)}
    scope = {"name": SCOPE_NAME, "version": __version__}
    write(
        b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":['
        % (dump_json(head), dump_json(scope))
    )
    comma = b""
    for span in spans:
        write(comma + dump_json(_encode_span(span)))
        comma = b","
    write(
        b'],"schemaUrl":%b}],"schemaUrl":%b}]}\n' % (dump_json(SCHEMA_URL), dump_json(SCHEMA_URL))
    )


def _encode_span(span: OtelSpan) -> dict[str, Any]:
    """Encode a span as OTLP JSON."""
    encoded: dict[str, Any] = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
    if span.parent_id:
        encoded["parentSpanId"] = span.parent_id.hex()
    encoded |= {
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _encode_attributes(span.attributes),
    }
    if span.events:
        encoded["events"] = [
            {
                "timeUnixNano": str(time_ns),
                "name": name,
                "attributes": _encode_attributes(attributes),
            }
            for time_ns, name, attributes in span.events
        ]
    if span.dropped_events:
        encoded["droppedEventsCount"] = span.dropped_events
    if span.is_failed:
        encoded["status"] = {"code": STATUS_ERROR}
    return encoded


def _encode_attributes(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _encode_value(value)} for name, value in attributes.items()]


def _encode_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_encode_value(item) for item in value]}}
    return {"stringValue": value}

"""`shim export --to otel`: OpenTelemetry GenAI spans as OTLP JSON, one ExportTraceServiceRequest.

Spans are written as they are read. Integers of 64 bits are strings, ids are hexadecimal: OTLP's own
mapping to JSON.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim import __version__
from shim.core.reading.json_text import dump_json
from shim.story.export.spans import SCHEMA, SCOPE, OtelSpan, Spans, Value

STATUS_ERROR = 2  # status code

WriteFunction = Callable[[bytes], None]


def export(path: str, write: WriteFunction, *, redact: bool, content: bool = False) -> None:
    """Write the spans of the cast at `path`. CastError if it is no cast."""
    spans = Spans(path, redact=redact, content=content)
    head = {"attributes": _encode_attributes(spans.resource)}
    scope = {"name": SCOPE, "version": __version__}
    write(
        b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":['
        % (dump_json(head), dump_json(scope))
    )
    comma = b""
    for span in spans:
        write(comma + dump_json(_encode_span(span)))
        comma = b","
    write(b'],"schemaUrl":%b}],"schemaUrl":%b}]}\n' % (dump_json(SCHEMA), dump_json(SCHEMA)))


def _encode_span(span: OtelSpan) -> dict[str, Any]:
    """A span as OTLP JSON has it."""
    written: dict[str, Any] = {"traceId": span.trace.hex(), "spanId": span.identity.hex()}
    if span.parent:
        written["parentSpanId"] = span.parent.hex()
    written |= {
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.begin),
        "endTimeUnixNano": str(span.end),
        "attributes": _encode_attributes(span.attributes),
    }
    if span.events:
        written["events"] = [
            {"timeUnixNano": str(at), "name": name, "attributes": _encode_attributes(facts)}
            for at, name, facts in span.events
        ]
    if span.dropped:
        written["droppedEventsCount"] = span.dropped
    if span.failed:
        written["status"] = {"code": STATUS_ERROR}
    return written


def _encode_attributes(facts: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _encode_value(value)} for name, value in facts.items()]


def _encode_value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_encode_value(each) for each in value]}}
    return {"stringValue": value}

"""Sends a recording's spans to an OTLP collector. Uses OpenTelemetry's SDK and exporter, which the
extra `otel` installs.
"""

from urllib.parse import urlsplit, urlunsplit

from shim import __version__
from shim.core.errors import FrontendError, SystemResourceError
from shim.core.reading.values import escape_control_chars
from shim.story.export.spans import KIND_CLIENT, SCHEMA_URL, SCOPE_NAME, OtelSpan, OtelSpanBuilder

MAX_BATCH_SPANS = 512  # spans per request; the default of OpenTelemetry's SDK
REQUEST_TIMEOUT_S = 10  # for a request with its retries; the exporter's default
TRACES_PATH = "/v1/traces"


def send_recording_spans(path: str, endpoint: str, *, redact: bool, content: bool = False) -> int:
    """Send the spans of the recording at `path` to `endpoint`, an http or https URL. Return the
    number of spans.

    If the URL has no path, the standard path is added, as for the variable
    OTEL_EXPORTER_OTLP_ENDPOINT. Raise FrontendError if the URL is invalid or the extra is not
    installed. Raise SystemResourceError if the collector does not accept the spans.
    """
    url = _resolve_url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
    except ImportError:
        from shim.process.installation import build_install_hint

        raise FrontendError(
            "sending spans requires the OpenTelemetry SDK, which is not installed",
            hint=f"{build_install_hint('otel')}, or export to a file (-o FILE)",
        ) from None
    spans = OtelSpanBuilder(path, redact=redact, content=content)
    resource = Resource(dict(spans.resource), SCHEMA_URL)
    scope = InstrumentationScope(SCOPE_NAME, __version__, SCHEMA_URL)

    def build_context(span: OtelSpan, span_id: bytes) -> SpanContext:
        ids = int.from_bytes(span.trace_id), int.from_bytes(span_id)
        return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def build_span(span: OtelSpan) -> ReadableSpan:
        if span.kind == KIND_CLIENT:
            kind = SpanKind.CLIENT
        else:
            kind = SpanKind.INTERNAL
        return ReadableSpan(
            span.name,
            build_context(span, span.span_id),
            build_context(span, span.parent_id) if span.parent_id else None,
            resource,
            dict(span.attributes),
            [Event(name, dict(attributes), time_ns) for time_ns, name, attributes in span.events],
            kind=kind,
            status=Status(StatusCode.STATUS_ERROR) if span.is_failed else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    exporter = OTLPSpanExporter(endpoint=url, timeout=REQUEST_TIMEOUT_S)
    batch = list[ReadableSpan]()
    sent_count = 0

    def send_batch() -> None:
        nonlocal sent_count
        if batch and exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise SystemResourceError(
                f"the collector at {urlsplit(url).hostname} rejected the spans "
                f"({sent_count} were sent before)",
                hint="check that the collector is running and accepts OTLP over HTTP at this address",
            )
        sent_count += len(batch)
        batch.clear()

    try:
        for span in spans:
            batch.append(build_span(span))
            if len(batch) == MAX_BATCH_SPANS:
                send_batch()
        send_batch()
    finally:
        exporter.shutdown()
    return sent_count


def _resolve_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FrontendError(
            f"{escape_control_chars(endpoint)!r} is not an http or https URL",
            hint="--endpoint http://localhost:4318",
        )
    if parts.path in ("", "/"):
        return urlunsplit(parts._replace(path=TRACES_PATH))
    return endpoint

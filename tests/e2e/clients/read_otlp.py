"""Parses OTLP with OpenTelemetry's own protobuf classes: JSON or protobuf on stdin, one JSON object
on stdout.

Only ids are converted before: they are base64 in protobuf's JSON mapping and hexadecimal in OTLP.
"""

import base64
import json
import sys

from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def with_base64(value):
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS else with_base64(item)
            for key, item in value.items()
        }
    return [with_base64(item) for item in value] if isinstance(value, list) else value


stdin_bytes = sys.stdin.buffer.read()
if sys.argv[1] == "json":
    request = ParseDict(with_base64(json.loads(stdin_bytes)), ExportTraceServiceRequest())
else:
    request = ExportTraceServiceRequest.FromString(stdin_bytes)
sys.stdout.write(json.dumps(MessageToDict(request)))

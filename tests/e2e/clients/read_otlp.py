"""OTLP as OpenTelemetry's own protobuf classes read it: JSON or protobuf on stdin, one JSON object
on stdout.

Protobuf's mapping to JSON has bytes in base64, and OTLP's has ids in hexadecimal: that is all that
is changed before.
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

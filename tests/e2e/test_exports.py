"""Exports, read by the owners of their formats: Harbor's validator, OpenTelemetry's protobuf and
SDK.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from programs import install_harbor, install_python_package

TESTS = Path(__file__).resolve().parent.parent
CLIENTS = Path(__file__).with_name("clients")
SECONDS = 120.0  # for one program over some hundred files

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a recording of every fixture, by the fixture's name."""
    sys.path.append(str(TESTS / "support"))  # after the e2e modules
    from cast_builder import build_case_recording
    from fixture_cases import list_fixture_cases

    folder = tmp_path_factory.mktemp("casts")
    paths = {}
    for case in list_fixture_cases():
        paths[case.name] = folder / f"{case.name.replace('/', '-')}.cast"
        paths[case.name].write_bytes(build_case_recording(case))
    return paths


def run(script: str, *args: str, path: str, stdin: bytes = b"") -> Any:
    """Return the JSON output of a client."""
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-P", str(CLIENTS / script), *args]
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=SECONDS, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def export_recording(export: Any, cast: Path, **options: Any) -> bytes:
    chunks: list[bytes] = []
    export(str(cast), chunks.append, redact=False, **options)
    return b"".join(chunks)


def test_harbor_validator_accepts_a_trajectory_of_every_fixture(
    casts: dict[str, Path], tmp_path: Path
) -> None:
    from shim.story.export.atif import write_recording_export

    files = []
    for name, cast in casts.items():
        file = tmp_path / f"{name.replace('/', '-')}.json"
        file.write_bytes(export_recording(write_recording_export, cast))
        files.append(str(file))
    assert len(files) > 250
    assert run("validate_atif.py", *files, path=install_harbor()) == {}


def test_harbor_validator_rejects_an_invalid_trajectory(tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(
        '{"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": []}'
    )
    assert list(run("validate_atif.py", str(file), path=install_harbor())) == [str(file)]


@pytest.mark.parametrize("content", [False, True])
def test_opentelemetry_protobuf_parses_the_spans(casts: dict[str, Path], content: bool) -> None:
    from shim.story.export.otel import write_recording_export

    for name in (
        "claude/2.1.327-tool-agent",
        "pi/1.5.2-bash",
        "cursor/handmade-err-auth",
        "cake/2026-07-parallel",
    ):
        otlp_json = export_recording(write_recording_export, casts[name], content=content)
        read = run(
            "read_otlp.py", "json", path=str(install_python_package("otlp")), stdin=otlp_json
        )
        assert spans_of(read) and len(spans_of(read)) == len(spans_of(json.loads(otlp_json)))


def spans_of(document: Any) -> list[Any]:
    return [
        span
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


class Collector(BaseHTTPRequestHandler):
    """Accepts OTLP over HTTP, or refuses it."""

    taken: list[tuple[str, str, bytes]]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=[200])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    handler = type("Handler", (Collector,), {"taken": [], "status": request.param})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.taken  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


SEND = """
import json, sys
from shim.core.errors import ShimError
from shim.story.export.otel_send import send_recording_spans
try:
    print(json.dumps(send_recording_spans(sys.argv[1], sys.argv[2], redact=False, content=True)))
except ShimError as error:
    print(json.dumps({"error": str(error), "hint": error.hint}))
"""


def send_recording(cast: Path, url: str) -> Any:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OTEL_")
    }
    environment |= {"PYTHONPATH": str(install_python_package("otlp")), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-P", "-c", SEND, str(cast), url]
    done = subprocess.run(
        command, capture_output=True, timeout=SECONDS, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_sdk_sends_the_same_spans_as_the_exported_file(
    casts: dict[str, Path], collector: tuple[str, list[tuple[str, str, bytes]]]
) -> None:
    from shim.story.export.otel import write_recording_export

    url, requests = collector
    for name in ("claude/2.1.327-tool-agent", "pi/1.5.2-bash"):
        requests.clear()
        in_file = run(
            "read_otlp.py",
            "json",
            path=str(install_python_package("otlp")),
            stdin=export_recording(write_recording_export, casts[name], content=True),
        )
        assert send_recording(casts[name], url) == len(spans_of(in_file))
        ((path, kind, body),) = requests
        assert (path, kind) == ("/v1/traces", "application/x-protobuf")
        received = run(
            "read_otlp.py", "protobuf", path=str(install_python_package("otlp")), stdin=body
        )
        assert [comparable(span) for span in spans_of(received)] == [
            comparable(span) for span in spans_of(in_file)
        ]
        assert received["resourceSpans"][0]["resource"] == in_file["resourceSpans"][0]["resource"]


def comparable(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span without what the SDK adds: flags and an empty status."""
    fields = {name: value for name, value in span.items() if name != "flags" and value != {}}
    return fields | {"attributes": sorted(span["attributes"], key=lambda each: str(each["key"]))}


@pytest.mark.parametrize("collector", [400], indirect=True)
def test_collector_rejection_is_reported_as_an_error(
    casts: dict[str, Path], collector: tuple[str, list[tuple[str, str, bytes]]]
) -> None:
    result = send_recording(casts["pi/1.5.2-bash"], collector[0])
    assert "rejected the spans" in result["error"] and result["hint"]

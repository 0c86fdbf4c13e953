"""Sessions of real vendors, started, answered and controlled over HTTP as a script does it. A
scripted model answers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from frontend import DropInFrontend
from gateway_harness import Answered, StreamedEvent, ask_at, stream_at
from model_scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from sandbox import TURN_SECONDS, wait_until
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

from shim.bridge.gateway.tokens import GatewayTokenFile

pytestmark = pytest.mark.e2e

TESTED_VENDORS = [
    QWEN,
    *(
        pytest.param(each, marks=pytest.mark.full)
        for each in (PI, CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF)
    ),
]


class GatewayScript:
    """A script that uses `shim bridge serve`."""

    def __init__(self, frontend: DropInFrontend, port: int) -> None:
        self._port = port
        self._token = GatewayTokenFile(frontend.environment).load_tokens().drive

    def ask(self, method: str, path: str, **body: object) -> Answered:
        """Send a request."""
        headers = {"Authorization": f"Bearer {self._token}"}
        return ask_at(self._port, method, path, body if method == "POST" else None, headers)

    def until(self, path: str, kind: str, after: str = "", **keys: object) -> list[StreamedEvent]:
        """Return the events of a stream up to one of a kind with these values."""
        events = []
        with stream_at(self._port, path, self._token, after, TURN_SECONDS) as stream:
            for event in stream:
                events.append(event)
                if event.kind == kind and keys.items() <= event.json.items():
                    return events
        raise AssertionError([event.kind for event in events])


@pytest.fixture
def script(frontend: DropInFrontend) -> Iterator[GatewayScript]:
    command = [sys.executable, "-I", "-m", "shim", "bridge", "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        command,
        cwd=frontend.folder,
        env=frontend.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            yield GatewayScript(frontend, int(address.rstrip("/").rpartition(":")[2]))
        finally:
            process.terminate()
            process.wait(TURN_SECONDS)
            subprocess.run(
                [str(frontend.claude), "daemon", "stop", "--any"], env=frontend.environment, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=TURN_SECONDS,
            )  # fmt: skip
    assert frontend.list_remaining_processes() == {}


@pytest.mark.parametrize("vendor", TESTED_VENDORS, ids=str, indirect=True)
def test_session_is_started_answered_and_stopped_over_http(
    script: GatewayScript, frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer
) -> None:
    flags = dict(zip(frontend.extra_args[::2], frontend.extra_args[1::2], strict=False))
    spec = {"vendor": vendor.name, "cwd": str(frontend.folder), "prompt": "[[shell]] touch made"}
    chosen = {"model": flags["--model"]} if "--model" in flags else {}
    response = script.ask("POST", "/sessions", **spec, **chosen)
    assert response.status == 201, response
    path = f"/sessions/{response.json['id']}"
    prompt = script.until(f"{path}/steps", "question")[-1].json
    assert (
        prompt["tool"] == "Bash"
        and "touch made" in prompt["main"]
        and not (frontend.folder / "made").exists()
    )
    assert (
        script.ask("POST", f"{path}/answers", question=prompt["question"], behavior="allow").status
        == 200
    )
    events = script.until(f"{path}/steps", "totals", turns=1)
    steps = list(
        {event.json["number"]: event.json for event in events if event.kind == "step"}.values()
    )
    assert [step["outcome"] for step in steps if step["kind"] == "call"][-1] == "ok"
    assert (
        REPLY_AFTER_TOOL in str([step.get("trees") for step in steps])
        and (frontend.folder / "made").exists()
    )
    late = script.ask("POST", f"{path}/answers", question=prompt["question"], behavior="deny")
    assert (late.status, late.json["how"]) == (409, "allow")

    last = [event.id for event in events if event.id][-1]
    assert script.ask("POST", f"{path}/messages", text="[[text]]").status == 200
    events = script.until(f"{path}/steps", "totals", last, turns=2)
    assert REPLY.partition("\n")[0] in str(
        [event.json.get("trees") for event in events if event.kind == "step"]
    )
    assert script.ask("POST", f"{path}/stop").status == 200
    wait_until(lambda: not script.ask("GET", path).json["alive"], TURN_SECONDS)
    ended = script.until(f"{path}/events", "bye")
    assert sum(b'"type":"result"' in event.data for event in ended if event.kind == "line") == 2

"""Sessions of real vendors, begun, answered and driven over HTTP as a script does it. A scripted
model answers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from frontend import DropInFrontend
from place import TURN_SECONDS, wait_until
from scripts import REPLY, REPLY_AFTER_TOOL, ScriptedServer
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor
from web import Answered, StreamedEvent, ask_at, stream_at

from shim.bridge.gateway.tokens import TokenFile

pytestmark = pytest.mark.e2e

TRIED = [
    QWEN,
    *(
        pytest.param(each, marks=pytest.mark.full)
        for each in (PI, CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF)
    ),
]


class GatewayScript:
    """A script before `shim bridge serve`."""

    def __init__(self, frontend: DropInFrontend, port: int) -> None:
        self._port = port
        self._token = TokenFile(frontend.environment).load_tokens().drive

    def ask(self, method: str, path: str, **body: object) -> Answered:
        """A request."""
        headers = {"Authorization": f"Bearer {self._token}"}
        return ask_at(self._port, method, path, body if method == "POST" else None, headers)

    def until(self, path: str, kind: str, after: str = "", **keys: object) -> list[StreamedEvent]:
        """The events of a stream up to one of a kind with these values."""
        found = []
        with stream_at(self._port, path, self._token, after, TURN_SECONDS) as stream:
            for one in stream:
                found.append(one)
                if one.kind == kind and keys.items() <= one.json.items():
                    return found
        raise AssertionError([one.kind for one in found])


@pytest.fixture
def script(frontend: DropInFrontend) -> Iterator[GatewayScript]:
    words = [sys.executable, "-I", "-m", "shim", "bridge", "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        words,
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


@pytest.mark.parametrize("vendor", TRIED, ids=str, indirect=True)
def test_a_real_session_is_begun_answered_and_driven_over_http(
    script: GatewayScript, frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer
) -> None:
    flags = dict(zip(frontend.extra_args[::2], frontend.extra_args[1::2], strict=False))
    wanted = {"vendor": vendor.name, "cwd": str(frontend.folder), "prompt": "[[shell]] touch made"}
    chosen = {"model": flags["--model"]} if "--model" in flags else {}
    begun = script.ask("POST", "/sessions", **wanted, **chosen)
    assert begun.status == 201, begun
    path = f"/sessions/{begun.json['id']}"
    asked = script.until(f"{path}/steps", "question")[-1].json
    assert (
        asked["tool"] == "Bash"
        and "touch made" in asked["main"]
        and not (frontend.folder / "made").exists()
    )
    assert (
        script.ask("POST", f"{path}/answers", question=asked["question"], behavior="allow").status
        == 200
    )
    told = script.until(f"{path}/steps", "totals", turns=1)
    steps = list({one.json["number"]: one.json for one in told if one.kind == "step"}.values())
    assert [step["outcome"] for step in steps if step["kind"] == "call"][-1] == "ok"
    assert (
        REPLY_AFTER_TOOL in str([step.get("trees") for step in steps])
        and (frontend.folder / "made").exists()
    )
    late = script.ask("POST", f"{path}/answers", question=asked["question"], behavior="deny")
    assert (late.status, late.json["how"]) == (409, "allow")

    last = [one.id for one in told if one.id][-1]
    assert script.ask("POST", f"{path}/messages", text="[[text]]").status == 200
    told = script.until(f"{path}/steps", "totals", last, turns=2)
    assert REPLY.partition("\n")[0] in str(
        [one.json.get("trees") for one in told if one.kind == "step"]
    )
    assert script.ask("POST", f"{path}/stop").status == 200
    wait_until(lambda: not script.ask("GET", path).json["alive"], TURN_SECONDS)
    ended = script.until(f"{path}/events", "bye")
    assert sum(b'"type":"result"' in one.data for one in ended if one.kind == "line") == 2

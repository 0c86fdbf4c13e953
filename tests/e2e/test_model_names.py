"""Claude's model names, which every frontend passes, and the real vendors: no vendor receives one.

The test checks the model that the vendor requested from its service, and the model in `init`.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clis import BARE, Cli
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from model_server import MODEL, SECOND_MODEL
from sandbox import TURN_SECONDS, Line, LineProcess, Sandbox
from vendor_setups import CODEX, COPILOT, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

FLAGS = ("--output-format", "stream-json", "--verbose")
UNKNOWN_MODEL_RESULT = {
    "subtype": "success",
    "is_error": True,
    "num_turns": 1,
    "api_error_status": 404,
    "api_error_type": "not_found_error",
    "stop_reason": "stop_sequence",
    "terminal_reason": "api_error",
    "modelUsage": {},
}
NAMES = ("sonnet", "opus[1m]", "claude-sonnet-4-5-20250929", "opusplan", "default")
# Every name with pi, for which one is another provider's; one name with each of the others.
CELLS: list[Any] = [
    *(
        pytest.param(PI, name, id=f"pi-{name}", marks=() if name == "sonnet" else pytest.mark.full)
        for name in NAMES
    ),
    pytest.param(QWEN, "sonnet", id="qwen"),
    *(
        pytest.param(vendor, "sonnet", id=vendor.name, marks=pytest.mark.full)
        for vendor in (OPENCODE, CODEX, GEMINI, COPILOT)
    ),
]


@pytest.fixture
def plain(frontend: DropInFrontend) -> DropInFrontend:
    """Return the drop-in without the flags for the tests' model. The vendor uses its own
    default.
    """
    return replace(frontend, extra_args=())


def map_model_name(frontend: DropInFrontend, vendor: Vendor) -> None:
    file = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    old = file.read_text() if file.exists() else ""
    file.write_text(f'[models]\nhaiku = "not-this"\n{old}\n[vendors.{vendor.name}.models]\n'
                    f'haiku = "{vendor.second_model}"\n')  # fmt: skip


@pytest.mark.parametrize(("vendor", "name"), CELLS, indirect=["vendor"])
def test_claude_model_name_leaves_the_vendor_default_model(
    plain: DropInFrontend, model: ScriptedServer, vendor: Vendor, name: str
) -> None:
    run = plain.run_prompt("[[text]] hi", "--model", name)
    assert run.exit == 0 and not run.result["is_error"], run.result
    assert model.requests
    assert all(name.partition("[")[0] not in request.model for request in model.requests)
    assert run.init["shim"]["model_asked"] == name
    assert run.init["model"] != name


@pytest.mark.parametrize("cli", [BARE, Cli(QWEN)], ids=str)
def test_unknown_model_fails_as_with_the_real_claude(sandbox: Sandbox, cli: Cli) -> None:
    argv = [str(sandbox.claude), "-p", "[[error]] 404", "--model", "claude-nonexistent", *FLAGS]
    process = LineProcess(argv, sandbox.folder, sandbox.environment)
    sandbox.started.append(process)
    process.close_stdin()
    assert process.read_to_end() == 1
    init, assistant, result = process.lines[:3]  # the drop-in's terminator line follows
    start = "There's an issue with the selected model (claude-nonexistent). "
    assert init["model"] == "claude-nonexistent"
    assert assistant["error"] == "model_not_found"
    assert assistant["message"]["content"][0]["text"] == result["result"]
    assert result["result"].startswith(start)
    assert {name: result[name] for name in UNKNOWN_MODEL_RESULT} == UNKNOWN_MODEL_RESULT


@pytest.mark.parametrize(
    "vendor", [PI, pytest.param(OPENCODE, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_mapped_model_name_is_passed_to_the_vendor(
    plain: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    map_model_name(plain, vendor)
    run = plain.run_prompt("[[text]] hi", "--model", "claude-haiku-4-5")
    assert run.exit == 0 and not run.result["is_error"], run.result
    assert {request.model for request in model.requests if request.script == "text"} == {
        SECOND_MODEL
    }
    assert (run.init["model"], run.init["shim"]["model_asked"]) == (
        vendor.second_model,
        "claude-haiku-4-5",
    )


class StreamConversation:
    """A frontend in a conversation with the drop-in."""

    def __init__(self, frontend: DropInFrontend, *flags: str) -> None:
        argv = [
            str(frontend.claude),
            "-p",
            "--verbose",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            *flags,
        ]
        self._process = LineProcess(argv, frontend.folder, frontend.environment)
        frontend.started.append(self._process)

    def order(self, **request: Any) -> Line:
        """Send a control request. Return the body of the response."""
        self._process.send({"type": "control_request", "request_id": "order", "request": request})
        answer = self._process.read_until(lambda line: line["type"] == "control_response")[
            "response"
        ]
        assert answer["subtype"] == "success", answer
        return dict(answer.get("response") or {})

    def say(self, text: str) -> Line:
        """Send a message. Return the init line of its turn."""
        self._process.send({"type": "user", "message": {"role": "user", "content": text}})
        assert not self._process.read_until(lambda line: line["type"] == "result")["is_error"]
        return [line for line in self._process.lines if line.get("subtype") == "init"][-1]


@pytest.mark.parametrize(
    "vendor", [QWEN, pytest.param(PI, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_set_model_applies_from_the_next_message(
    plain: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    """A vendor with a persistent child and one with a child per message: the same names reach the
    same models.
    """
    map_model_name(plain, vendor)
    conversation = StreamConversation(plain)
    models = conversation.order(subtype="initialize")["models"]
    assert [entry["value"] for entry in models] == ["default", "haiku"]
    conversation.say("[[text]] hi")
    for name, vendor_model in (
        ("sonnet", None),
        ("haiku", vendor.second_model),
        ("opus", None),
        ("default", None),
    ):
        answer = conversation.order(subtype="set_model", model=name)["model"]
        init = conversation.say("[[text]] and again")
        assert model.list_requests("text")[-1].model == (
            MODEL if vendor_model is None else SECOND_MODEL
        ), name
        assert init["shim"]["model_asked"] == name
        assert init["model"] == answer == (vendor_model or MODEL), name


@pytest.mark.parametrize(
    "vendor", [pytest.param(PI, marks=pytest.mark.full), OPENCODE], ids=str, indirect=True
)
def test_models_listed_by_the_vendor_can_be_selected(
    plain: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    """`shim doctor` asks the vendor's program for the list, as `shim install` does."""
    doctor = [sys.executable, "-m", "shim", "doctor", vendor.name, "--wait", f"{TURN_SECONDS:g}"]
    subprocess.run(doctor, env=dict(plain.environment), cwd=plain.folder, stdin=subprocess.DEVNULL,
                   capture_output=True, timeout=3 * TURN_SECONDS, check=False)  # fmt: skip
    conversation = StreamConversation(plain)
    names = [entry["value"] for entry in conversation.order(subtype="initialize")["models"]]
    assert names[0] == "default" and {f"mock/{MODEL}", vendor.second_model} <= set(names)
    assert (
        names[1:]
        == [entry["value"] for entry in conversation.order(subtype="list_models")["models"]][1:]
    )
    conversation.order(subtype="set_model", model=vendor.second_model)
    assert conversation.say("[[text]] hi")["model"] == vendor.second_model
    assert model.list_requests("text")[-1].model == SECOND_MODEL

"""An editor that drives the adapter for claude with the Agent Client Protocol: JSON-RPC, one object
per line.

CLAUDE_CODE_EXECUTABLE selects the claude that the adapter starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import find_node, find_pinned_version, install_npm_package
from sandbox import TURN_SECONDS, Line, LineProcess, Sandbox

PROTOCOL = 1


@dataclass
class Prompt:
    """What an editor received during one prompt."""

    updates: list[Line] = field(default_factory=list)
    permission_requests: list[Line] = field(default_factory=list)  # the permission requests
    stop_reason: str | None = None
    error: Line | None = None

    def list_updates(self, kind: str) -> list[Line]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def text(self) -> str:
        return "".join(
            update["content"]["text"] for update in self.list_updates("agent_message_chunk")
        )

    @property
    def thought(self) -> str:
        return "".join(
            update["content"]["text"] for update in self.list_updates("agent_thought_chunk")
        )

    @property
    def calls(self) -> dict[str, Line]:
        """Every tool call by its id, with all its updates."""
        calls: dict[str, Line] = {}
        for update in self.updates:
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                calls.setdefault(update["toolCallId"], {}).update(update)
        return calls


class Editor(LineProcess):
    """A running adapter, used by the editor that started it."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(argv, folder, environment)
        self.session = ""
        self.opened: Line = {}  # the adapter's response when the session was opened
        self.outlives_stdin = False
        self._number = 0

    def open_session(
        self,
        *,
        resume: str = "",
        forms: bool = False,
        auto: bool = False,
        servers: Sequence[Line] = (),
    ) -> Line:
        """Initialize the adapter and open a session in the working directory. Return the adapter's
        own description.

        `resume` is the id of a session to continue. With `forms`, the editor can show a form for
        questions. The newest adapter starts in the mode auto if the model supports it; without
        `auto` the mode is changed to the default one. `servers` are the MCP servers of the session.
        """
        capabilities: Line = {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
        }
        capabilities |= {"elicitation": {"form": {}}} if forms else {}
        agent_info = self.call_method(
            "initialize", protocolVersion=PROTOCOL, clientCapabilities=capabilities
        )
        session_params: Line = {"cwd": str(self.folder), "mcpServers": list(servers)}
        if resume:
            self.opened = self.call_method("session/resume", sessionId=resume, **session_params)
        else:
            self.opened = self.call_method("session/new", **session_params)
        self.session = resume or self.opened["sessionId"]
        mode = (self.opened.get("modes") or {}).get("currentModeId")
        if mode == "auto" and not auto:
            self.call_method("session/set_mode", sessionId=self.session, modeId="default")
        return agent_info

    def call_method(self, method: str, **parameters: Any) -> Line:
        """Send a request to the adapter, and return its response."""
        number = self.send_request(method, **parameters)
        answer = self.read_until(lambda line: line.get("id") == number and "method" not in line)
        assert "error" not in answer, self.describe_failure(f"refused {method}: {answer['error']}")
        result: Line = answer["result"]
        return result

    def send_request(self, method: str, **parameters: Any) -> int:
        """Send a request to the adapter. Return the number of its response."""
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": parameters})
        return self._number

    def start_prompt(self, text: str, image: str | None = None) -> int:
        """Send a prompt. An image is a PNG in base64."""
        blocks: list[Line] = [{"type": "text", "text": text}]
        blocks += [{"type": "image", "mimeType": "image/png", "data": image}] if image else []
        return self.send_request("session/prompt", sessionId=self.session, prompt=blocks)

    def run_prompt(self, text: str, choice: str = "") -> Prompt:
        """Run a prompt to its end. Each permission request gets the first option of the selected
        kind.
        """
        return self.read_prompt(self.start_prompt(text), len(self.lines), choice)

    def read_prompt(self, number: int, start_index: int, choice: str = "") -> Prompt:
        """Read the prompt with this number, from a line to its response."""
        prompt = Prompt()
        while True:
            line = self.read_until(lambda line: "id" in line)
            if line.get("method") == "session/request_permission":
                prompt.permission_requests.append(line["params"])
                self.choose_option(line, choice)
            elif line["id"] == number:
                break
        prompt.updates = [
            line["params"]["update"]
            for line in self.lines[start_index:]
            if line.get("method") == "session/update"
        ]
        prompt.error = line.get("error")
        prompt.stop_reason = (line.get("result") or {}).get("stopReason")
        return prompt

    def await_request(self, method: str) -> Line:
        """Return the next request of the adapter with this method."""
        return self.read_until(lambda line: line.get("method") == method and "id" in line)

    def choose_option(self, question: Line, choice: str) -> None:
        """Answer a permission request with its first option of a kind."""
        options = question["params"]["options"]
        chosen = next(option["optionId"] for option in options if option["kind"] == choice)
        outcome = {"outcome": "selected", "optionId": chosen}
        self.send_response(question, {"outcome": outcome})

    def send_response(self, question: Line, result: Line) -> None:
        self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    def cancel_prompt(self) -> None:
        self.send(
            {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": self.session}}
        )

    def await_update(self, kind: str) -> Line:
        """Return the next update of a kind."""
        line = self.read_until(lambda line: read_update_kind(line) == kind)
        update: Line = line["params"]["update"]
        return update

    def shut_down(self) -> None:
        """Close the editor: close the adapter's stdin, and signal an adapter that keeps running."""
        self.close_stdin()
        if self.outlives_stdin:
            self.terminate()
        self.read_to_end(TURN_SECONDS)


def read_update_kind(line: Line) -> str | None:
    return (
        line["params"]["update"]["sessionUpdate"]
        if line.get("method") == "session/update"
        else None
    )


@dataclass(frozen=True)
class AcpClient:
    """One version of the adapter on one version of Node."""

    package: str
    major: int
    outlives_stdin: bool = False  # it keeps running after the end of its stdin
    denial_fails: bool = False  # a rejected command ends the prompt

    def __str__(self) -> str:
        return f"acp-{find_pinned_version(self.package)}-node{self.major}"

    def connect(self, sandbox: Sandbox) -> Editor:
        """Start the adapter without sending anything."""
        script = (
            install_npm_package(self.package) / "node_modules" / self.package / "dist" / "index.js"
        )
        environment = {**sandbox.environment, "CLAUDE_CODE_EXECUTABLE": str(sandbox.claude)}
        editor = Editor([str(find_node(self.major)), str(script)], sandbox.folder, environment)
        editor.outlives_stdin = self.outlives_stdin
        sandbox.started.append(editor)
        return editor


ACPS = (
    AcpClient("acp-before", 20, outlives_stdin=True, denial_fails=True),
    AcpClient("acp-oldest", 20),
    AcpClient("acp-newest", 24),
)

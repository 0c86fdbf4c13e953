"""The Claude Agent SDKs, each in its own process that a test drives (`clients/` has the programs)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from programs import (
    PYTHON_PINS,
    find_node,
    find_pinned_version,
    install_npm_package,
    install_python_package,
)
from sandbox import TURN_SECONDS, Line, LineProcess, Sandbox

from shim.process.find_program import is_drop_in_script
from shim.process.install import read_drop_in_settings

PROGRAMS = Path(__file__).with_name("clients")
TYPESCRIPT_PACKAGE = "@anthropic-ai/claude-agent-sdk"
TYPESCRIPT_BEFORE = "claude-code-1"  # Claude Code on npm, which was also the SDK
CLOSE_SECONDS = 30.0  # the Python SDK waits 5 s, sends SIGTERM, waits 5 s and kills


@dataclass
class ClientTurn:
    """What a client's user received during one turn."""

    lines: list[Line]

    def list_lines(self, what: str) -> list[Line]:
        return [line for line in self.lines if line["saw"] == what]

    @property
    def kinds(self) -> list[str]:
        return [line["saw"] for line in self.lines]

    @property
    def init(self) -> Line:
        (init,) = self.list_lines("init")
        return init

    @property
    def result(self) -> Line:
        (result,) = self.list_lines("result")
        return result

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.list_lines("text")]

    @property
    def streamed(self) -> str:
        return "".join(line["text"] for line in self.list_lines("delta"))


class SdkConversation(LineProcess):
    """A client that is connected to its claude and receives commands."""

    def run_turn(self, text: str) -> ClientTurn:
        """Send a message, and wait for the end of the turn."""
        start_index = len(self.lines)
        self.send_message(text)
        return self.read_turn(start_index)

    def send_message(self, text: str, image: str | None = None) -> None:
        """Send a message. An image is a PNG in base64."""
        self.send({"do": "say", "text": text, "image": image})

    def read_turn(self, start_index: int) -> ClientTurn:
        """Read the turn that starts at the line with this number, up to its result."""
        self.await_saw("result")
        return ClientTurn(self.lines[start_index:])

    def await_saw(self, what: str) -> Line:
        """Return the next line of a kind. Any failure ends the wait."""
        line = self.read_until(lambda line: line["saw"] in (what, "exception", "result", "end"))
        assert line["saw"] == what, line
        return line

    def run_command(self, do: str, **fields: str) -> None:
        """Run a command other than a turn, and wait until it is done."""
        self.send({"do": do, **fields})
        line = self.read_until(lambda line: line.get("did") == do or line["saw"] == "end")
        assert line["saw"] == "done", line

    def allow_call(
        self, changed: Line | None = None, *, number: int | None = None, always: bool = False
    ) -> None:
        """Allow a call, with another input if one is given. With `always`, accept all suggested
        rules.
        """
        answer = {"behavior": "allow", "always": always, **({"input": changed} if changed else {})}
        self.send({"do": "answer", "number": number, "answer": answer})

    def deny_call(
        self, message: str, *, number: int | None = None, interrupt: bool = False
    ) -> None:
        answer = {"behavior": "deny", "message": message, "interrupt": interrupt}
        self.send({"do": "answer", "number": number, "answer": answer})

    def disconnect(self) -> float:
        """Disconnect. Return the seconds that this took."""
        self.send({"do": "close"})
        line = self.read_until(lambda line: line.get("did") == "close", CLOSE_SECONDS)
        self.finish()
        return float(line["seconds"])

    def finish(self) -> ClientTurn:
        """Wait for the client's exit. Return everything that it received."""
        code = self.read_to_end(TURN_SECONDS)
        assert code == 0 and self.lines[-1] == {"saw": "end"}, self.describe_failure(
            f"ended with {code}"
        )
        return ClientTurn(self.lines)


@dataclass(frozen=True)
class SdkClient:
    """One version of an SDK on one version of its runtime. It is installed when it is first
    connected.
    """

    name: str
    command: Callable[[], Sequence[str]]
    environment: Callable[[], Mapping[str, str]] = dict
    raises_text: bool = True  # its exception has the text of an error result
    # the file of its package that it starts, in whose place the drop-in is put
    bundled_file: str = ""

    def __str__(self) -> str:
        return self.name

    def connect(
        self,
        sandbox: Sandbox,
        *,
        once: str | None = None,
        partial: bool = False,
        asks: bool = False,
        resume: str | None = None,
        serves: str | None = None,
        judges: str | None = None,
        allowed: Sequence[str] = (),
        denied: Sequence[str] = (),
    ) -> SdkConversation:
        """Start the client with the sandbox's claude, for one prompt or for a conversation.

        `resume` is the id of a session to continue. `serves` is the name of an MCP server in the
        client's process. `judges` is a tool whose calls a hook of the client denies. `allowed` and
        `denied` are rules about tools.
        """
        start = {
            "claude": str(sandbox.claude),
            "cwd": str(sandbox.folder),
            "once": once,
            "partial": partial,
            "asks": asks,
            "serves": serves,
            "judges": judges,
            "allowed": list(allowed),
            "denied": list(denied),
            "resume": resume,
        }
        argv = [*self.command(), json.dumps(start)]
        if self.bundled_file and is_drop_in_script(str(sandbox.claude)):
            module = _copy_package(Path(argv[-2]), sandbox)
            put_into(module.with_name(self.bundled_file), sandbox)
            argv[-2:] = [str(module), json.dumps({**start, "claude": None})]
        conversation = SdkConversation(
            argv, sandbox.folder, {**sandbox.environment, **self.environment()}
        )
        sandbox.started.append(conversation)
        if once is None:
            conversation.read_until(
                lambda line: line.get("did") == "connect" or line["saw"] == "end"
            )
            assert conversation.lines[-1]["saw"] == "done", conversation.lines
        return conversation


def _copy_package(module: Path, sandbox: Sandbox) -> Path:
    """Copy a package, and return the path of a module in it. The files are links, which `shim
    install --into` replaces.
    """
    copy = sandbox.folder.parent / "package"
    shutil.copytree(module.parent, copy, copy_function=os.link, symlinks=True)
    return copy / module.name


def put_into(file: Path, sandbox: Sandbox, vendor: str = "") -> None:
    """Replace the claude in a package with the drop-in, for the vendor of the sandbox's drop-in."""
    vendor = vendor or read_drop_in_settings(str(sandbox.claude))[1]["vendor"]
    install = [sys.executable, "-m", "shim", "install", "--vendor", vendor, "--into", str(file)]
    subprocess.run(
        install,
        env=dict(sandbox.environment),
        timeout=TURN_SECONDS,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _build_python_client(pin: str, **traits: bool) -> SdkClient:
    """Build a client without site packages: only the SDK and its dependencies are available."""
    return SdkClient(
        f"python-{PYTHON_PINS[pin].rpartition('==')[2]}",
        lambda: (sys.executable, "-S", "-P", str(PROGRAMS / "py_client.py")),
        lambda: {"PYTHONPATH": str(install_python_package(pin))},
        **traits,
    )


def _build_typescript_client(
    major: int, package: str = TYPESCRIPT_PACKAGE, bundled_file: str = ""
) -> SdkClient:
    def build_command() -> Sequence[str]:
        module = install_npm_package(package) / "node_modules" / package / "sdk.mjs"
        return str(find_node(major)), str(PROGRAMS / "ts_client.mjs"), str(module)

    return SdkClient(
        f"typescript-{find_pinned_version(package)}-node{major}",
        build_command,
        bundled_file=bundled_file,
        raises_text=not bundled_file,
    )


PYTHON = _build_python_client("newest")
PYTHON_OLDEST = _build_python_client("oldest", raises_text=False)
TYPESCRIPT = _build_typescript_client(24)
CODE_SDK = _build_python_client("before", raises_text=False)  # it only searches PATH
# which starts this file with node
CODE_CLI = _build_typescript_client(20, TYPESCRIPT_BEFORE, bundled_file="cli.js")
SDKS = (PYTHON, PYTHON_OLDEST, _build_typescript_client(20), TYPESCRIPT)
BEFORE = (CODE_SDK, CODE_CLI)  # the same SDKs under their older names

"""Third-party programs that use claude. Each gets one prompt after another, as from its users.

They find claude in three ways: on PATH, by a variable or a setting, or in their own package, in
which `shim install --into` puts the drop-in.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from programs import find_node, find_pinned_version, install_npm_package, install_python_package
from sandbox import MARK, TURN_SECONDS, Line, LineProcess, Sandbox, find_free_port, wait_until
from sdk_clients import PROGRAMS, put_into
from vendor_setups import CODEX, Vendor

from shim.process.find_program import is_drop_in_script

MODEL = "sonnet"  # every program has Claude's model names, and most have no others
NATIVE = "@anthropic-ai/claude-agent-sdk-*/claude"  # below node_modules, of the TypeScript SDK


@dataclass(frozen=True)
class Wrapper:
    """A program and the tested version. `send_prompts` returns the outcome of each prompt: {text}
    or {error}.
    """

    package: str
    brings_claude: bool = False  # its package contains a claude
    aborts: bool = False  # a reply can be aborted
    # there is no reply; without this the user of a real claude gets no error either
    says_why: bool = True

    def __str__(self) -> str:
        return f"{self.package.rpartition('/')[2]}-{find_pinned_version(self.package)}"

    def send_prompts(
        self, sandbox: Sandbox, prompts: Sequence[str], *, abort: bool = False
    ) -> list[Line]:
        raise NotImplementedError

    def run_program(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        environment: Mapping[str, str],
        **options: object,
    ) -> list[Line]:
        """Return the lines of a program that prints one for each prompt."""
        start = json.dumps({"model": MODEL, "cwd": str(sandbox.folder), **options})
        process = LineProcess(
            [*argv, start], sandbox.folder, {**sandbox.environment, **environment}
        )
        sandbox.started.append(process)
        code = process.read_to_end(TURN_SECONDS)
        assert code == 0, process.describe_failure(f"ended with {code}")
        return process.lines


def build_path_variables(sandbox: Sandbox) -> Mapping[str, str]:
    return {"PATH": f"{sandbox.claude.parent}{os.pathsep}{sandbox.environment['PATH']}"}


class OfNpm(Wrapper):
    """An npm library, driven by `clients/npm_frontend.mjs`."""

    def send_prompts(
        self, sandbox: Sandbox, prompts: Sequence[str], *, abort: bool = False
    ) -> list[Line]:
        folder = install_npm_package(self.package)
        if self.brings_claude and is_drop_in_script(str(sandbox.claude)):
            folder = copy_folder(folder, sandbox)
            for file in folder.glob(f"node_modules/{NATIVE}"):
                put_into(file, sandbox)
        argv = [str(find_node(24)), str(PROGRAMS / "npm_frontend.mjs"), str(folder), self.package]
        return self.run_program(
            sandbox,
            argv,
            {} if self.brings_claude else build_path_variables(sandbox),
            prompts=prompts,
            abort=abort,
        )


class OfPyPI(Wrapper):
    """A PyPI library that depends on the Python SDK, driven by `clients/pypi_frontend.py`."""

    def send_prompts(
        self, sandbox: Sandbox, prompts: Sequence[str], *, abort: bool = False
    ) -> list[Line]:
        folders = [install_python_package(self.package)]
        if is_drop_in_script(str(sandbox.claude)):
            folders.insert(0, copy_folder(folders[0] / "claude_agent_sdk", sandbox).parent)
            put_into(folders[0] / "claude_agent_sdk" / "_bundled" / "claude", sandbox)
        argv = [sys.executable, "-S", "-P", str(PROGRAMS / "pypi_frontend.py"), self.package]
        return self.run_program(
            sandbox, argv, {"PYTHONPATH": os.pathsep.join(map(str, folders))}, prompts=prompts
        )


class Proxy(Wrapper):
    """claude-max-api-proxy: OpenAI's API on top of `claude --print`. Each request has the
    conversation.
    """

    def send_prompts(
        self, sandbox: Sandbox, prompts: Sequence[str], *, abort: bool = False
    ) -> list[Line]:
        messages: list[Line] = []
        answers: list[Line] = []
        with self._run_server(sandbox) as address:
            for prompt in prompts:
                messages.append({"role": "user", "content": prompt})
                answers.append(self._request_reply(address, messages, abort=abort))
                messages.append({"role": "assistant", "content": answers[-1].get("text", "")})
        return answers

    @contextmanager
    def _run_server(self, sandbox: Sandbox) -> Iterator[str]:
        port = find_free_port()
        script = (
            install_npm_package(self.package)
            / "node_modules"
            / self.package
            / "dist"
            / "server"
            / "standalone.js"
        )
        environment = {**sandbox.environment, **build_path_variables(sandbox)}
        server = Quiet([str(find_node(24)), str(script), str(port)], sandbox.folder, environment)
        sandbox.started.append(server)
        assert wait_until(lambda: is_listening(port), TURN_SECONDS), server.describe_failure(
            "does not listen"
        )
        try:
            yield f"http://127.0.0.1:{port}/v1/chat/completions"
        finally:
            server.close()

    def _request_reply(self, address: str, messages: Sequence[Line], *, abort: bool) -> Line:
        body = json.dumps(
            {"model": f"claude-{MODEL}-4", "messages": messages, "stream": abort}
        ).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TURN_SECONDS) as response:
                if abort:
                    lines = iter(response.readline, b"")
                    return {"text": next(line.decode() for line in lines if b'"content"' in line)}
                return {"text": json.load(response)["choices"][0]["message"]["content"]}
        except urllib.error.HTTPError as error:
            with error:
                return {"error": error.read().decode()}


class Quiet(LineProcess):
    """A server whose stdout is for people."""

    def _read_stdout(self) -> None:
        for line in self._process.stdout or ():
            self._stderr.append(line)
        self._queue.put(None)


class Acpx(Wrapper):
    """A headless ACP client with the adapter, which gets the drop-in by a variable.

    It has no file system and no terminal of its own, because claude-code-acp removes Claude's tools
    for them.
    """

    def send_prompts(
        self, sandbox: Sandbox, prompts: Sequence[str], *, abort: bool = False
    ) -> list[Line]:
        self._run_command(sandbox, "sessions", "new")
        answers = [self._send_prompt(sandbox, prompt) for prompt in prompts]
        self._run_command(sandbox, "sessions", "close")
        return answers

    def _send_prompt(self, sandbox: Sandbox, prompt: str) -> Line:
        lines, code = self._run_command(sandbox, prompt)
        updates = [
            line["params"]["update"] for line in lines if line.get("method") == "session/update"
        ]
        text = "".join(
            update["content"]["text"]
            for update in updates
            if update["sessionUpdate"] == "agent_message_chunk"
        )
        return {"text": text} if code == 0 else {"error": json.dumps(lines[-3:])}

    def _run_command(self, sandbox: Sandbox, *args: str) -> tuple[list[Line], int]:
        script = (
            install_npm_package(self.package) / "node_modules" / self.package / "dist" / "cli.js"
        )
        adapter = (
            install_npm_package("acp-before") / "node_modules" / "acp-before" / "dist" / "index.js"
        )
        agent = f"{find_node(24)} {adapter}"
        flags = [
            "--no-fs",
            "--no-terminal",
            "--approve-all",
            "--format",
            "json",
            "--ttl",
            "1",
            "--agent",
            agent,
        ]
        environment = {**sandbox.environment, "CLAUDE_CODE_EXECUTABLE": str(sandbox.claude)}
        process = LineProcess(
            [str(find_node(24)), str(script), *flags, *args], sandbox.folder, environment
        )
        sandbox.started.append(process)
        process.close_stdin()
        code = process.read_to_end(TURN_SECONDS)
        return process.lines, code


def copy_folder(folder: Path, sandbox: Sandbox) -> Path:
    """Copy a folder into the sandbox. Its files are links, which `shim install --into` replaces."""
    copy = sandbox.folder.parent / "packages" / folder.name
    shutil.copytree(folder, copy, copy_function=os.link, symlinks=True)
    return copy


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


# The variables that are not settings of the vendor.
COMMON_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "NODE_COMPILE_CACHE", MARK)


def write_settings(
    vendor: Vendor, program: Path | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """Write the vendor's program and variables into the drop-in's settings. Return the environment
    without them.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in COMMON_VARIABLES and name[:5] != "SHIM_"
    }
    lines = [f"[vendors.{vendor.name}]", f"trust = {json.dumps(vendor is CODEX)}"]
    lines += [f"bin = {json.dumps(str(program))}"] if program else []
    lines += [
        f"[vendors.{vendor.name}.env]",
        *(f"{name} = {json.dumps(value)}" for name, value in variables.items()),
    ]
    file = Path(environment["HOME"]) / ".config" / "shim" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return {name: environment[name] for name in COMMON_VARIABLES}


WRAPPERS: Sequence[Wrapper] = (
    OfNpm("ai-sdk-provider-claude-code", brings_claude=True, aborts=True),
    OfNpm("@instantlyeasy/claude-code-sdk-ts", says_why=False),
    OfPyPI("langchain-claude-cli", brings_claude=True),
    OfPyPI("agent-framework-claude", brings_claude=True),
    Proxy("claude-max-api-proxy", aborts=True, says_why=False),
    Acpx("acpx"),
)

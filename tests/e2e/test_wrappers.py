"""Third-party programs around claude, with the real claude and with the drop-in for some vendors.

They receive Claude's name for a model and a small environment, so the drop-in has its settings in
its file, as for a user of these programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from clis import INSTALL_SECONDS, Cli, build_isolated_environment, install_drop_in
from model_scripts import ERROR_MESSAGE, REPLY, REPLY_AFTER_TOOL, ScriptedServer
from programs import install_program
from sandbox import EXIT_SECONDS, MARK, Sandbox
from vendor_setups import CLAUDE_ITSELF, CODEX, PI, QWEN
from wrappers import WRAPPERS, Wrapper, write_settings

pytestmark = pytest.mark.e2e

CLIS = (Cli(CLAUDE_ITSELF, bare=True), Cli(CLAUDE_ITSELF), Cli(QWEN), Cli(PI), Cli(CODEX))
# The cells of `make e2e`.
SHORT = {("ai-sdk-provider-claude-code", "qwen"), ("claude-max-api-proxy", "pi")}

Test = Callable[..., None]


def scenario(
    title: str, clients: Sequence[Wrapper] = WRAPPERS, *, short: bool = False
) -> Callable[[Test], Test]:
    """Parametrize a test with a row for each program. `make e2e` runs the SHORT cells of a `short`
    scenario, `make full` all.
    """
    cells = [
        pytest.param(client, cli, id=f"{client}-{cli}", marks=() if soon else pytest.mark.full)
        for client in clients
        for cli in CLIS
        for soon in [short and (client.package, cli.vendor.name) in SHORT]
    ]

    def decorate(test: Test) -> Test:
        return pytest.mark.scenario(title)(pytest.mark.parametrize(("client", "cli"), cells)(test))

    return decorate


@pytest.fixture
def sandbox(
    cli: Cli, client: Wrapper, service: ScriptedServer, hello_file: Path, tmp_path: Path
) -> Iterator[Sandbox]:
    """Install a drop-in whose settings contain its vendor's program and environment."""
    program = install_program(cli.vendor.package)
    environment = build_isolated_environment(cli.vendor, program, service.url, tmp_path)
    claude = program.executable
    if not cli.bare:
        claude = install_drop_in(cli.vendor, environment, tmp_path)
        # The file that the drop-in replaces is the program.
        is_bundled = client.brings_claude and cli.vendor is CLAUDE_ITSELF
        environment = write_settings(
            cli.vendor, None if is_bundled else program.executable, environment
        )
    sandbox = Sandbox(claude, hello_file.parent, environment)
    yield sandbox
    remaining = sandbox.list_remaining_processes()
    sandbox.close()
    assert remaining == {}


@scenario("text, a tool, a turn that remembers", short=True)
def test_wrapper_holds_a_conversation_with_a_tool_call(
    client: Wrapper, cli: Cli, sandbox: Sandbox, service: ScriptedServer, hello_file: Path
) -> None:
    prompts = [
        "[[text]] the first words",
        f"[[read]] {cli.vendor.format_file_argument(hello_file)}",
        "[[text]] the last words",
    ]
    first, second, third = client.send_prompts(sandbox, prompts)
    assert first == third == {"text": REPLY}
    assert second["text"].endswith(REPLY_AFTER_TOOL)
    tool_result = service.list_requests("read")[-1].tool_result or ""
    assert "hello world" in tool_result
    remembered = json.dumps(service.list_requests("text")[-1].messages)
    assert "the first words" in remembered and "the last words" in remembered
    of_claude = {request.model.startswith("claude-") for request in service.requests}
    assert of_claude == {cli.vendor is CLAUDE_ITSELF}, (
        "no other vendor is asked for a model of Claude's"
    )


@scenario("error", [client for client in WRAPPERS if client.says_why])
def test_wrapper_reports_the_error_of_the_model_service(client: Wrapper, sandbox: Sandbox) -> None:
    (answer,) = client.send_prompts(sandbox, ["[[error]] 401"])
    assert ERROR_MESSAGE in json.dumps(answer)


@scenario("a reply is given up", [client for client in WRAPPERS if client.aborts])
def test_aborted_reply_closes_the_model_request(
    client: Wrapper, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    if not cli.vendor.fragments:
        pytest.skip(f"{cli.vendor.name} prints a reply when it is whole")
    client.send_prompts(sandbox, ["[[slow]] hi"], abort=True)
    (request,) = service.list_requests("slow")
    assert request.client_left.wait(EXIT_SECONDS)


@pytest.mark.full
@pytest.mark.parametrize("client", WRAPPERS, ids=str)
def test_demo_vendor_answers_a_wrapper_without_a_model(
    client: Wrapper, hello_file: Path, tmp_path: Path
) -> None:
    home_folder, binaries = tmp_path / "home", tmp_path / "bin"
    home_folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home_folder),
        "LANG": "C.UTF-8",
        MARK: str(uuid.uuid4()),
    }
    install_demo = [
        sys.executable,
        "-m",
        "shim",
        "install",
        "--vendor",
        "demo",
        "--to",
        str(binaries),
    ]
    subprocess.run(
        install_demo, env=environment, cwd=home_folder, timeout=INSTALL_SECONDS, check=True
    )
    sandbox = Sandbox(binaries / "claude", hello_file.parent, environment)
    (answer,) = client.send_prompts(sandbox, ["hi"])
    remaining = sandbox.list_remaining_processes()
    sandbox.close()
    assert "the three tests pass" in answer["text"]
    assert remaining == {}

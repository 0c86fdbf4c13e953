"""The session stores of the SDKs: a session is mirrored to a store and resumed from it on another
machine. The row of the real claude validates the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from clis import BARE, MARK, Cli, build_isolated_environment, install_drop_in
from model_scripts import ScriptedServer, join_message_text
from programs import find_node, install_npm_package, install_program, install_python_package
from sandbox import TURN_SECONDS, Sandbox
from sdk_clients import PROGRAMS, TYPESCRIPT_PACKAGE
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI_CODE, OPENCODE, PI, QWEN

pytestmark = pytest.mark.e2e

PROMPTS = tuple(f"[[text]] {word}" for word in ("apricot", "blackberry", "clementine"))


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Cli:
    cli: Cli = request.param
    return cli


def build_client_command(sdk: str) -> Sequence[str]:
    if sdk == "python":
        return (sys.executable, "-S", "-P", str(PROGRAMS / "store_client.py"))
    package = install_npm_package(TYPESCRIPT_PACKAGE) / "node_modules" / TYPESCRIPT_PACKAGE
    return (str(find_node(24)), str(PROGRAMS / "store_client.mjs"), str(package / "sdk.mjs"))


def build_second_machine(sandbox: Sandbox, cli: Cli, url: str, root: Path) -> dict[str, str]:
    """Return the environment of another machine, on which the vendor has no sessions."""
    root.mkdir()
    program = install_program(cli.vendor.package)
    environment = build_isolated_environment(cli.vendor, program, url, root)
    if not cli.bare:
        install_drop_in(cli.vendor, environment, root)
    return {**environment, MARK: sandbox.environment[MARK]}


@pytest.mark.parametrize(
    ("cli", "sdk"),
    [
        (BARE, "python"),
        (BARE, "typescript"),
        (Cli(QWEN), "python"),
        (Cli(CODEX), "typescript"),
        *(
            pytest.param(Cli(vendor), "python", marks=pytest.mark.full)
            for vendor in (PI, GEMINI, OPENCODE, COPILOT, KIMI_CODE)
        ),
    ],
    ids=str,
    indirect=["cli"],
)
def test_session_moves_to_another_machine(
    sandbox: Sandbox, cli: Cli, service: ScriptedServer, tmp_path: Path, sdk: str
) -> None:
    second = build_second_machine(sandbox, cli, service.url, tmp_path / "second")
    machines = (sandbox.environment, second, second)
    start = {
        "claude": str(sandbox.claude),
        "cwd": str(sandbox.folder),
        "runs": [
            {"prompt": prompt, "environment": dict(environment)}
            for prompt, environment in zip(PROMPTS, machines, strict=True)
        ],
    }
    process = subprocess.run(
        [*build_client_command(sdk), json.dumps(start)],
        cwd=sandbox.folder,
        env={**sandbox.environment, "PYTHONPATH": str(install_python_package("newest"))},
        timeout=3 * TURN_SECONDS,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    *runs, stored = [json.loads(line) for line in process.stdout.splitlines()]
    (session_id,) = {run["session"] for run in runs}

    ((project, stored_id, subpath, entries),) = stored["store"]
    assert (stored_id, subpath) == (session_id, "")
    assert project == "".join(char if char.isalnum() else "-" for char in str(sandbox.folder))
    messages = [entry for entry in entries if entry["type"] in ("user", "assistant")]
    assert [entry["type"] for entry in messages] == ["user", "assistant"] * 3
    contents = [join_message_text(entry["message"]) for entry in messages[::2]]
    assert contents == list(PROMPTS)
    parents = {entry["uuid"]: entry.get("parentUuid") for entry in entries if "uuid" in entry}
    ancestors = set()
    uuid = messages[-1]["uuid"]
    while uuid is not None:
        ancestors.add(uuid)
        uuid = parents[uuid]
    assert {entry["uuid"] for entry in messages} <= ancestors

    last_request = [request for request in service.requests if request.offered][-1]
    text = "\n".join(join_message_text(message) for message in last_request.messages)
    assert all(text.count(prompt) == 1 for prompt in PROMPTS), text
    if not cli.bare:
        warnings = ["".join(run["stderr"]) for run in runs]
        assert "on this machine" in warnings[1] and warnings[0] == warnings[2] == ""

"""Output that no program should print, through the installed drop-in, read by the real SDKs.

A stand-in for a vendor prints every case of `torture.py`. One process of each client reads them
all, a few in parallel, because its start takes longer than a case. Each case is then a separate
test.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clis import INSTALL_SECONDS
from programs import find_node_folder
from sandbox import MARK, Line, LineProcess, Sandbox, scale_timeout, wait_until
from sdk_clients import SDKS, SdkClient

TESTS = Path(__file__).resolve().parent.parent
# Shared with the tests that need only Python.
sys.path.append(str(TESTS / "support"))
import sweeps  # noqa: E402
from box import TELL_VERSION  # noqa: E402
from torture import Torture  # noqa: E402
from torture_cases import HOLD_SECONDS, list_torture_cases  # noqa: E402

pytestmark = pytest.mark.e2e

HANG_SECONDS = 15.0  # on an idle machine; less than HOLD_SECONDS
AT_ONCE = 3
RUN_SECONDS = 90.0  # after which a client stops waiting, however busy the machine is
ALL_SECONDS = 600.0
LONG = 100_000  # the longest text that the clients report in full

CASES = list_torture_cases()
RUNS = [(case, vendor) for case in CASES for vendor in case.vendors]


def in_turn(case: Torture, vendor: str, client: SdkClient) -> bool:
    """Return whether `make e2e` runs this case with this client. `make full` runs every case with
    every client.

    Each case is read once, by one of the clients, from one of its vendors.
    """
    number = CASES.index(case)
    turn, which = divmod(number, len(SDKS))
    return SDKS.index(client) == which and case.vendors.index(vendor) == turn % len(case.vendors)


CELLS = [
    pytest.param(
        client,
        case,
        vendor,
        id=f"{vendor}-{case.name}-{client}",
        marks=() if in_turn(case, vendor, client) else pytest.mark.full,
    )
    for client in SDKS
    for case, vendor in RUNS
]


def fake_vendor(folder: Path, case: Torture) -> Path:
    """Write an executable that prints the bytes of a case."""
    plan, program = folder / f"{case.name}.json", folder / case.name
    plan.write_text(json.dumps(case.build_plan(folder)), encoding="utf-8")
    command = f'exec {sys.executable} -I -S {TESTS / "support" / "fake_child.py"} {plan} "$@"'
    program.write_text(f"#!/bin/sh\n{TELL_VERSION}{command}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Install the drop-in. Every process that it starts must end with the clients."""
    root = tmp_path_factory.mktemp("torture")
    folders = {name: root / name for name in ("home", "tmp", "work", "bin", "vendors")}
    for folder in folders.values():
        folder.mkdir()
    environment = {
        "PATH": f"{find_node_folder()}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["tmp"]),
        "LANG": "C.UTF-8",
        "SHIM_STATE": str(root / "state"),
        MARK: str(uuid.uuid4()),
    }
    subprocess.run(
        [sys.executable, "-m", "shim", "install", "--vendor", "pi", "--to", str(folders["bin"])],
        env=environment,
        cwd=folders["home"],
        stdin=subprocess.DEVNULL,
        timeout=INSTALL_SECONDS,
        check=True,
    )
    # The cases contain pi's output in one-shot mode.
    settings = folders["home"] / ".config" / "shim" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[vendors.pi]\ndriver = "one-way"\n')
    sandbox = Sandbox(folders["bin"] / "claude", folders["work"], environment)
    yield sandbox
    # One turn may leave a detached process behind.
    wait_until(lambda: not sandbox.list_processes(), HOLD_SECONDS)
    remaining = sandbox.list_remaining_processes()
    sandbox.close()
    assert remaining == {}


RunReader = Callable[[SdkClient], dict[str, Line]]


@pytest.fixture(scope="module")
def run_reader(sandbox: Sandbox) -> RunReader:
    """Return a function that returns what a client saw of every run, by name. Each client runs
    once.
    """
    folder = sandbox.claude.parent.parent / "vendors"
    programs = {case.name: fake_vendor(folder, case) for case in CASES}
    runs = [
        {
            "name": f"{vendor}/{case.name}",
            "prompt": case.prompt,
            "environment": {"SHIM_VENDOR": vendor, "SHIM_BIN": str(programs[case.name])},
        }
        for case, vendor in RUNS
    ]
    lines_by_client: dict[str, dict[str, Line]] = {}

    def look(client: SdkClient) -> dict[str, Line]:
        if client.name not in lines_by_client:
            client_runs = [
                run
                for run, pair in zip(runs, RUNS, strict=True)
                if sweeps.full or in_turn(*pair, client)
            ]
            start = {
                "claude": str(sandbox.claude),
                "cwd": str(sandbox.folder),
                "partial": True,
                "asks": False,
            }
            start |= {"runs": client_runs, "at_once": AT_ONCE, "seconds": RUN_SECONDS}
            file = folder / "start.json"
            file.write_text(json.dumps(start), encoding="utf-8")
            environment = {**sandbox.environment, **client.environment()}
            process = LineProcess([*client.command(), f"@{file}"], sandbox.folder, environment)
            sandbox.started.append(process)
            limit = scale_timeout(HANG_SECONDS)
            process.read_to_end(ALL_SECONDS)
            # The load at the start differs from the load during the runs.
            limit = max(limit, scale_timeout(HANG_SECONDS))
            lines = [line | {"limit": limit} for line in process.lines if line["saw"] == "run"]
            lines_by_client[client.name] = {line["name"]: line for line in lines}
        return lines_by_client[client.name]

    return look


def short(text: str) -> str:
    """Return a text as the clients report it."""
    data = text.encode()
    return (
        text
        if len(data) <= LONG
        else f"sha256 {hashlib.sha256(data).hexdigest()} of {len(data)} bytes"
    )


def fits(expected: Any, text: str) -> bool:
    """Return whether a text is the expected one, or matches its pattern."""
    if isinstance(expected, re.Pattern):
        return expected.fullmatch(text) is not None
    return bool(short(expected) == text)


@pytest.mark.parametrize(("client", "case", "vendor"), CELLS)
def test_sdk_receives_the_expected_output_and_a_single_result(
    client: SdkClient, case: Torture, vendor: str, run_reader: RunReader
) -> None:
    run = run_reader(client)[f"{vendor}/{case.name}"]
    (end,) = run["ends"]
    if case.error:
        assert end["is_error"] is True
        error_text = "\n".join(
            [end["text"], *end["errors"], *(raised["text"] for raised in run["exceptions"])]
        )
        assert (
            isinstance(case.error, re.Pattern) or not client.raises_text or case.error in error_text
        )
    else:
        assert end["is_error"] is False and run["exceptions"] == []
    assert run["seconds"] < run["limit"]
    text, streamed = case.select_expected("text", vendor), case.select_expected("streamed", vendor)
    assert fits(text, run["text"])
    assert fits(text if streamed is None else streamed, run["streamed"])
    for call_id, name, tool_input in case.calls:
        (call,) = (
            [name, reported_input]
            for reported_id, name, reported_input in run["calls"]
            if reported_id == call_id
        )
        assert call[0] == name and tool_input.items() <= call[1].items()
    for result in case.results:
        assert list(result) in run["results"]

"""The drop-in runs nothing that the real claude would not have run: the same flags and calls, real
vendors.

Each call creates a file, which shows whether the call ran. When the scripted model makes a call,
the drop-in is paused. A shim that only stops a call when it sees it would be too late. The expected
outcomes are in the manual's table.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend, DropInRun
from model_scripts import ModelRequest, ScriptedAnswer, ScriptedServer
from permission_rows import (
    FOLDER,
    MADE,
    NOT_RUN,
    RAN,
    REFUSED,
    ROWS,
    SECRET,
    UNASKED,
    Row,
    load_expected_outcomes,
)
from programs import install_program
from vendor_setups import (
    CLAUDE_ITSELF,
    CLINE,
    DROID,
    KIMI_CODE_ASKING,
    PI,
    PI_CUMULATIVE,
    QWEN,
    VENDORS,
    Vendor,
)

pytestmark = pytest.mark.e2e

PAUSE_SECONDS = 2.5
UNLISTED = (KIMI_CODE_ASKING, DROID, CLINE)  # their column of the matrix is not in the manual
COLUMNS = (CLAUDE_ITSELF, *(vendor for vendor in VENDORS if vendor is not PI_CUMULATIVE), *UNLISTED)
# `tests/program/test_permission_matrix.py` runs every row with stand-ins, in `make test`. `make
# e2e` uses the real programs to test how each of them enforces the rules: its tools, its permission
# requests, its hook. `make full` runs all rows.
CHOSEN = {
    QWEN: {
        "bypass; touch", "allow Bash; touch", "acceptEdits; Write elsewhere", "deny Bash(touch:*); touch",
        "deny Edit(./secret/**); Write there", "a hook of the user; touch", "--tools Read; touch",
    },
    CLAUDE_ITSELF: {"bypass; touch"},
    PI: {"allow Bash; touch", "acceptEdits; Write elsewhere", "deny Edit; Write", "--tools Read; touch"},
    KIMI_CODE_ASKING: {"default; Write", "acceptEdits; Read elsewhere", "deny Edit(./secret/**); Write there"},
    DROID: {"default; touch", "allow Bash; touch", "--tools Read; touch"},
}  # fmt: skip
EVERYWHERE = {"deny Bash; touch"}


def cells() -> list[Any]:
    def short(vendor: Vendor, row: Row) -> bool:
        return row.name in EVERYWHERE or row.name in CHOSEN.get(vendor, ())

    return [
        pytest.param(
            vendor, row, id=f"{vendor}-{row}", marks=() if short(vendor, row) else pytest.mark.full
        )
        for vendor in COLUMNS
        for row in ROWS
    ]


@contextmanager
def pause_on_call(model: ScriptedServer, process: int) -> Iterator[None]:
    """Stop the drop-in for a while when the model makes its first call. The vendor keeps
    running.
    """
    original_reply, timers = model._choose_answer, list[threading.Timer]()

    def with_a_call(request: ModelRequest, number: int) -> ScriptedAnswer:
        model_reply = original_reply(request, number)
        if model_reply.calls and not timers:
            os.kill(process, signal.SIGSTOP)
            timers.append(threading.Timer(PAUSE_SECONDS, os.kill, (process, signal.SIGCONT)))
            timers[0].start()
        return model_reply

    model._choose_answer = with_a_call  # type: ignore[method-assign]
    try:
        yield
    finally:
        for timer in timers:
            timer.join()


def furnish(frontend: DropInFrontend, row: Row) -> None:
    (frontend.folder / "secret").mkdir()
    (frontend.folder.parent / "out").mkdir()
    for folder in (frontend.folder / "secret", frontend.folder.parent / "out"):
        (folder / "x").write_text(f"{SECRET}\n")
    for location, settings in row.files.items():
        home_folder = Path(frontend.environment["HOME"])
        path = (
            home_folder / location[2:] if location.startswith("~/") else frontend.folder / location
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings).replace(FOLDER, str(frontend.folder)))


def run(frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer, row: Row) -> DropInRun:
    script, at, path = row.call.partition("@")
    path_argument = path if vendor.relative_paths else os.path.normpath(frontend.folder / path)
    settings_flags = [] if row.settings is None else ["--settings", json.dumps(row.settings)]
    process = frontend.start_run(
        script + (path_argument if at else ""), *row.flags, *settings_flags
    )
    with pause_on_call(model, process.number):
        return process.finish()


def outcome(frontend: DropInFrontend, model: ScriptedServer, row: Row, done: DropInRun) -> str:
    made = [*frontend.folder.rglob(MADE), *(frontend.folder.parent / "out").rglob(MADE)]
    if not (made or any(SECRET in (request.tool_result or "") for request in model.requests)):
        return NOT_RUN if model.requests else REFUSED
    return UNASKED if row.plain and done.init.get("shim", {}).get("unattended") else RAN


@pytest.mark.parametrize(("vendor", "row"), cells(), indirect=["vendor"])
def test_call_runs_only_if_the_real_claude_runs_the_call(
    frontend: DropInFrontend,
    model: ScriptedServer,
    vendor: Vendor,
    row: Row,
    record_property: pytest.RecordProperty,
) -> None:
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
        # Otherwise root may not bypass permissions.
        frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    furnish(frontend, row)
    done = run(frontend, vendor, model, row)
    became = outcome(frontend, model, row, done)
    record_property("outcome", became)
    assert became != RAN or row.runs, "wider than the real claude"
    assert became != REFUSED or done.result["shim"]["cause"] == "refused"
    assert became not in (RAN, UNASKED) or row.list_tool_names(vendor.reader) & set(
        done.init["tools"]
    ), done.init["tools"]
    if vendor is CLAUDE_ITSELF:
        assert (became == RAN) == row.runs
    assert vendor in UNLISTED or load_expected_outcomes().get((row.name, vendor.name)) == became

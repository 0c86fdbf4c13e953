"""The permission matrix without real programs: what runs over each vendor, and what the real claude
would have run.

Every cell uses the real settings, planning, launch code and drivers. The vendors are stand-ins in
this process that honour exactly the permission arguments that the vendor promises
(`stand_in_vendors`). Nothing may run that the real claude would not have run, neither unnoticed
("wider") nor noticed afterwards ("late"): a call that was stopped only after it had run counts as
one that ran. `tests/e2e/test_permissions.py` checks the real programs against the same table.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import permission_rows
import policy_cases
import pytest
from memory_run import run_in_memory
from permission_rows import (
    BYPASS,
    FOLDER,
    NOT_RUN,
    RAN,
    REFUSED,
    ROWS,
    UNASKED,
    Row,
    build_deny_flags,
    build_mode_flags,
    build_rules,
    load_expected_outcomes,
)
from stand_in_vendors import CONVERSATIONS, MCP_TOOL, STAND_INS, StandIn, StandInCall, find_target

from shim.adapters import get_adapter
from shim.core.errors import ShimError

STREAM = ("--output-format", "stream-json", "--verbose")
PROMPT = ("-p", "hi", *STREAM)
TOOLS = {"[[shell]]": "Bash", "[[write]]": "Write", "[[read]]": "Read", "[[call]]": MCP_TOOL}
# A column is a vendor in one-shot mode, or a vendor that asks because the shim starts it as for a
# conversation.
ASKING = " that asks"
COLUMNS = (*STAND_INS, *(f"{name}{ASKING}" for name in CONVERSATIONS))

SERVER_TOOL = "[[call]] made"
MCP_ROWS = (
    Row("bypass; a server's tool", SERVER_TOOL, BYPASS, runs=True),
    Row("default; a server's tool", SERVER_TOOL, plain=True),
    Row("plan; a server's tool", SERVER_TOOL, build_mode_flags("plan")),
    Row("dontAsk; a server's tool", SERVER_TOOL, build_mode_flags("dontAsk")),
    Row("acceptEdits; a server's tool", SERVER_TOOL, build_mode_flags("acceptEdits")),
    Row("allow a server; its tool", SERVER_TOOL, ("--allowedTools", "mcp__srv"), runs=True),
    Row("allow a server's tool", SERVER_TOOL, ("--allowedTools", MCP_TOOL), runs=True),
    Row("deny a server; its tool", SERVER_TOOL, build_deny_flags("mcp__srv")),
    Row("deny all of a server; its tool", SERVER_TOOL, build_deny_flags("mcp__srv__*")),
    Row("deny a server's tool", SERVER_TOOL, build_deny_flags(MCP_TOOL)),
    Row("deny a server's other tool", SERVER_TOOL, build_deny_flags("mcp__srv__other"), runs=True),
    Row("deny Bash; a server's tool", SERVER_TOOL, build_deny_flags("Bash"), runs=True),
    Row("bypass, ask about a server; its tool", SERVER_TOOL, BYPASS, build_rules(ask=["mcp__srv"])),
    Row("bypass, ask about a server's tool", SERVER_TOOL, BYPASS, build_rules(ask=[MCP_TOOL])),
)
ALL_ROWS = (*ROWS, *MCP_ROWS)


@pytest.fixture
def claude(local_box, monkeypatch):
    """Return a function that runs a command line over a vendor. It returns the outcome of each
    call, or None if the turn was refused.
    """
    for name in STAND_INS:
        local_box.write_program(name, "exit 1\n")
    local_box.write_settings("[vendors.codex]\ntrust = true\n")

    def run(
        column: str, args: Sequence[str], calls: Sequence[StandInCall]
    ) -> set[StandInCall] | None:
        started: list[StandIn] = []
        vendor, asks = column.removesuffix(ASKING), column.endswith(ASKING)
        if asks:
            local_box.write_settings(f'[vendors.{vendor}]\ndriver = "two-way"\n')

        def start(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> StandIn:
            program = (CONVERSATIONS if asks else STAND_INS)[vendor](
                calls, command, environment, cwd
            )
            program.make_calls()
            started.append(program)
            return program

        try:
            run_in_memory(monkeypatch, [*PROMPT, *args], vendor, start)
        except ShimError:
            return None
        return {call for program in started for call in program.ran}

    return run


# -- the rows of the manual ------------------------------------------------------------------------


def rule_sets(chosen: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Yield groups of rows that differ only in their calls, so that one run tests all calls of a
    group.
    """

    def key(row: Row) -> str:
        return json.dumps([row.flags, row.settings, row.files])

    for _, rows in groupby(sorted(chosen, key=key), key=key):
        group = list(rows)
        yield group[0], group


def call_of(row: Row, cwd: Path) -> StandInCall:
    script, at, path = row.call.partition("@")
    tool, _, line = script.strip().partition(" ")
    if TOOLS[tool] == MCP_TOOL:
        return StandInCall(MCP_TOOL, "", line)
    argument = os.path.normpath(cwd / path) if at else line
    return StandInCall(TOOLS[tool], str(argument), find_target(line))


def furnish(box, files: Mapping[str, Mapping[str, object]]) -> None:
    """Write the settings files of a row, and nothing else."""
    for folder in (box.home / ".claude", box.cwd / ".claude"):
        shutil.rmtree(folder, ignore_errors=True)
    (box.home / ".claude.json").unlink(missing_ok=True)
    for file_name, settings in files.items():
        path = box.home / file_name[2:] if file_name.startswith("~/") else box.cwd / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings).replace(FOLDER, str(box.cwd)))


def is_unattended(column: str) -> bool:
    """Return whether the vendor of a column runs calls without asking, by its own description."""
    vendor = get_adapter(column.removesuffix(ASKING))
    if column.endswith(ASKING):
        assert vendor.cli.has_two_way
        vendor = vendor.build_two_way()
    return vendor.unattended


def outcomes(
    column: str, box, claude, chosen: Sequence[Row] = ALL_ROWS
) -> Iterator[tuple[Row, str]]:
    """Yield the outcome of each row's call."""
    for folder in (box.cwd / "secret", box.cwd.parent / "out"):
        folder.mkdir(exist_ok=True)
        (folder / "x").write_text(permission_rows.SECRET)
    unattended = is_unattended(column)
    files: Mapping[str, Mapping[str, object]] = {}
    for first, rows in rule_sets(chosen):
        if first.files != files:
            furnish(box, first.files)
            files = first.files
        settings_args = [] if first.settings is None else ["--settings", json.dumps(first.settings)]
        calls = {row.name: call_of(row, box.cwd) for row in rows}
        ran = claude(column, [*first.flags, *settings_args], list(dict.fromkeys(calls.values())))
        for row in rows:
            if ran is None:
                yield row, REFUSED
            elif calls[row.name] not in ran:
                yield row, NOT_RUN
            else:
                yield row, UNASKED if row.plain and unattended else RAN


def wider(row_outcomes: Iterable[tuple[Row, str]]) -> list[str]:
    """Return the rows whose call ran although the real claude does not run it."""
    return [row.name for row, outcome in row_outcomes if outcome == RAN and not row.runs]


@pytest.mark.parametrize("column", COLUMNS)
def test_no_matrix_call_runs_that_the_real_claude_would_not_run(column, local_box, claude):
    row_outcomes = list(outcomes(column, local_box, claude))
    assert len(row_outcomes) == len(ALL_ROWS)
    assert wider(row_outcomes) == []
    manual = {
        row: outcome for (row, name), outcome in load_expected_outcomes().items() if name == column
    }
    assert {
        row.name: outcome
        for row, outcome in row_outcomes
        if manual.get(row.name, outcome) != outcome
    } == {}


# -- the calls that the real claude was asked about ------------------------------------------------


@pytest.fixture(scope="module")
def furnished_cases(tmp_path_factory) -> list[tuple[policy_cases.Case, Path]]:
    """Return each case with the folder of its files. No stand-in writes a file, so all vendors
    share the folders.
    """
    cases = [(case, tmp_path_factory.mktemp("case")) for case in policy_cases.load_cases()]
    for case, root in cases:
        case.write_files(root)
    return cases


def build_calls(
    column: str, case: policy_cases.Case, root: Path
) -> dict[StandInCall, policy_cases.Judged]:
    """Return the calls of a case, with what the real claude did with each.

    A vendor that reads by its shell has no call of Read: Claude's rules see a shell line.
    """
    calls = {}
    names = STAND_INS[column.removesuffix(ASKING)].names
    for judged_call in case.calls:
        if judged_call.tool == "Read" and names["Read"] == names["Bash"]:
            continue
        argument = (
            str(root / "work" / judged_call.argument)
            if judged_call.tool in policy_cases.PATHS
            else judged_call.argument
        )
        calls[StandInCall(judged_call.tool, argument)] = judged_call
    return calls


@pytest.mark.parametrize("column", COLUMNS)
def test_no_recorded_call_runs_that_the_real_claude_denied_or_prompted_for(
    column, furnished_cases, claude, monkeypatch
):
    asks_nobody = is_unattended(column)
    faults, ran_at_all = {}, 0
    for case, root in furnished_cases:
        monkeypatch.chdir(root / "work")
        monkeypatch.setenv("HOME", str(root / "home"))
        calls = build_calls(column, case, root)
        ran = claude(column, case.build_args(root), list(calls)) or set()
        ran_at_all += len(ran)
        for call in ran:
            theirs = calls[call].theirs
            if theirs == "deny" or (
                theirs == "ask" and not (asks_nobody and case.mode == "default")
            ):
                faults[f"{case}: {call.tool} {call.argument}"] = theirs
    assert faults == {}
    # cline runs calls in bypassPermissions only, and the shim refuses its turns with rules there.
    assert (ran_at_all > 0) is (column != "cline"), "without a call that ran, nothing was tested"


# -- the matrix can fail ---------------------------------------------------------------------------

NARROW = (
    "plan; touch",
    "deny Bash; touch",
    "deny Bash(touch:*); touch",
    "acceptEdits; Read elsewhere",
)


@pytest.mark.parametrize(
    ("vendor", "lost_arg"),
    [
        ("pi", "--tools"),
        ("gemini", "--admin-policy"),
        ("opencode", "OPENCODE_PERMISSION"),
        ("codex", "hooks.PreToolUse"),
        ("copilot", "PERMISSION_RULES_HOOK"),
        ("qwen", "QWEN_CODE_SYSTEM_SETTINGS_PATH"),
    ],
)
def test_matrix_detects_a_lost_permission_argument(
    vendor, lost_arg, local_box, claude, monkeypatch
):
    """The matrix fails if the launch code forgets a vendor's argument."""
    program = STAND_INS[vendor]

    class Forgetful(program):  # type: ignore[valid-type, misc]
        def __init__(self, calls, command, environment, cwd):
            remaining_args = [arg for arg in command if not arg.startswith(lost_arg)]
            remaining_environment = {
                key: value for key, value in environment.items() if key != lost_arg
            }
            super().__init__(calls, remaining_args, remaining_environment, cwd)

    monkeypatch.setitem(STAND_INS, vendor, Forgetful)
    narrow_rows = [row for row in ROWS if row.name in NARROW]
    assert len(narrow_rows) == len(NARROW) and wider(
        outcomes(vendor, local_box, claude, narrow_rows)
    )


def test_late_rule_is_refused_without_the_late_denials_setting(local_box, claude):
    deny = (*BYPASS, "--disallowedTools", "Bash(touch:*)")
    call = StandInCall("Bash", "touch made", "made")
    assert claude("pi", deny, [call]) is None
    local_box.write_settings("[vendors.pi]\nlate_denials = true\n")
    assert claude("pi", deny, [call]) == {call}, "the call runs, and the turn is stopped afterwards"

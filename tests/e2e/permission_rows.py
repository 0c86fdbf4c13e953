"""Rules and calls for the permission matrix, each with the behavior of the real claude. Also reads
the table of the manual.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MADE = "made"  # the file that a call creates if it runs
SECRET = "what nobody may read"  # in secret/x, and in ../out/x
BYPASS = ("--dangerously-skip-permissions",)
TOUCH = "[[shell]] touch made"
PROGRAM = "[[shell]] python3 -c \"open('made','w')\""
WRITE = "[[write]] @made"
READ_OUT = "[[read]] @../out/x"
WRITE_OUT = "[[write]] @../out/made"
HIDDEN = "[[write]] @secret/made"
RAN, NOT_RUN, REFUSED = "ran", "no", "refused"
UNASKED = "unasked"  # it ran, because the vendor never asks, which `init` reports
MANUAL = Path(__file__).parents[2] / "shim" / "manual" / "permissions.md"


@dataclass(frozen=True)
class Row:
    """Rules and a call, in which "@" precedes a path below the folder.

    `runs`: the real claude runs the call. `files` are settings files below home ("~") or the
    folder. `plain`: only the mode default prevents the call, so a vendor that never asks runs it
    too, and reports that in `init`.
    """

    name: str
    call: str
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: bool = False
    plain: bool = False

    def __str__(self) -> str:
        return self.name

    def list_tool_names(self, reader: str) -> set[str]:
        """Return Claude's names of the called tool. `reader` is the vendor's own tool for files."""
        return {"[[shell]]": {"Bash"}, "[[write]]": {"Write", "Edit"}, "[[read]]": {reader}}[
            self.call.partition(" ")[0]
        ]


def build_mode_flags(name: str, *more: str) -> tuple[str, ...]:
    return ("--permission-mode", name, *more)


def build_deny_flags(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


def build_rules(**kinds: Any) -> dict[str, Any]:
    return {"permissions": kinds}


def build_hook_settings(command: str, matcher: str = "") -> dict[str, Any]:
    return {
        "hooks": {
            "PreToolUse": [{"matcher": matcher, "hooks": [{"type": "command", "command": command}]}]
        }
    }


def build_hook_command(decision: str) -> str:
    output = {
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": "a test says so",
    }
    return f"echo '{json.dumps({'hookSpecificOutput': output})}'"


BLOCKS = build_hook_settings("exit 2")
FOLDER = "FOLDER"  # stands for the working directory in a file
TRUSTED = {"projects": {FOLDER: {"hasTrustDialogAccepted": True}}}
ROWS = (
    Row("bypass; touch", TOUCH, BYPASS, runs=True),
    Row("bypass; Write", HIDDEN, BYPASS, runs=True),
    Row("default; touch", TOUCH, plain=True),
    Row("default; Write", WRITE, plain=True),
    Row("dontAsk; touch", TOUCH, build_mode_flags("dontAsk")),
    Row("dontAsk, allow Bash; touch", TOUCH, build_mode_flags("dontAsk", "--allowedTools", "Bash"), runs=True),
    Row("plan; touch", TOUCH, build_mode_flags("plan")),
    Row("plan, allow Bash; touch", TOUCH, build_mode_flags("plan", "--allowedTools", "Bash")),
    Row("acceptEdits; touch", TOUCH, build_mode_flags("acceptEdits"), runs=True),
    Row("acceptEdits; a program", PROGRAM, build_mode_flags("acceptEdits")),
    Row("acceptEdits; Write", WRITE, build_mode_flags("acceptEdits"), runs=True),
    Row("acceptEdits; Write elsewhere", WRITE_OUT, build_mode_flags("acceptEdits")),
    Row("acceptEdits; Write into .git", "[[write]] @.git/made", build_mode_flags("acceptEdits")),
    Row("default; Read elsewhere", READ_OUT, plain=True),
    Row("plan; Read", "[[read]] @secret/x", build_mode_flags("plan"), runs=True),
    Row("acceptEdits; Read elsewhere", READ_OUT, build_mode_flags("acceptEdits")),
    Row("acceptEdits, folder added; Write there", WRITE_OUT, build_mode_flags("acceptEdits", "--add-dir", "../out"),
        runs=True),
    Row("acceptEdits; redirect elsewhere", "[[shell]] echo x > ../out/made", build_mode_flags("acceptEdits")),
    Row("acceptEdits, allow Bash; a program", PROGRAM,
        build_mode_flags("acceptEdits", "--allowedTools", "Bash"), runs=True),
    Row("allow Bash; touch", TOUCH, ("--allowedTools", "Bash"), runs=True),
    Row("allow Bash(touch:*); touch", TOUCH, ("--allowedTools", "Bash(touch:*)"), runs=True),
    Row("allow Bash(touch:*); a program", PROGRAM, ("--allowedTools", "Bash(touch:*)"), plain=True),
    Row("allow Write; Write", WRITE, ("--allowedTools", "Write"), runs=True),
    Row("settings allow Bash; touch", TOUCH, settings=build_rules(allow=["Bash"]), runs=True),
    Row("deny Bash; touch", TOUCH, build_deny_flags("Bash")),
    Row("deny Bash; Write", WRITE, build_deny_flags("Bash"), runs=True),
    Row("deny Bash(touch:*); touch", TOUCH, build_deny_flags("Bash(touch:*)")),
    Row("deny Bash(touch:*); A=1 touch", "[[shell]] A=1 touch made", build_deny_flags("Bash(touch:*)")),
    Row("deny Bash(touch:*); timeout 5 touch", "[[shell]] timeout 5 touch made", build_deny_flags("Bash(touch:*)")),
    Row("deny Bash(touch:*); true && touch", "[[shell]] true && touch made", build_deny_flags("Bash(touch:*)")),
    Row("deny Bash(touch:*); $(touch)", "[[shell]] echo $(touch made)", build_deny_flags("Bash(touch:*)")),
    Row("deny Bash(touch:*); a program", PROGRAM, build_deny_flags("Bash(touch:*)"), runs=True),
    Row("deny Edit; Write", WRITE, build_deny_flags("Edit"), runs=True),
    Row("deny Edit(./secret/**); Write there", HIDDEN, build_deny_flags("Edit(./secret/**)")),
    Row("deny Edit(./secret/**); redirect there", "[[shell]] echo x > secret/made",
        build_deny_flags("Edit(./secret/**)")),
    Row("deny Edit(./secret/**); Write here", WRITE, build_deny_flags("Edit(./secret/**)"), runs=True),
    Row("deny Read(./secret/**); cat", "[[shell]] cat secret/x > made", build_deny_flags("Read(./secret/**)")),
    Row("bypass, ask Bash(touch:*); touch", TOUCH, BYPASS, build_rules(ask=["Bash(touch:*)"], allow=["Bash"])),
    Row("bypass is disabled; touch", TOUCH, BYPASS, build_rules(disableBypassPermissionsMode="disable")),
    Row("the user denies Bash; touch", TOUCH, BYPASS, files={"~/.claude/settings.json": build_rules(deny=["Bash"])}),
    Row("the project denies Bash; touch", TOUCH, BYPASS, files={".claude/settings.json": build_rules(deny=["Bash"])}),
    Row("a hook of the project; touch", TOUCH, BYPASS, files={".claude/settings.json": BLOCKS}),
    Row(
        "a hook of a trusted project; touch",
        TOUCH,
        BYPASS,
        files={".claude/settings.json": BLOCKS, "~/.claude.json": TRUSTED},
    ),
    Row("a hook of the user; touch", TOUCH, BYPASS, files={"~/.claude/settings.json": BLOCKS}),
    Row("a hook denies; touch", TOUCH, BYPASS, build_hook_settings(build_hook_command("deny"))),
    Row("a hook asks; touch", TOUCH, BYPASS, build_hook_settings(build_hook_command("ask"))),
    Row("a hook allows; touch", TOUCH, (), build_hook_settings(build_hook_command("allow")), runs=True),
    Row("a hook allows, deny Bash(touch:*); touch", TOUCH, build_deny_flags("Bash(touch:*)"),
        build_hook_settings(build_hook_command("allow"))),
    Row("a hook fails; touch", TOUCH, BYPASS, build_hook_settings("exit 1"), runs=True),
    Row("a hook blocks Write; touch", TOUCH, BYPASS, build_hook_settings("exit 2", "Write"), runs=True),
    Row("a hook blocks Write and Edit; Write", WRITE, BYPASS, build_hook_settings("exit 2", "Write|Edit")),
    Row("--tools Read; touch", TOUCH, (*BYPASS, "--tools", "Read")),
    Row("--tools Bash; touch", TOUCH, (*BYPASS, "--tools", "Bash"), runs=True),
    Row("no tools; touch", TOUCH, (*BYPASS, "--tools", "")),
)  # fmt: skip


def load_expected_outcomes() -> dict[tuple[str, str], str]:
    """Return row and vendor → outcome in the manual's table."""
    lines = [
        line.replace("`", "").strip("| ").split(" | ")
        for line in MANUAL.read_text().splitlines()
        if line.startswith("|")
    ]
    header, _, *rows = lines
    return {
        (row[0], column): cell
        for row in rows
        for column, cell in zip(header[1:], row[1:], strict=True)
    }

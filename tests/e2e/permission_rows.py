"""Rules and calls for the matrix of permissions, each with what the real claude does; and the table
of the manual.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MADE = "made"  # the file that a call makes when it runs
SECRET = "what nobody may read"  # in secret/x, and in ../out/x
BYPASS = ("--dangerously-skip-permissions",)
TOUCH = "[[shell]] touch made"
PROGRAM = "[[shell]] python3 -c \"open('made','w')\""
WRITE = "[[write]] @made"
READ_OUT = "[[read]] @../out/x"
WRITE_OUT = "[[write]] @../out/made"
HIDDEN = "[[write]] @secret/made"
RAN, NOT_RUN, REFUSED = "ran", "no", "refused"
UNASKED = "unasked"  # it ran: a vendor that asks nobody says so in `init`
MANUAL = Path(__file__).parents[2] / "shim" / "manual" / "permissions.md"


@dataclass(frozen=True)
class Row:
    """Rules and a call, which has "@" in front of a path below the folder.

    `runs`: the real claude runs it. `files` are settings files below home ("~") or the folder.
    `plain`: nothing but the mode default keeps it from running, so a vendor that asks nobody runs
    it too, and says so in `init`.
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

    def tools(self, reader: str) -> set[str]:
        """Claude's names of the tool that is called; `reader` is that of the vendor's own for
        files.
        """
        return {"[[shell]]": {"Bash"}, "[[write]]": {"Write", "Edit"}, "[[read]]": {reader}}[
            self.call.partition(" ")[0]
        ]


def mode(name: str, *more: str) -> tuple[str, ...]:
    return ("--permission-mode", name, *more)


def denied(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


def rules(**kinds: Any) -> dict[str, Any]:
    return {"permissions": kinds}


def hook(command: str, matcher: str = "") -> dict[str, Any]:
    return {
        "hooks": {
            "PreToolUse": [{"matcher": matcher, "hooks": [{"type": "command", "command": command}]}]
        }
    }


def answers(decision: str) -> str:
    said = {
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": "a test says so",
    }
    return f"echo '{json.dumps({'hookSpecificOutput': said})}'"


BLOCKS = hook("exit 2")
FOLDER = "FOLDER"  # in a file: the working directory
TRUSTED = {"projects": {FOLDER: {"hasTrustDialogAccepted": True}}}
ROWS = (
    Row("bypass; touch", TOUCH, BYPASS, runs=True),
    Row("bypass; Write", HIDDEN, BYPASS, runs=True),
    Row("default; touch", TOUCH, plain=True),
    Row("default; Write", WRITE, plain=True),
    Row("dontAsk; touch", TOUCH, mode("dontAsk")),
    Row("dontAsk, allow Bash; touch", TOUCH, mode("dontAsk", "--allowedTools", "Bash"), runs=True),
    Row("plan; touch", TOUCH, mode("plan")),
    Row("plan, allow Bash; touch", TOUCH, mode("plan", "--allowedTools", "Bash")),
    Row("acceptEdits; touch", TOUCH, mode("acceptEdits"), runs=True),
    Row("acceptEdits; a program", PROGRAM, mode("acceptEdits")),
    Row("acceptEdits; Write", WRITE, mode("acceptEdits"), runs=True),
    Row("acceptEdits; Write elsewhere", WRITE_OUT, mode("acceptEdits")),
    Row("acceptEdits; Write into .git", "[[write]] @.git/made", mode("acceptEdits")),
    Row("default; Read elsewhere", READ_OUT, plain=True),
    Row("plan; Read", "[[read]] @secret/x", mode("plan"), runs=True),
    Row("acceptEdits; Read elsewhere", READ_OUT, mode("acceptEdits")),
    Row("acceptEdits, folder added; Write there", WRITE_OUT, mode("acceptEdits", "--add-dir", "../out"), runs=True),
    Row("acceptEdits; redirect elsewhere", "[[shell]] echo x > ../out/made", mode("acceptEdits")),
    Row("acceptEdits, allow Bash; a program", PROGRAM, mode("acceptEdits", "--allowedTools", "Bash"), runs=True),
    Row("allow Bash; touch", TOUCH, ("--allowedTools", "Bash"), runs=True),
    Row("allow Bash(touch:*); touch", TOUCH, ("--allowedTools", "Bash(touch:*)"), runs=True),
    Row("allow Bash(touch:*); a program", PROGRAM, ("--allowedTools", "Bash(touch:*)"), plain=True),
    Row("allow Write; Write", WRITE, ("--allowedTools", "Write"), runs=True),
    Row("settings allow Bash; touch", TOUCH, settings=rules(allow=["Bash"]), runs=True),
    Row("deny Bash; touch", TOUCH, denied("Bash")),
    Row("deny Bash; Write", WRITE, denied("Bash"), runs=True),
    Row("deny Bash(touch:*); touch", TOUCH, denied("Bash(touch:*)")),
    Row("deny Bash(touch:*); A=1 touch", "[[shell]] A=1 touch made", denied("Bash(touch:*)")),
    Row("deny Bash(touch:*); timeout 5 touch", "[[shell]] timeout 5 touch made", denied("Bash(touch:*)")),
    Row("deny Bash(touch:*); true && touch", "[[shell]] true && touch made", denied("Bash(touch:*)")),
    Row("deny Bash(touch:*); $(touch)", "[[shell]] echo $(touch made)", denied("Bash(touch:*)")),
    Row("deny Bash(touch:*); a program", PROGRAM, denied("Bash(touch:*)"), runs=True),
    Row("deny Edit; Write", WRITE, denied("Edit"), runs=True),
    Row("deny Edit(./secret/**); Write there", HIDDEN, denied("Edit(./secret/**)")),
    Row("deny Edit(./secret/**); redirect there", "[[shell]] echo x > secret/made", denied("Edit(./secret/**)")),
    Row("deny Edit(./secret/**); Write here", WRITE, denied("Edit(./secret/**)"), runs=True),
    Row("deny Read(./secret/**); cat", "[[shell]] cat secret/x > made", denied("Read(./secret/**)")),
    Row("bypass, ask Bash(touch:*); touch", TOUCH, BYPASS, rules(ask=["Bash(touch:*)"], allow=["Bash"])),
    Row("bypass is disabled; touch", TOUCH, BYPASS, rules(disableBypassPermissionsMode="disable")),
    Row("the user denies Bash; touch", TOUCH, BYPASS, files={"~/.claude/settings.json": rules(deny=["Bash"])}),
    Row("the project denies Bash; touch", TOUCH, BYPASS, files={".claude/settings.json": rules(deny=["Bash"])}),
    Row("a hook of the project; touch", TOUCH, BYPASS, files={".claude/settings.json": BLOCKS}),
    Row(
        "a hook of a trusted project; touch",
        TOUCH,
        BYPASS,
        files={".claude/settings.json": BLOCKS, "~/.claude.json": TRUSTED},
    ),
    Row("a hook of the user; touch", TOUCH, BYPASS, files={"~/.claude/settings.json": BLOCKS}),
    Row("a hook denies; touch", TOUCH, BYPASS, hook(answers("deny"))),
    Row("a hook asks; touch", TOUCH, BYPASS, hook(answers("ask"))),
    Row("a hook allows; touch", TOUCH, (), hook(answers("allow")), runs=True),
    Row("a hook allows, deny Bash(touch:*); touch", TOUCH, denied("Bash(touch:*)"), hook(answers("allow"))),
    Row("a hook fails; touch", TOUCH, BYPASS, hook("exit 1"), runs=True),
    Row("a hook blocks Write; touch", TOUCH, BYPASS, hook("exit 2", "Write"), runs=True),
    Row("a hook blocks Write and Edit; Write", WRITE, BYPASS, hook("exit 2", "Write|Edit")),
    Row("--tools Read; touch", TOUCH, (*BYPASS, "--tools", "Read")),
    Row("--tools Bash; touch", TOUCH, (*BYPASS, "--tools", "Bash"), runs=True),
    Row("no tools; touch", TOUCH, (*BYPASS, "--tools", "")),
)  # fmt: skip


def told() -> dict[tuple[str, str], str]:
    """What the manual's table says: row and vendor → outcome."""
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

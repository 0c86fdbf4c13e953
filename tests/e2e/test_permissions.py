"""Nothing runs below the drop-in that the real claude would not have run: the same flags, real vendors.

Each row has rules and a call that the scripted model makes. What the real claude does with it is known
(`tests/core/policy/judged.toml`, permission-parity page); here the call's file tells whether the vendor ran it. A
vendor that cannot be kept to a rule is refused before it starts, with the rule's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from frontend import Frontend, Run
from scripts import ScriptedServer
from vendor_setups import PI, QWEN, VENDORS, Vendor

pytestmark = pytest.mark.e2e

MADE = "made"
HIDDEN = "what nobody may read"
BYPASS = ("--dangerously-skip-permissions",)
ALLOWS = {"permissions": {"allow": ["Bash", "Write", "Edit", "Read"]}}


@dataclass(frozen=True)
class Row:
    """Rules and a call, which has "@" in front of a path below the folder.

    `runs`: the real claude runs it. `files` are settings files below home ("~") or the folder.
    """

    name: str
    call: str
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: bool = False

    def __str__(self) -> str:
        return self.name


def denied(rule: str) -> tuple[str, ...]:
    return (*BYPASS, "--disallowedTools", rule)


def permissions(**rules: Any) -> dict[str, Any]:
    return {"permissions": rules}


TOUCH = "[[shell]] touch made"
FORBIDDEN = (
    Row("a whole tool", TOUCH, denied("Bash")),
    Row("W4 a rule that asks", TOUCH, BYPASS, permissions(ask=["Bash(touch:*)"], allow=["Bash"])),
    Row("W5 a change by another tool", "[[write]] @secret/made", denied("Edit(./secret/**)")),
    Row("W6 behind a variable", "[[shell]] A=1 touch made", denied("Bash(touch:*)")),
    Row("W6 behind a wrapper", "[[shell]] timeout 5 touch made", denied("Bash(touch:*)")),
    Row("W7 a forbidden mode", TOUCH, BYPASS, permissions(disableBypassPermissionsMode="disable")),
    Row("W13 the user's file", TOUCH, BYPASS, files={"~/.claude/settings.json": permissions(deny=["Bash"])}),
    Row("W13 the project's file", TOUCH, BYPASS, files={".claude/settings.json": permissions(deny=["Bash(touch:*)"])}),
    Row("W14 a project's hook", TOUCH, BYPASS, files={
        ".claude/settings.json": {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "exit 2"}]}]}},
    }),
    Row("W16 a redirection", "[[shell]] echo x > secret/made", denied("Edit(./secret/**)")),
    Row("a choice of tools", TOUCH, (*BYPASS, "--tools", "Read")),
)  # fmt: skip


def run(frontend: Frontend, vendor: Vendor, row: Row) -> Run:
    (frontend.folder / "secret").mkdir()
    for place, settings in row.files.items():
        home = Path(frontend.environment["HOME"])
        path = home / place[2:] if place.startswith("~/") else frontend.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    given = [] if row.settings is None else ["--settings", json.dumps(row.settings)]
    script, at, path = row.call.partition("@")
    named = path if vendor.relative_paths else str(frontend.folder / path)
    return frontend.run(script + (named if at else ""), *row.flags, *given)


def made(frontend: Frontend) -> list[Path]:
    return list(frontend.folder.rglob(MADE))


def cells(rows: Sequence[Row]) -> pytest.MarkDecorator:
    """Each row with each vendor; two vendors stand for all, and for each other vendor its first row."""
    found = [
        pytest.param(
            vendor, row, id=f"{vendor}-{row}", marks=[pytest.mark.full] * (vendor not in (QWEN, PI) and row != rows[0])
        )
        for vendor in VENDORS
        for row in rows
    ]
    return pytest.mark.parametrize(("vendor", "row"), found, indirect=["vendor"])


@cells(FORBIDDEN)
def test_what_the_real_claude_would_not_have_run_does_not_run(
    frontend: Frontend, model: ScriptedServer, vendor: Vendor, row: Row
) -> None:
    done = run(frontend, vendor, row)
    assert made(frontend) == []
    if done.exit != 0 and done.result["shim"]["cause"] == "refused":
        assert not model.requests, "a vendor that is refused is never started"
        assert any(word in done.result["errors"][0] for word in ("cannot", "runs no hook", "forbidden"))


WANTED = (
    Row("N1 an allowed tool", TOUCH, ("--allowedTools", "Bash"), runs=True),
    Row("N1 an allowed command", TOUCH, ("--allowedTools", "Bash(touch:*)"), runs=True),
)


@pytest.mark.parametrize("row", WANTED, ids=str)
@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_what_the_rules_allow_runs(frontend: Frontend, model: ScriptedServer, vendor: Vendor, row: Row) -> None:
    done = run(frontend, vendor, row)
    assert done.exit == 0, done.result
    assert made(frontend) != [], done.tool_results

"""Rules and calls, with the decision of the real claude about each call
(`tests/core/policy/judged.toml`).

A call is written as "VERDICT: TOOL ARGUMENT", or as "VERDICT (OURS): TOOL ARGUMENT" if the shim is
intentionally stricter.
"""

from __future__ import annotations

import functools
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.state.claude_settings import load_claude_settings

CASES = Path(__file__).parents[1] / "core" / "policy" / "judged.toml"
PATHS = ("Read", "Write", "Edit")
ARGUMENTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "Bash": lambda argument: {"command": argument, "description": "what the test asked for"},
    "Read": lambda argument: {"file_path": argument},
    "Write": lambda argument: {"file_path": argument, "content": "x"},
    "Edit": lambda argument: {"file_path": argument, "old_string": "notes", "new_string": "x"},
    "WebFetch": lambda argument: {"url": argument, "prompt": "p"},
}


@dataclass(frozen=True)
class Judged:
    """A call with the decisions of the real claude and of the shim."""

    tool: str
    argument: str
    theirs: str
    ours: str

    def build_call(self, root: Path) -> tuple[str, dict[str, Any]]:
        argument = str(root / "work" / self.argument) if self.tool in PATHS else self.argument
        return self.tool, ARGUMENTS[self.tool](argument)


@dataclass(frozen=True)
class Case:
    """Rules, as flags and settings files, and calls under these rules.

    `top` and `top_local` are the project's and the local settings file of the repository. The
    working directory is a subfolder of it.
    """

    name: str
    calls: tuple[Judged, ...]
    mode: str = "default"
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    user: Mapping[str, Any] | None = None
    project: Mapping[str, Any] | None = None
    local: Mapping[str, Any] | None = None
    top: Mapping[str, Any] | None = None
    top_local: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return self.name

    def build_args(self, root: Path) -> list[str]:
        """Return the flags with the rules of this case."""
        args = [*self.flags, "--permission-mode", self.mode]
        if self.settings is not None:
            args += ["--settings", json.dumps(self.settings)]
        return [arg.replace("$ROOT", str(root)) for arg in args]

    def write_files(self, root: Path) -> None:
        """Write the files of the calls and the settings files into the folder of this test."""
        files = {
            "work/secret/x": "hidden\n",
            "work/notes.txt": "notes\n",
            "work/sub/a.txt": "a\n",
            "out/o.txt": "o\n",
        }
        settings = {
            "home/.claude/settings.json": self.user,
            "work/.claude/settings.json": self.project,
            "work/.claude/settings.local.json": self.local,
            ".claude/settings.json": self.top,
            ".claude/settings.local.json": self.top_local,
        }
        if self.top_local is not None:
            files[".git"] = "gitdir: elsewhere\n"
        files |= {
            name: json.dumps(content) for name, content in settings.items() if content is not None
        }
        (root / "home").mkdir(exist_ok=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        os.symlink(root / "work/secret", root / "work/alias")
        os.symlink("/etc", root / "work/etc")

    def build_policy(self, root: Path) -> Policy:
        """Build the shim's policy for the same flags and files."""
        invocation = parse_argv(self.build_args(root))
        work, home = str(root / "work"), str(root / "home")
        claude_settings = load_claude_settings(invocation, {"HOME": home}, work)
        return Policy(
            workspace=Workspace(
                work, home, (*invocation.add_dirs, *claude_settings.directories), os.path.realpath
            ),
            only_tools=invocation.tools,
            deny=(
                *parse_permission_rules(invocation.disallowed_tools),
                *claude_settings.deny,
            ),
            ask=claude_settings.ask,
            allow=(*parse_permission_rules(invocation.allowed_tools), *claude_settings.allow),
        )


@functools.cache
def load_cases() -> list[Case]:
    return [
        Case(**table | _convert_lists(table)) for table in tomllib.loads(CASES.read_text())["case"]
    ]


def _convert_lists(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "flags": tuple(table.get("flags", ())),
        "calls": tuple(map(_parse_call, table["calls"])),
    }


def _parse_call(line: str) -> Judged:
    verdicts, _, call_text = line.partition(": ")
    theirs, _, ours = verdicts.rstrip(")").partition(" (")
    return Judged(*call_text.partition(" ")[::2], theirs, ours or theirs)

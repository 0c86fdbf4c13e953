"""Rules and calls, and what the real claude did with each call (`tests/core/policy/judged.toml`).

A call stands there as "VERDICT: TOOL ARGUMENT", or "VERDICT (OURS): TOOL ARGUMENT" where we are
stricter on purpose.
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

from shim.core.claude.argv.parse import parse_argv
from shim.core.policy.place import Workspace
from shim.core.policy.policy import Policy
from shim.core.policy.rules import parse_rules
from shim.state.claude_settings import load_settings

CASES = Path(__file__).parents[1] / "core" / "policy" / "judged.toml"
PATHS = ("Read", "Write", "Edit")
ARGUMENTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "Bash": lambda said: {"command": said, "description": "what the test asked for"},
    "Read": lambda said: {"file_path": said},
    "Write": lambda said: {"file_path": said, "content": "x"},
    "Edit": lambda said: {"file_path": said, "old_string": "notes", "new_string": "x"},
    "WebFetch": lambda said: {"url": said, "prompt": "p"},
}


@dataclass(frozen=True)
class Judged:
    """A call, what the real claude did with it, and what we do."""

    tool: str
    argument: str
    theirs: str
    ours: str

    def build_call(self, root: Path) -> tuple[str, dict[str, Any]]:
        said = str(root / "work" / self.argument) if self.tool in PATHS else self.argument
        return self.tool, ARGUMENTS[self.tool](said)


@dataclass(frozen=True)
class Case:
    """Rules, as flags and settings files, and calls under them.

    `top` and `top_local` are the project's and the local file of the repository whose sub folder is
    worked in.
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
        """The flags that say this case's rules."""
        given = [*self.flags, "--permission-mode", self.mode]
        if self.settings is not None:
            given += ["--settings", json.dumps(self.settings)]
        return [word.replace("$ROOT", str(root)) for word in given]

    def write_files(self, root: Path) -> None:
        """The files that the calls are about, and the settings files, below a folder of this test."""
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
        files |= {name: json.dumps(given) for name, given in settings.items() if given is not None}
        (root / "home").mkdir(exist_ok=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        os.symlink(root / "work/secret", root / "work/alias")
        os.symlink("/etc", root / "work/etc")

    def build_policy(self, root: Path) -> Policy:
        """Our policy under the same flags and files."""
        invocation = parse_argv(self.build_args(root))
        work, home = str(root / "work"), str(root / "home")
        settled = load_settings(invocation, {"HOME": home}, work)
        return Policy(
            workspace=Workspace(
                work, home, (*invocation.add_dirs, *settled.directories), os.path.realpath
            ),
            only_tools=invocation.rules.tools,
            deny=(*parse_rules(invocation.rules.disallowed_tools), *settled.deny),
            ask=settled.ask,
            allow=(*parse_rules(invocation.rules.allowed_tools), *settled.allow),
        )


@functools.cache
def load_cases() -> list[Case]:
    return [
        Case(**given | _convert_lists(given)) for given in tomllib.loads(CASES.read_text())["case"]
    ]


def _convert_lists(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "flags": tuple(given.get("flags", ())),
        "calls": tuple(map(_parse_call, given["calls"])),
    }


def _parse_call(line: str) -> Judged:
    verdicts, _, said = line.partition(": ")
    theirs, _, ours = verdicts.rstrip(")").partition(" (")
    return Judged(*said.partition(" ")[::2], theirs, ours or theirs)

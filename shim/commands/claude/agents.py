"""`claude agents`: the sessions that live on their own, for programs (`--json`) and for people (B15
to B18).

A program asks for the list again and again: this imports little, and starts nothing.
"""

import os
from collections.abc import Sequence
from typing import Any

import orjson

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.commands.claude.answers import Answer, disabled, refused

NO_TERMINAL = (
    "'claude agents' requires an interactive terminal (output is piped or redirected) — use 'claude agents --json' "
    "for a machine-readable list."
)
TOO_MANY = "error: too many arguments for 'agents'. Expected 0 arguments but got {count}."
MISSING = "error: option '{option}' argument missing"
UNKNOWN = "error: unknown option '{option}'"
SWITCHES = (
    *("--json", "--all", "--allow-dangerously-skip-permissions", "--dangerously-skip-permissions"),
    *("--restricted", "--strict-mcp-config"),
)
# What the real one gives to sessions that are begun in its list, and how it spells that in an
# error.
VALUES = {
    "--cwd": "--cwd <path>",
    "--add-dir": "--add-dir <directory>",
    "--agent": "--agent <agent>",
    "--effort": "--effort <level>",
    "--mcp-config": "--mcp-config <config>",
    "--model": "--model <model>",
    "--permission-mode": "--permission-mode <mode>",
    "--plugin-dir": "--plugin-dir <path>",
    "--setting-sources": "--setting-sources <sources>",
    "--settings": "--settings <file-or-json>",
}


def agents(words: Sequence[str]) -> Answer:
    """The answer to `claude agents WORDS`."""
    given: dict[str, str] = {}
    others, ahead = [], list(reversed(words))
    while ahead:
        name, equals, value = ahead.pop().partition("=")
        if name in VALUES:
            if not equals and not ahead:
                return refused(MISSING.format(option=VALUES[name]))
            given[name] = value if equals else ahead.pop()
        elif name in SWITCHES and not equals:
            given[name] = ""
        elif name.startswith("-"):
            return refused(UNKNOWN.format(option=name + equals + value))
        else:
            others.append(name)
    if others:
        return refused(TOO_MANY.format(count=len(others)))
    if "--json" not in given and not os.isatty(1):
        return refused(NO_TERMINAL)
    if off := disabled("claude agents --json" if "--json" in given else "claude agents"):
        return off
    found = listed(
        registry.list_sessions(os.environ), everything="--all" in given, below=given.get("--cwd")
    )
    if "--json" in given:
        return Answer(
            orjson.dumps([report(one) for one in found], option=orjson.OPT_INDENT_2).decode() + "\n"
        )
    from shim.commands.sessions.listing import drawn, none

    return Answer(
        drawn(found) if found else none(everything="--all" in given, below=given.get("--cwd"))
    )


def listed(
    found: Sequence[SessionRecord], *, everything: bool, below: str | None
) -> list[SessionRecord]:
    """Those that live, or all of them, at or below a folder; the oldest first, as the real one has
    them.
    """
    folder = None if below is None else os.path.join(os.path.realpath(below), "")
    return [
        one
        for one in reversed(found)
        if (one.is_running or everything)
        and (
            folder is None
            or os.path.join(os.path.realpath(one.metadata["cwd"]), "").startswith(folder)
        )
    ]


def report(one: SessionRecord) -> dict[str, Any]:
    """A session in the real one's words and order. What is not known is left out."""
    facts = one.metadata
    life = (
        {"status": facts.get("status"), "waitingFor": facts.get("waitingFor")}
        if one.is_running
        else {}
    )
    told = {
        "pid": facts.get("pid") if one.is_running else None,
        "id": one.short_id,
        "cwd": facts["cwd"],
        "kind": "background",
        "startedAt": facts["started"] if one.is_running else facts["created"],
        "sessionId": one.session_id,
        "name": facts.get("name") or (one.short_id if one.is_running else None),
        **life,
        "state": facts["state"],
    }
    return {name: value for name, value in told.items() if value is not None}

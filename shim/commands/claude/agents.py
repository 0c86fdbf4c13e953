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
from shim.commands.claude.answers import CommandOutput, build_refusal, check_disabled

NO_TERMINAL_TEXT = (
    "'claude agents' requires an interactive terminal (output is piped or redirected) — use 'claude agents --json' "
    "for a machine-readable list."
)
TOO_MANY_TEXT = "error: too many arguments for 'agents'. Expected 0 arguments but got {count}."
MISSING_TEXT = "error: option '{option}' argument missing"
UNKNOWN_TEXT = "error: unknown option '{option}'"
SWITCH_FLAGS = (
    *("--json", "--all", "--allow-dangerously-skip-permissions", "--dangerously-skip-permissions"),
    *("--restricted", "--strict-mcp-config"),
)
# What the real one gives to sessions that are begun in its list, and how it spells that in an
# error.
VALUE_FLAGS = {
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


def answer_agents(words: Sequence[str]) -> CommandOutput:
    """The answer to `claude agents WORDS`."""
    given: dict[str, str] = {}
    others, ahead = [], list(reversed(words))
    while ahead:
        name, equals, value = ahead.pop().partition("=")
        if name in VALUE_FLAGS:
            if not equals and not ahead:
                return build_refusal(MISSING_TEXT.format(option=VALUE_FLAGS[name]))
            given[name] = value if equals else ahead.pop()
        elif name in SWITCH_FLAGS and not equals:
            given[name] = ""
        elif name.startswith("-"):
            return build_refusal(UNKNOWN_TEXT.format(option=name + equals + value))
        else:
            others.append(name)
    if others:
        return build_refusal(TOO_MANY_TEXT.format(count=len(others)))
    if "--json" not in given and not os.isatty(1):
        return build_refusal(NO_TERMINAL_TEXT)
    if off := check_disabled("claude agents --json" if "--json" in given else "claude agents"):
        return off
    found = select_sessions(
        registry.list_sessions(os.environ), everything="--all" in given, below=given.get("--cwd")
    )
    if "--json" in given:
        return CommandOutput(
            orjson.dumps([build_report(one) for one in found], option=orjson.OPT_INDENT_2).decode()
            + "\n"
        )
    from shim.commands.sessions.listing import describe_no_sessions, format_session_table

    return CommandOutput(
        format_session_table(found)
        if found
        else describe_no_sessions(includes_ended="--all" in given, folder=given.get("--cwd"))
    )


def select_sessions(
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


def build_report(one: SessionRecord) -> dict[str, Any]:
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

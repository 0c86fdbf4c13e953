"""Scenes of the page of background sessions: stand-ins for hosts that play what a picture or a test
needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from gateway_harness import StandIn
from session_builder import (
    BEFORE,
    NEW,
    OLD,
    SESSION,
    SessionBuilder,
    build_full_session,
    build_long_session,
)

HOUR = 3_600_000
NOW = round(time.time() * 1000)
COMMAND = "python -m pytest -q tests/test_posts.py --maxfail=1 && git commit -am 'Load the authors at once'"
TESTS = {"toolName": "Bash", "ruleContent": "python -m pytest:*"}
RULES = [{"type": "addRules", "behavior": "allow", "destination": "session", "rules": [TESTS]}]
CHOICE = [
    {
        "question": "Which cache shall the list of posts use?",
        "header": "Cache",
        "multiSelect": False,
        "options": [
            {"label": "None", "description": "One query for a page is quick enough"},
            {"label": "In memory", "description": "A minute, bounded by the number of pages"},
            {"label": "Redis", "description": "Shared by all workers; one more thing to run"},
        ],
    }
]


MODELS = [  # with names as long as vendors give them
    {"value": "qwen3-coder-plus", "displayName": "Qwen3 Coder Plus (480B, long context)"},
    {"value": "qwen3-coder-flash", "displayName": "Qwen3 Coder Flash"},
]
CODEX_MODELS = [
    {"value": "gpt-5.2-codex", "displayName": "GPT-5.2 Codex"},
    {"value": "gpt-5.2-codex-mini", "displayName": "GPT-5.2 Codex Mini"},
]


def iterate_script_lines(
    script: SessionBuilder, *, until: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a host for a script: complete lines, with replayed prompts."""
    for _, letter, line in script.moments[:until]:
        event = json.loads(line) if isinstance(line, bytes) else line
        if letter == "i" and event.get("type") == "user":
            yield {**event, "isReplay": True, "session_id": SESSION}
        elif letter == "O" and event.get("type") not in ("stream_event", "control_request"):
            yield event


def build_host(session: str, script: SessionBuilder, **metadata: Any) -> StandIn:
    """Build a host that has played a complete script."""
    host = StandIn(session, **metadata)
    for line in iterate_script_lines(script):
        host.lines.append((NOW - 600_000 + 1000 * len(host.lines), json.dumps(line).encode()))
    return host


def build_session_id(number: int) -> str:
    """Build the UUID of a session."""
    return f"{number * 0x1F3B57D9 % 2**32:08x}-3fc4-4552-9501-5efd4f447c62"


def rename_host(host: StandIn, number: int, **metadata: Any) -> StandIn:
    """Return the same host for another session."""
    host.metadata.update(
        id=build_session_id(number)[:8], session=build_session_id(number), **metadata
    )
    return host


def build_working_host() -> StandIn:
    """Build a session with a running turn."""
    metadata = {
        "name": "Make the list of posts faster",
        "vendor": "qwen",
        "cwd": "/home/you/blog",
        "version": "0.1.0",
    }
    metadata |= {
        "state": "working",
        "status": "busy",
        "detail": "Edit posts.py",
        "models": MODELS,
        "model": "qwen3-coder-plus",
    }
    return build_host(
        build_session_id(2),
        build_full_session(),
        **metadata,
        created=NOW - HOUR,
        started=NOW - HOUR,
    )


def build_unfinished_script() -> SessionBuilder:
    """Build the script of a session that has changed a file and is about to test it."""
    script = (
        SessionBuilder()
        .add_prompt("The list of posts takes three seconds. Make it faster.")
        .advance_time(0.2)
        .add_init(model="gpt-5.2-codex")
    )
    script.advance_time(2.0).add_message(
        {
            "type": "thinking",
            "thinking": "They load an author for each row. I look at the code first.",
        }
    )
    script.advance_time(0.4).add_text("I'll look at where the time goes.")
    read = script.add_call("Read", {"file_path": "/home/you/blog/posts.py"})
    lines = "\n".join(f"{n}\t{line}" for n, line in enumerate(BEFORE.split("\n"), 1))
    script.advance_time(0.3).add_tool_result(read, lines).advance_time(1.1)
    script.add_text(
        "The list asks for an author **once for each row**: 1,000 rows are 1,001 queries. I load all of them at once."
    )
    call = script.add_call(
        "Edit", {"file_path": "/home/you/blog/posts.py", "old_string": OLD, "new_string": NEW}
    )
    script.advance_time(0.1).add_tool_result(
        call, "The file was updated.", tool_use_result={"originalFile": BEFORE}
    ).advance_time(1.0)
    return script.add_text("Let me try it, and keep it if the tests pass.")


def build_asking_host(**request: Any) -> StandIn:
    """Build a session that requests permission for a command."""
    metadata = {
        "name": "Commit the faster list",
        "vendor": "codex",
        "status": "waiting",
        "state": "blocked",
    }
    metadata |= {"waitingFor": "permission prompt", "needs": f"approve Bash: {COMMAND}"}
    metadata |= {"cwd": "/home/you/blog", "created": NOW - HOUR, "started": NOW - HOUR}
    metadata |= {"models": CODEX_MODELS, "model": "gpt-5.2-codex", "mode": "acceptEdits"}
    host = build_host(build_session_id(3), build_unfinished_script(), **metadata)
    command = {"command": COMMAND, "description": "Run the tests, then commit"}
    host.add_prompt(
        "q1", **{"tool_name": "Bash", "input": command, "permission_suggestions": RULES, **request}
    )
    return host


def build_choosing_host() -> StandIn:
    """Build a session whose model asks a question with options."""
    host = build_asking_host(
        tool_name="AskUserQuestion", input={"questions": CHOICE}, permission_suggestions=None
    )
    needs = "answer: Which cache shall the list of posts use? (None · In memory · Redis)"
    metadata = {"name": "Choose a cache", "waitingFor": "input needed", "needs": needs}
    return rename_host(host, 4, vendor="claude", model="claude-opus-5-5", models=[], **metadata)


def build_editing_host() -> StandIn:
    """Build a session that requests permission for an edit."""
    change = {"file_path": "/home/you/blog/posts.py", "old_string": OLD, "new_string": NEW}
    host = build_asking_host(tool_name="Edit", input=change)
    metadata = {"name": "One query for a page", "needs": "approve Edit: /home/you/blog/posts.py"}
    return rename_host(host, 5, vendor="gemini", model="gemini-3-pro", models=[], **metadata)


def build_other_hosts() -> list[StandIn]:
    """Build the other sessions in the list."""
    rows = [
        ("pi", "Update the dependencies", "/home/you/shop", "working", "busy", "Bash npm test"),
        (
            "opencode",
            "Explain the build",
            "/home/you/shop",
            "done",
            "idle",
            "The build has three stages",
        ),
        (
            "demo",
            "make greet.py nicer",
            "/home/you/hello",
            "done",
            "idle",
            "Done: `greet` is typed",
        ),
        (
            "qwen",
            "Translate the manual",
            "/home/you/blog",
            "failed",
            None,
            "API Error: 429 rate limited",
        ),
        ("claude", "Find the memory leak", "/srv/api", "stopped", None, ""),
        (
            "codex",
            "Write the release notes",
            "/home/you/shop",
            "done",
            None,
            "The notes are in CHANGES.md",
        ),
    ]
    names = ("vendor", "name", "cwd", "state", "status", "detail")
    hosts = []
    for number, row in enumerate(rows, 6):
        metadata = dict(zip(names, row, strict=True))
        when = {
            "created": NOW - number * HOUR,
            "started": NOW - number * HOUR,
            "alive": row[4] is not None,
        }
        script = SessionBuilder().add_prompt(row[1]).add_init().add_text(row[5]).add_result(row[5])
        hosts.append(build_host(build_session_id(number), script, **metadata, **when))
    return hosts


def build_long_host(calls: int) -> StandIn:
    """Build a session with four lines for each call."""
    return build_host(
        build_session_id(12),
        build_long_session(calls),
        name="Read everything",
        vendor="qwen",
        status="idle",
        state="done",
    )

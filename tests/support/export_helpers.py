"""Helpers for tests of exports: recordings in files, exports as bytes, and a session with a secret
of each kind.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import orjson
from cast_builder import Moment, build_recording
from fake_secrets import BARE
from story_builder import build_text_block, build_tool_use

SECRETS = [secrets[0] for kind, secrets in BARE.items() if "\n" not in secrets[0]]


class Export(Protocol):
    """The function of an export."""

    def __call__(self, path: str, write: Callable[[bytes], None], *, redact: bool) -> None: ...


def export_recording(
    export: Export, folder: Path, cast: bytes, *, redact: bool = False, **options: Any
) -> bytes:
    """Return the export of a recording."""
    file = folder / "one.cast"
    file.write_bytes(cast)
    chunks: list[bytes] = []
    export(str(file), chunks.append, redact=redact, **options)
    return b"".join(chunks)


def encode_events(*events: dict[str, Any]) -> bytes:
    """Encode events as the lines of a stream."""
    return b"".join(orjson.dumps(event) + b"\n" for event in events)


def build_init_line(**fields: Any) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "init",
        "session_id": "s-1",
        "model": "m-1",
        "tools": ["Bash"],
    } | fields


def build_assistant_line(
    message_id: str, *content: dict[str, Any], parent: str | None = None, **message: Any
) -> dict[str, Any]:
    return {
        "type": "assistant",
        "message": {"id": message_id, "model": "m-1", "content": list(content)} | message,
        "parent_tool_use_id": parent,
    }


def build_thinking_block(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content}


def build_tool_result_line(
    call_id: str, content: Any = "done", *, failed: bool = False, parent: str | None = None
) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return {
        "type": "user",
        "message": {"role": "user", "content": [block]},
        "parent_tool_use_id": parent,
    }


def build_user_line(content: str, parent: str | None = None) -> dict[str, Any]:
    """Build a user line."""
    return {
        "type": "user",
        "message": {"role": "user", "content": [build_text_block(content)]},
        "parent_tool_use_id": parent,
    }


def build_result_line(**fields: Any) -> dict[str, Any]:
    return {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "done",
        "usage": {},
    } | fields


def build_delta_line(fragment: str) -> dict[str, Any]:
    inner = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": fragment},
    }
    return {"type": "stream_event", "event": inner, "parent_tool_use_id": None}


def build_session(*moments: tuple[float, dict[str, Any]], end: bool = True, **header: Any) -> bytes:
    """Build a recording in which the frontend received these events at these times."""
    return build_recording(
        [(at, "O", encode_events(event)) for at, event in moments], end=end, **header
    )


def build_session_with_secret(secret: str) -> bytes:
    """Build a session with a secret in each place where a text may be: prompt, texts, calls,
    results, errors, permission prompts.
    """
    question = {
        "subtype": "can_use_tool",
        "tool_name": "Bash",
        "input": {"command": secret},
        "tool_use_id": "c1",
    }
    start = {"type": "message_start", "message": {"id": "m2", "model": "m-1", "usage": {}}}
    half = len(secret) // 2
    events = [
        build_init_line(cwd=f"/home/{secret}", session_id=f"s {secret} s", model=f"m {secret} m"),
        build_assistant_line(
            "m1",
            build_thinking_block(f"hm {secret} hm"),
            build_text_block(f"so {secret} so"),
            build_tool_use("c1", command=f"echo {secret}"),
        ),
        {"type": "control_request", "request_id": "r1", "request": question},
        build_tool_result_line("c1", [build_text_block(f"it was {secret} .")], failed=True),
        {"type": "stream_event", "event": start, "parent_tool_use_id": None},
        build_delta_line(f"in two {secret[:half]}"),
        build_delta_line(f"{secret[half:]} pieces"),
        {
            "type": "stream_event",
            "event": {"type": "content_block_stop", "index": 0},
            "parent_tool_use_id": None,
        },
        build_assistant_line("m2", build_text_block(f"in two {secret} pieces")),
        build_user_line(f"the user said {secret} ."),
        build_assistant_line("m3", build_text_block(f"it failed: {secret}"), model="<synthetic>")
        | {"error": "unknown"},
        build_result_line(
            is_error=True,
            subtype="error_during_execution",
            errors=[f"no {secret} there"],
            result=secret,
        ),
    ]
    argv = [
        "-p",
        "--output-format",
        "stream-json",
        "--include-partial-messages",
        "--verbose",
        f"use {secret} now",
    ]
    moments: list[Moment] = [
        (0.1 * number, "O", encode_events(event)) for number, event in enumerate(events)
    ]
    moments += [(2.0, "O", f"not JSON: {secret} .\n".encode()), (2.0, "e", f"{secret}\n".encode())]
    return build_recording(moments, argv=argv, cwd=f"/home/{secret}")

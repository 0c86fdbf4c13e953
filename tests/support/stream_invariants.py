"""The rules that hold for every stream of the shim (S1 to S18 of the contract)."""

import json
from collections.abc import Sequence

import orjson
from result_consistency import check_truth
from stream_lines import TERMINATOR, Line

from shim.core.claude.writer import NO_USAGE
from shim.core.turn.context import MAX_USED_IDS

SEPARATORS = ("\u2028", "\u2029", "\x85")

CONVERSATION = ("assistant", "user", "stream_event", "result")

INIT_KEYS = (
    "cwd",
    "session_id",
    "tools",
    "mcp_servers",
    "model",
    "permissionMode",
    "slash_commands",
    "apiKeySource",
    "claude_code_version",
    "output_style",
    "agents",
    "skills",
    "plugins",
    "analytics_disabled",
    "product_feedback_disabled",
    "uuid",
    "fast_mode_state",
)

# The fields of a result that the SDKs and the ACP adapter require together (S9).
RESULT_KEYS = (
    "subtype",
    "is_error",
    "duration_ms",
    "duration_api_ms",
    "num_turns",
    "stop_reason",
    "session_id",
    "total_cost_usd",
    "usage",
    "modelUsage",
    "permission_denials",
    "uuid",
)

ERRORS = (
    "authentication_failed",
    "oauth_org_not_allowed",
    "account_on_hold",
    "verification_required",
    "billing_error",
    "rate_limit",
    "overloaded",
    "invalid_request",
    "model_not_found",
    "server_error",
    "unknown",
    "max_output_tokens",
    "cloud_credential_error",
)

TASK_KEYS = {
    "task_started": ("task_id", "description"),
    "task_progress": ("task_id", "description", "usage"),
    "task_notification": ("task_id", "status", "output_file", "summary"),
    "compact_boundary": ("compact_metadata",),
    "api_retry": ("attempt", "max_retries", "retry_delay_ms", "error_status", "error"),
}


def check_frames(data: bytes, *, limit: int = 0) -> list[list[Line]]:
    """Assert the rules that hold even for a broken stream of a real claude: valid lines, and for
    each turn one init, one result and one terminator.

    Return the turns, split at the terminator. No line is longer than `limit` bytes (0: no limit).
    """
    lines = _parse_checked_lines(data, limit)
    assert lines and lines[-1] == TERMINATOR, "the stream ends with the terminator"
    turns: list[list[Line]] = [[]]
    for line in lines:
        turns[-1].append(line)
        if line == TERMINATOR:
            turns.append([])
    assert turns.pop() == [], "nothing follows the last terminator"
    for turn in turns:
        _check_frame(turn)
    return turns


def check_turns(
    data: bytes, partial: bool, *, passthrough: bool = False, limit: int = 0
) -> list[list[Line]]:
    """Assert the rules that hold for every stream of the shim and any output of a vendor. Return
    the turns.

    These are S1 to S18 of the contract, as far as a program can check them. With `passthrough`
    (lines of a real claude), only rules that claude itself follows are checked. `limit` is that of
    `check_frames`.
    """
    turns = check_frames(data, limit=limit)
    for turn in turns:
        _check_pairs(turn)
        if partial:
            _check_stream(turn, passthrough)
        else:
            assert not any(line["type"] == "stream_event" for line in turn), (
                "no stream_event unless asked for (S12)"
            )
        if not passthrough:
            assert turn[-2]["type"] == "result", "the terminator follows the result"
            check_truth(turn)
            for line in turn:
                _check_shape(line)
    if not passthrough:
        lines = [line for turn in turns for line in turn]
        _check_ids(lines)
        _check_messages(lines)
    return turns


def _parse_checked_lines(data: bytes, limit: int) -> list[Line]:
    data.decode("utf-8")  # strict, because one invalid byte crashes a frontend
    assert data.endswith(b"\n"), "whole lines only"
    assert not any(separator.encode() in data for separator in SEPARATORS), (
        "separators are escaped (hostile-input 2)"
    )
    assert b"\r" not in data
    lines = []
    for raw in data.split(b"\n")[:-1]:
        assert not limit or len(raw) <= limit, (
            f"a line of {len(raw)} bytes, where {limit} are allowed (P12)"
        )
        try:
            line = orjson.loads(raw)  # strict: no NaN, no lone surrogate, no raw control character
        except orjson.JSONDecodeError as error:
            raise AssertionError(f"{error}: {raw[:2000]!r}") from None
        assert isinstance(line, dict) and isinstance(line.get("type"), str), raw
        lines.append(line)
    return lines


def _reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _check_ids(lines: Sequence[Line]) -> None:
    sessions = {str(line["session_id"]) for line in lines if "session_id" in line}
    assert len(sessions) <= 1, f"one session id on every line (S3), not {sessions}"
    uuids = [line["uuid"] for line in lines if "uuid" in line]
    assert len(set(uuids)) == len(uuids), "every line has its own uuid"


def _check_frame(turn: Sequence[Line]) -> None:
    conversation = [line for line in turn if _is_conversation_line(line)]
    assert conversation, "a turn says something"
    assert _is_init(conversation[0]), f"init comes first (S1), not {conversation[0]['type']}"
    assert sum(map(_is_init, turn)) == 1, "one init (S1)"
    assert sum(line["type"] == "result" for line in turn) == 1, "one result (S1)"
    assert conversation[-1]["type"] == "result", (
        "nothing of the conversation follows the result (S16b)"
    )


def _is_init(line: Line) -> bool:
    return line["type"] == "system" and line.get("subtype") == "init"


def _is_conversation_line(line: Line) -> bool:
    return line["type"] in CONVERSATION or _is_init(line)


def _list_blocks(line: Line) -> list[Line]:
    if line["type"] not in ("assistant", "user"):
        return []
    content = line["message"]["content"]
    return content if isinstance(content, list) else []


def _check_pairs(turn: Sequence[Line]) -> None:
    """Assert that every call has one later result with the same parent (S7, S16c)."""
    waiting: dict[str, object] = {}
    ids = _Ids()
    for line in turn:
        for block in _list_blocks(line):
            if block["type"] == "tool_use":
                ids.add(block["id"])
                waiting[block["id"]] = line.get("parent_tool_use_id")
            elif block["type"] == "tool_result":
                call_id = block["tool_use_id"]
                assert call_id in waiting, f"a result for {call_id!r}, which is not open"
                assert waiting.pop(call_id) == line.get("parent_tool_use_id"), (
                    "call and result have one parent"
                )
    assert not waiting, f"calls without a result: {list(waiting)}"


class _Ids:
    """The ids of calls. Each must be new among the remembered ids, which are at least the last half
    of MAX_USED_IDS.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = 0

    def add(self, call_id: str) -> None:
        before = self._last.get(call_id)
        assert before is None or self._count - before > MAX_USED_IDS // 2, (
            f"tool id {call_id!r} used twice"
        )
        self._last[call_id] = self._count
        self._count += 1


def _check_messages(lines: Sequence[Line]) -> None:
    """Assert that a reply has ended when one of its calls has a result, and that the ids of calls
    are not reused in a session (S4, S7).
    """
    ended: set[str] = set()
    caller: dict[str, str] = {}
    message_ids: set[str] = set()
    call_ids = _Ids()
    for line in lines:
        if line["type"] == "result":
            ended |= message_ids
        for block in _list_blocks(line):
            if block["type"] == "tool_result":
                ended.add(caller[block["tool_use_id"]])
            if line["type"] != "assistant":
                continue
            message_id = line["message"]["id"]
            assert message_id not in ended, f"message id {message_id} comes again"
            message_ids.add(message_id)
            if block["type"] == "tool_use":
                call_ids.add(block["id"])
                caller[block["id"]] = message_id


def _check_shape(line: Line) -> None:
    kind = line["type"]
    if line == TERMINATOR:
        return
    assert kind in ("system", "assistant", "user", "stream_event", "result"), (
        f"a line of type {kind}"
    )
    assert isinstance(line["uuid"], str) and len(line["uuid"]) == 36, line["uuid"]
    assert isinstance(line["session_id"], str)
    _SHAPES[kind](line)


def _check_system_shape(line: Line) -> None:
    for key in TASK_KEYS.get(line["subtype"], ()):
        assert key in line, f"{line['subtype']} has {key} (5.14)"
    if _is_init(line):
        assert not [key for key in INIT_KEYS if key not in line], "init is complete (5.1)"
        assert all(
            isinstance(line[key], str) for key in ("cwd", "model", "permissionMode", "session_id")
        )
        for key in ("tools", "slash_commands", "agents"):
            assert isinstance(line[key], list) and all(
                isinstance(name, str) for name in line[key]
            ), f"{key} are names"
        assert isinstance(line["mcp_servers"], list) and all(
            isinstance(server, dict) for server in line["mcp_servers"]
        )


def _check_assistant_shape(line: Line) -> None:
    message = line["message"]
    assert "parent_tool_use_id" in line
    for key in ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"):
        assert key in message, f"an assistant message has {key} (S5)"
    assert isinstance(message["model"], str) and isinstance(message["id"], str)
    _check_usage(message["usage"])
    (block,) = message["content"]
    assert block["type"] in ("text", "thinking", "tool_use")
    if block["type"] == "tool_use":
        assert isinstance(block["id"], str) and isinstance(block["name"], str), (
            "id and name are strings (S6)"
        )
        assert isinstance(block["input"], dict), "a call's input is an object (S6)"
    else:
        assert isinstance(block[block["type"]], str)
        assert block["type"] == "text" or isinstance(block["signature"], str), (
            "thinking has a signature (S6)"
        )
    if message["model"] == "<synthetic>":
        assert line.get("error") in ERRORS, (
            f"{line.get('error')} is an error that clients know (5.3)"
        )


def _check_user_shape(line: Line) -> None:
    assert "parent_tool_use_id" in line
    (block,) = line["message"]["content"]
    assert block["type"] in ("text", "tool_result")
    if block["type"] == "tool_result":
        assert isinstance(block["tool_use_id"], str) and isinstance(block["is_error"], bool)
        assert isinstance(block["content"], str | list), "a result's content is text or blocks (S7)"
    else:
        assert isinstance(block["text"], str)


def _check_stream_shape(line: Line) -> None:
    assert line["parent_tool_use_id"] is None, "stream_event has a null parent (S13)"
    event = line["event"]
    if event["type"] == "message_start":
        _check_usage(event["message"]["usage"])
        assert isinstance(event["message"]["model"], str)
    elif event["type"] == "message_delta":
        _check_usage(event["usage"])


def _check_result_shape(line: Line) -> None:
    assert not [key for key in RESULT_KEYS if key not in line], "result is complete (S9)"
    assert isinstance(line["is_error"], bool)
    for key in ("duration_ms", "duration_api_ms", "num_turns"):
        assert isinstance(line[key], int) and not isinstance(line[key], bool) and line[key] >= 0, (
            key
        )
    assert isinstance(line["total_cost_usd"], int | float)
    _check_usage(line["usage"])
    for usage in line["modelUsage"].values():
        assert all(isinstance(value, int | float) for value in usage.values())
    assert isinstance(line["permission_denials"], list)
    if line["subtype"] == "success":
        assert isinstance(line["result"], str) and "errors" not in line, "success has a result (S9)"
    else:
        assert line["is_error"], "only errors have another subtype"
        assert line["errors"] and all(isinstance(text, str) for text in line["errors"]), (
            "errors are told (S9)"
        )
        assert "result" not in line, "no result key (S10)"
    assert line["subtype"] == "success" or line.get("structured_output") is None, (
        "only a success has an answer"
    )


_SHAPES = {
    "system": _check_system_shape,
    "assistant": _check_assistant_shape,
    "user": _check_user_shape,
    "stream_event": _check_stream_shape,
    "result": _check_result_shape,
}


def _check_usage(usage: Line) -> None:
    for key in NO_USAGE:
        assert isinstance(usage[key], int) and not isinstance(usage[key], bool), (
            f"usage has {key} as a number (S5)"
        )


def _check_stream(turn: Sequence[Line], passthrough: bool) -> None:
    """Assert that message and block events are nested, numbered, and have the content of the
    assistant lines (S11, S14).

    Lines of a subagent and the synthetic line of an API error are complete and never streamed.
    """
    events = [line["event"] for line in turn if line["type"] == "stream_event"]
    streamed = {event["message"]["id"] for event in events if event["type"] == "message_start"}
    message: str | None = None
    next_index, open_index, kind, block_text = 0, None, "", ""
    closed_by: Line | None = None
    for line in turn:
        if line["type"] == "assistant" and line["message"]["id"] in streamed:
            if open_index is None:
                assert passthrough, "every block of a streamed message is streamed"
                continue
            assert closed_by is None, "one assistant line for each block (S4)"
            closed_by = _list_blocks(line)[0]
            assert line["message"]["id"] == message, (
                "the block's line has the id of its message (S4)"
            )
            assert closed_by["type"] == kind
            if kind in ("text", "thinking"):
                assert closed_by[kind] == block_text, "the deltas are the block (S14)"
            elif not passthrough:
                assert closed_by["input"] == json.loads(block_text), "the fragments are the input"
        if line["type"] != "stream_event":
            continue
        event = line["event"]
        what = event["type"]
        if what == "message_start":
            assert message is None, "messages do not overlap"
            message, next_index = event["message"]["id"], 0
        elif what == "content_block_start":
            assert message is not None and open_index is None, "blocks do not overlap"
            assert event["index"] == next_index, "indices count 0, 1, 2 …"
            open_index, kind, block_text, closed_by = (
                event["index"],
                event["content_block"]["type"],
                "",
                None,
            )
        elif what == "content_block_delta":
            assert passthrough or event["index"] == open_index, "a delta belongs to the open block"
            delta = event["delta"]
            block_text += (
                delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            )
        elif what == "content_block_stop":
            assert event["index"] == open_index, "the stop belongs to the open block"
            assert passthrough or closed_by is not None, (
                "the assistant line comes before its stop (S11)"
            )
            open_index, next_index = None, next_index + 1
        elif what == "message_stop":
            assert message is not None and open_index is None, "a message ends when its blocks did"
            message = None
        else:
            assert what == "message_delta" or passthrough, f"a stream event {what}"
            assert message is not None and open_index is None
    assert message is None and open_index is None, "everything opened is closed before the result"

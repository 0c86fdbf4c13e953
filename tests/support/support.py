"""Helpers for tests of the core: the fixtures, a Turn without a vendor, and the invariants of a
stream.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import orjson
from result_consistency import check_truth

from shim.conversation.drivers.open_translation import (
    STABLE_ID_PREFIX,
    STABLE_SESSION_ID,
    create_standalone_child_stream,
)
from shim.core.adapter.child_stream import ChildStream, select_plain_or_redacted_turn_class
from shim.core.claude.session_state import SessionOptions, SessionState, VendorCapabilities
from shim.core.claude.writer import NO_USAGE, TERMINATORS, StreamJsonWriter
from shim.core.reading.diagnostics import MAX_KINDS, MAX_SAMPLE_CHARS, OVERFLOW_KIND, Diagnostics
from shim.core.turn.assistant_message import MAX_MESSAGE_CHARS
from shim.core.turn.context import (
    MAX_USED_IDS,
    ConversationState,
    SessionConfig,
    TurnConfig,
    VendorInfo,
)
from shim.core.turn.outcome import ChildExit
from shim.process.exit_status import parse_exit_status

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
SEEDS = ("acai", "cake", "cursor", "pi", "qwen")

Line = dict[str, Any]
TERMINATOR: Line = {"type": "message_stop"}


# -- fixtures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One folder of `fixtures/`: the vendor's bytes, and the metadata in case.toml."""

    name: str
    folder: Path
    vendor: str
    metadata: dict[str, Any] = field(hash=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        return (self.folder / "vendor.ndjson").read_bytes()

    @property
    def golden(self) -> Path:
        return self.folder / "claude.ndjson"

    @property
    def partial(self) -> bool:
        return bool(self.metadata.get("partial", False))

    @property
    def stderr(self) -> str:
        return str(self.metadata.get("stderr", ""))

    @property
    def exit(self) -> ChildExit | None:
        """How the program ended, or None if that is unknown."""
        value = self.metadata.get("exit")
        return None if value is None else parse_exit_status(str(value))

    @property
    def passthrough(self) -> bool:
        return self.vendor == "claude"

    def parse_events(self) -> list[Any]:
        """Return the vendor's lines as objects, parsed without the shim. Lines that are not JSON
        are left out.
        """
        events = []
        for line in self.data.split(b"\n"):
            try:
                events.append(json.loads(line.decode("utf-8", "replace"), strict=False))
            except (ValueError, RecursionError):
                continue
        return events


@cache
def list_fixture_cases(*vendors: str) -> tuple[Case, ...]:
    """Return every fixture, ordered by name, or those of `vendors`. A torture fixture belongs to
    the vendor that reads it.

    Fixtures from fuzzing belong to no vendor, because no program printed them. They are only tested
    for rules that hold for any bytes.
    """
    if not vendors:
        return tuple(read_cases(FIXTURES))
    return tuple(
        case
        for case in list_fixture_cases()
        if case.vendor in vendors and not case.folder.name.startswith("fuzz-")
    )


def read_cases(fixtures: Path) -> Iterator[Case]:
    """Yield the cases of a folder with the layout of `fixtures/`."""
    for data in sorted(fixtures.glob("*/*/vendor.ndjson")):
        folder = data.parent
        metadata = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
        yield Case(
            f"{folder.parent.name}/{folder.name}",
            folder,
            metadata.get("vendor", folder.parent.name),
            metadata,
        )


@cache
def find_case(name: str) -> Case:
    """Return the fixture called `<vendor>/<case>`."""
    (match,) = (case for case in list_fixture_cases() if case.name == name)
    return match


class _FromCase:
    """A placeholder for the value in case.toml. None is not usable, because it is a valid exit."""


FROM_CASE = _FromCase()


def translate_case(
    case: Case,
    partial: bool | None = None,
    child_exit: ChildExit | _FromCase | None = FROM_CASE,
    data: bytes | None = None,
    chunks: Iterable[bytes] | None = None,
    redact: bool = False,
) -> tuple[bytes, ChildStream]:
    """Return the shim's output for a case, with stable ids. Each argument replaces a value of the
    case.
    """
    partial = case.partial if partial is None else partial
    translation = create_standalone_child_stream(
        case.vendor, include_partial_messages=partial, stable_ids=True, redact=redact
    )
    if chunks is None:
        chunks = (case.data if data is None else data,)
    output = [translation.feed(chunk)[0] for chunk in chunks]
    ending = case.exit if isinstance(child_exit, _FromCase) else child_exit
    output.append(translation.close(ending, case.stderr)[0])
    return b"".join(output), translation


def split_bytes(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of `data` one by one."""
    return (data[position : position + 1] for position in range(len(data)))


def build_turn_config(vendor: str = "demo", **fields: Any) -> TurnConfig:
    """Build the configuration of a turn. Each field is set in the group that has it."""
    groups: dict[str, Any] = {
        "vendor": VendorInfo(vendor),
        "session": SessionConfig(STABLE_SESSION_ID),
    }
    config = TurnConfig(**groups)
    for name, value in fields.items():
        group = next(
            (
                group_name
                for group_name in ("vendor", "session", "limits")
                if hasattr(getattr(config, group_name), name)
            ),
            None,
        )
        value = value if group is None else getattr(config, group)._replace(**{name: value})
        config = config._replace(**{group or name: value})
    return config


# -- a Turn without a vendor -----------------------------------------------------------------------


class Stage:
    """A Turn with Claude's writer and stable ids. `take_lines` returns the lines since the previous
    call.
    """

    def __init__(
        self,
        *,
        partial: bool = False,
        terminator: str = "message_stop",
        limit: int = 0,
        max_bytes: int = 0,
        **config_fields: Any,
    ) -> None:
        self.writer = StreamJsonWriter(
            STABLE_ID_PREFIX,
            writes_partial_messages=partial,
            terminator=TERMINATORS[terminator],
            max_line_bytes=limit,
        )
        self.diagnostics = Diagnostics()
        self.conversation = ConversationState()
        self.config = build_turn_config(**config_fields)
        if max_bytes:
            self.writer.max_bytes = max_bytes
        turn_class = select_plain_or_redacted_turn_class(self.config)
        self.turn = turn_class(self.writer, self.config, self.conversation, self.diagnostics)
        self.bytes = b""

    def take_lines(self) -> list[Line]:
        data = self.writer.take_bytes()
        self.bytes += data
        return parse_lines(data)

    def take_summary(self) -> list[str]:
        return summarize_lines(self.take_lines())

    def finish_turn(self, code: int | None = 0, stderr: str = "") -> list[str]:
        """End the turn. Return a summary of all lines that were not taken yet."""
        self.turn.close(None if code is None else ChildExit(code=code), stderr)
        return self.take_summary()

    def finish_with_result(self, code: int | None = 0, stderr: str = "") -> Line:
        """End the turn. Return its result line."""
        self.turn.close(None if code is None else ChildExit(code=code), stderr)
        (result,) = (line for line in self.take_lines() if line["type"] == "result")
        return result


def build_session_state(**fields: Any) -> SessionState:
    """Build the state of a session. Each field is set in the group that has it."""
    rules = {name: fields.pop(name) for name in SessionOptions._fields if name in fields}
    serving = {name: fields.pop(name) for name in VendorCapabilities._fields if name in fields}
    return SessionState(SessionOptions(**rules), VendorCapabilities(**serving), **fields)


def parse_lines(data: bytes) -> list[Line]:
    """Parse the lines of a stream."""
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line]


def summarize_lines(lines: Iterable[Line]) -> list[str]:
    """Return a stream as short texts, one for each line, which a person can read and compare.

    init, system:<subtype>, start, open:<kind>, +<text delta>, ~<thinking delta>, {input}, stop,
    done:<stop reason>, text:…, think:…, call:<id> <name>, result:<id> …, failed:<id> …, user:…,
    error:…, end:<subtype> <text>, and . for the terminator. A line of a subagent starts with the id
    of its parent and >.
    """
    return [summary for line in lines if (summary := _summarize_line(line))]


def _summarize_line(line: Line) -> str:
    kind = line["type"]
    if kind == "message_stop":
        return "."
    if kind == "system":
        return "init" if line["subtype"] == "init" else f"system:{line['subtype']}"
    if kind == "result":
        text = line["result"] if "result" in line else line["errors"][0]
        return f"end:{line['subtype']}{'!' if line['is_error'] else ''} {text}".rstrip()
    if kind == "stream_event":
        return _summarize_stream_event(line["event"])
    if kind not in ("assistant", "user"):
        return kind
    parent = line.get("parent_tool_use_id")
    content = line["message"]["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return (f"{parent}>" if parent else "") + " + ".join(
        _summarize_block(line, block) for block in blocks
    )


def _summarize_block(line: Line, block: Line) -> str:
    if block["type"] == "tool_use":
        return f"call:{block['id']} {block['name']}"
    if block["type"] == "tool_result":
        return f"{'failed' if block.get('is_error') else 'result'}:{block['tool_use_id']} {block['content']}".rstrip()
    if block["type"] == "thinking":
        return f"think:{block['thinking']}"
    who = (
        "user"
        if line["type"] == "user"
        else "error"
        if line["message"]["model"] == "<synthetic>"
        else "text"
    )
    return f"{who}:{block['text']}"


def _summarize_stream_event(event: Line) -> str:
    kind = event["type"]
    if kind == "content_block_start":
        return f"open:{event['content_block']['type']}"
    if kind == "content_block_delta":
        delta = event["delta"]
        if delta["type"] == "text_delta":
            return f"+{delta['text']}"
        return (
            f"~{delta['thinking']}"
            if delta["type"] == "thinking_delta"
            else delta.get("partial_json", "")
        )
    if kind == "message_delta":
        return f"done:{event['delta']['stop_reason']}"
    return {"message_start": "start", "content_block_stop": "stop", "message_stop": ""}[kind]


# -- what must hold for any stream -----------------------------------------------------------------

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


def find_result(turn: Sequence[Line]) -> Line:
    """Return the only result of a turn."""
    (result,) = (line for line in turn if line["type"] == "result")
    return result


def check_diagnostics(diagnostics: Diagnostics) -> None:
    """Assert that diagnostics are bounded and printable for any counted output."""
    for counts in (diagnostics.repairs, diagnostics.unknown_events):
        assert len(counts) <= MAX_KINDS + (OVERFLOW_KIND in counts), (
            "the account has so many kinds and no more"
        )
        assert all(len(kind) <= MAX_SAMPLE_CHARS for kind in counts), "a kind is a name, not a text"
        assert all(count > 0 for count in counts.values())
    assert len(diagnostics.samples) <= 2 * (MAX_KINDS + 1)
    assert all(len(sample) <= MAX_SAMPLE_CHARS for sample in diagnostics.samples.values()), (
        "samples are short"
    )
    # orjson is strict: it rejects lone surrogates and values that JSON does not have
    orjson.dumps(diagnostics.build_report())


# The maximum size of a table of a Turn, a conversation or a translator. `MAX_USED_IDS` is the largest
# limit.
ENTRIES_REMEMBERED = MAX_USED_IDS
TEXT_REMEMBERED = MAX_MESSAGE_CHARS
# The caller takes the content of these fields after every chunk.
_TAKEN = frozenset({"pending_permissions", "hook_events", "outbox"})
_TABLES = frozenset({dict, list, set, tuple})


def check_memory(translation: ChildStream) -> None:
    """Assert that the stored state of a child is bounded for any number of lines."""
    turn = translation.turn
    for part in (
        turn,
        turn.conversation,
        translation.diagnostics,
        translation._dispatcher.translator,
        translation._dispatcher._repairer,
    ):
        fields = {name: getattr(part, name) for name in getattr(type(part), "__slots__", ())}
        for name, value in (fields or vars(part)).items():
            if value.__class__ not in _TABLES or name in _TAKEN or not value:
                continue
            where = f"{type(part).__name__}.{name}"
            if name == "_parts":  # the open block, bounded like a text
                assert sum(map(len, value)) <= TEXT_REMEMBERED, f"{where} is too long"
            else:
                assert len(value) <= ENTRIES_REMEMBERED, f"{where} has {len(value)} entries"


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


# -- pass-through ----------------------------------------------------------------------------------


def is_shim_line(line: bytes) -> bool:
    """Return whether a line of a pass-through stream was written by the shim and not by claude."""
    return (
        line == TERMINATORS["message_stop"].strip()
        or b'"uuid":"' + STABLE_ID_PREFIX.encode() in line
    )


def check_passed(came: bytes, output: bytes, partial: bool) -> None:
    """Assert that every valid JSON line of the input is in the output unchanged and in order,
    except lines that must be dropped.

    Dropped lines: those that no frontend can read, a second init, a second result, results without
    a call, conversation lines after a result, and stream events that were not requested. Any other
    output line was written by the shim or had to be repaired. Characters that split lines in Node
    and Python are escaped.
    """
    for separator in SEPARATORS:
        came = came.replace(separator.encode(), f"\\u{ord(separator):04x}".encode())
    lines = [line.rstrip(b"\r") for line in came.split(b"\n") if line.strip()]
    valid = [line for line in lines if _is_valid_line(line)]
    valid_set = set(valid)
    passed = [
        line
        for line in output.split(b"\n")
        if line in valid_set or (line and not is_shim_line(line))
    ]
    assert len(valid) < len(lines) or valid_set.issuperset(passed), "nothing is invented"
    passed = [line for line in passed if line in valid_set]
    for results in (True, False):  # a result may wait, so it is compared by itself
        selected_lines = [line for line in passed if (_read_type(line) == "result") == results]
        assert _is_subsequence(selected_lines, valid), "lines keep their order"
    lines_after_result = _find_lines_after_results(valid)
    missing = list(valid)
    for line in passed:
        missing.remove(line)
    for line in missing:
        event = json.loads(line)
        kind = event["type"]
        allowed = (
            kind == "result"
            or _is_init(event)
            or (kind == "stream_event" and not partial)
            or (
                kind == "user"
                and any(block["type"] == "tool_result" for block in _list_blocks(event))
            )
            or line in lines_after_result
            # the Python SDK fails at this line
            or (kind == "rate_limit_event" and "rate_limit_info" not in event)
        )
        assert allowed, f"lost: {line[:200]!r}"


def _is_valid_line(line: bytes) -> bool:
    try:
        event = json.loads(line.decode("utf-8"), parse_constant=_reject_constant)
        json.dumps(event, ensure_ascii=False).encode("utf-8")
    except (ValueError, AssertionError, RecursionError):
        return False
    return isinstance(event, dict) and isinstance(event.get("type"), str)


def _read_type(line: bytes) -> str:
    return str(json.loads(line)["type"])


def _is_subsequence(some: Sequence[bytes], all_lines: Sequence[bytes]) -> bool:
    remaining = iter(all_lines)
    return all(line in remaining for line in some)


def _find_lines_after_results(valid: Sequence[bytes]) -> set[bytes]:
    lines, ended = set(), False
    for line in valid:
        event = json.loads(line)
        if _is_init(event):
            ended = False
        elif event["type"] == "result":
            ended = True
        elif ended and event["type"] in CONVERSATION:
            lines.add(line)
    return lines

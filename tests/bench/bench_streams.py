"""Streams for `make bench`: one long turn with a vendor's real event mix, built from the fixtures.

The lines of some ordinary, successful runs are repeated unchanged, except for one session line at
the start and one terminal line at the end. The runs become one session. In every repetition each id
(of a call, a message, a line) is replaced by another one of the same length.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
BLOCK = 256 * 1024
MEGABYTE = 1_000_000

ID_KEYS = frozenset(
    (
        "id",
        "uuid",
        "call_id",
        "callID",
        "toolCallId",
        "toolId",
        "tool_call_id",
        "tool_id",
        "tool_use_id",
        "messageId",
    )
)
SESSION_KEYS = frozenset(("session_id", "sessionId", "sessionID", "thread_id"))
HEAD_TYPES = frozenset(("init", "session", "start", "task_start", "thread.started", "turn.started"))
TAIL_TYPES = frozenset(
    (
        "result",
        "end",
        "agent_end",
        "agent_settled",
        "task_complete",
        "turn.completed",
        "run_result",
        "completion",
    )
)


class BenchStream(NamedTuple):
    """One vendor's long turn: the vendor, the runs, and the goals as fractions of the floor."""

    vendor: str
    cases: tuple[str, ...]
    goal: float | None
    partial_goal: float | None
    text_case: str = ""


def _build_stream(
    vendor: str,
    version: str,
    cases: str,
    goal: float | None,
    partial_goal: float | None = None,
    text_case: str = "",
) -> BenchStream:
    """Return the stream of runs of one version of a vendor. `cases` are their names, `text_case`
    the one with a line of text.
    """
    case_names = tuple(f"{version}-{case}" for case in cases.split())
    return BenchStream(
        vendor, case_names, goal, partial_goal, f"{version}-{text_case}" if text_case else ""
    )


STREAMS = {
    "acai": _build_stream("acai", "0.1.0", "text think shellok parallel", 0.3, 0.15, "text"),
    "acai-2026": _build_stream("acai", "2026-04", "text shellok files", 0.3, 0.15),
    "amp": BenchStream("amp", ("handmade-tool",), None, None),
    "cake": _build_stream("cake", "2026-07", "text think files parallel shellfail", None),
    "claude": _build_stream(
        "claude", "2.1.327", "text tool-bash tool-edit tool-read tool-parallel two-blocks", None
    ),
    "cline": _build_stream("cline", "3.0.65", "edit failtool parallel", 0.3),
    "codex": _build_stream(
        "codex", "0.169.0", "text reasoning shell failtool applypatch mcp plan parallel", 0.2
    ),
    "copilot": _build_stream("copilot", "1.0.102", "text edit failtool reasoning parallel", None),
    "cursor": BenchStream(
        "cursor",
        (
            "shape-2026.08-text-thinking",
            "shape-2026.08-shell-ok",
            "shape-2026.08-edit-create",
            "shape-2026.07-parallel-reads-shell-edit",
        ),
        0.37,
        None,
    ),
    "cursor-deltas": BenchStream("cursor", ("shape-2026.08-partial-with-tool",), 0.37, 0.3),
    "demo": BenchStream("demo", ("session",), None, None),
    "droid": _build_stream("droid", "0.225.2", "text edit failtool parallel", None),
    "gemini": _build_stream(
        "gemini", "0.61.0", "text shell edit failtool reasoning todo parallel", 0.33
    ),
    "kilo": _build_stream("kilo", "7.7.9", "shell text", None),
    "kimi": _build_stream("kimi", "1.49.0", "edit failtool text", 0.2),
    "opencode": _build_stream(
        "opencode", "1.18.33", "edit failtool parallel reasoning shell todo text", 0.3
    ),
    "pi": BenchStream(
        "pi",
        (
            "0.87.1-plain",
            "1.5.2-plain",
            "1.5.2-think",
            "1.5.2-think-tool",
            "1.5.2-read",
            "1.5.2-bash",
            "1.5.2-write",
            "1.5.2-edit-multi",
            "1.5.2-grep",
            "1.5.2-parallel",
            "1.5.2-multiturn",
            "1.5.2-long1000",
        ),
        1.0,
        0.55,
        "1.5.2-plain",
    ),
    "qwen": _build_stream(
        "qwen",
        "0.24.4",
        "text reasoning reason-tool read-file shell edit write-file grep parallel",
        0.3,
        0.2,
        "text",
    ),
    "qwen-rfc": _build_stream("qwen-rfc", "handmade", "chunk-text tool text", None),
    "vibe": _build_stream("vibe", "3.0.2", "edit failtool parallel text", None),
}


def read_case_lines(vendor: str, case: str) -> list[bytes]:
    """Return the lines of one recorded run."""
    return [
        line
        for line in (FIXTURES / vendor / case / "vendor.ndjson").read_bytes().split(b"\n")
        if line
    ]


def classify_line(line: bytes) -> str:
    """Return the place of a line in a long turn: once (`head`, `tail`), repeated (`body`), or not
    at all (`drop`).
    """
    event = orjson.loads(line)
    kind = event.get("type")
    if kind in HEAD_TYPES or event.get("subtype") == "init":
        return "head"
    if kind in TAIL_TYPES and "output" not in event:  # demo reports a tool's output as a result
        return "tail"
    return "drop" if kind == "stream_event" else "body"


def collect_values(event: object, keys: frozenset[str]) -> Iterator[str]:
    """Yield every string with one of these keys, at any depth."""
    if isinstance(event, dict):
        for key, value in event.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from collect_values(value, keys)
    elif isinstance(event, list):
        for item in event:
            yield from collect_values(item, keys)


class Body:
    """The repeated part of a stream as one `%`-template whose holes are the ends of the ids."""

    def __init__(self) -> None:
        self.template = b""
        self.holes: list[int] = []
        self.ids = 0

    def add_lines(self, lines: list[bytes]) -> None:
        """Append the lines of one run. Its ids differ from those of all other runs."""
        id_values = sorted(
            {value for line in lines for value in collect_values(orjson.loads(line), ID_KEYS)}
        )
        text = b"\n".join(lines).replace(b"%", b"%%") + b"\n"
        numbers = {orjson.dumps(value): self.ids + index for index, value in enumerate(id_values)}
        self.ids += len(id_values)

        def replace_id(match: re.Match[bytes]) -> bytes:
            self.holes.append(numbers[match[0]])
            return match[0][:-7] + b'%06x"' if len(match[0]) > 7 else b'"%06x"'

        self.template += (
            re.sub(b"|".join(map(re.escape, numbers)), replace_id, text) if numbers else text
        )

    def build_repetition(self, count: int) -> bytes:
        """Return the lines with new ids."""
        first = count * self.ids
        return self.template % tuple([first + hole for hole in self.holes])


def build_long_turn(stream: BenchStream, size: int) -> Iterator[bytes]:
    """Yield about `size` bytes of one turn, in blocks."""
    head: list[bytes] = []
    tail: list[bytes] = []
    body = Body()
    session = b""
    for case in stream.cases:
        placed: dict[str, list[bytes]] = {"head": [], "body": [], "tail": [], "drop": []}
        for line in read_case_lines(stream.vendor, case):
            placed[classify_line(line)].append(line)
        first = orjson.loads((placed["head"] or placed["body"])[0])
        case_session = next(collect_values(first, SESSION_KEYS), "").encode()
        session = session or case_session
        head = head or placed["head"]
        tail = [
            line.replace(case_session, session) if case_session else line for line in placed["tail"]
        ]
        body.add_lines(
            [
                line.replace(case_session, session) if case_session else line
                for line in placed["body"]
            ]
        )
    waiting = [line + b"\n" for line in head]
    ending = b"".join(line + b"\n" for line in tail)
    total_bytes = buffered_bytes = sum(map(len, waiting))
    count = 0
    while total_bytes + len(ending) < size:
        waiting.append(body.build_repetition(count))
        count += 1
        total_bytes += len(waiting[-1])
        buffered_bytes += len(waiting[-1])
        if buffered_bytes >= BLOCK:
            yield b"".join(waiting)
            waiting.clear()
            buffered_bytes = 0
    yield b"".join(waiting) + ending


def build_text_turn(stream: BenchStream) -> bytes:
    """Return one recorded turn with a line of text."""
    return b"".join(line + b"\n" for line in read_case_lines(stream.vendor, stream.text_case))


def find_text(lines: list[bytes]) -> bytes:
    """Return the text of such a turn, as JSON."""
    for line in lines:
        event = orjson.loads(line)
        message = event.get("message", event)
        if message.get("role") == "assistant" and message.get("content"):
            content = message["content"]
            return orjson.dumps(content if isinstance(content, str) else content[0]["text"])
    raise ValueError("no text in this turn")


# A model's fragments are words with a space before them.
ENGLISH = """ The parser reads one line at a time and keeps what it has seen in a small table, so that a second pass
 over the file is not needed. When a key is missing it falls back to the default of the section, and the caller is told
 which one was used. I have started the tests again; most of them pass, two still fail because the clock is mocked
 twice.""".replace("\n", "").split(" ")


def build_reply(
    stream: BenchStream, deltas: int, vocabulary: list[str] | None = None
) -> Iterator[bytes]:
    """Yield a pi turn whose text comes in `deltas` deltas of 20 characters, or from `vocabulary`. A
    full text of the run stays one text.
    """
    lines = read_case_lines(stream.vendor, stream.text_case)
    old = find_text(lines)
    fragments = [f"word {index:<14} " for index in range(deltas)]
    if vocabulary is not None:
        fragments = [" " + vocabulary[index % len(vocabulary)] for index in range(deltas)]
    new = orjson.dumps("".join(fragments))
    started = False
    for line in lines:
        if b'"text_delta"' not in line:
            yield line.replace(old, new) + b"\n"
            continue
        if started:
            continue
        started = True
        delta = b'"delta":' + orjson.dumps(orjson.loads(line)["assistantMessageEvent"]["delta"])
        before, after = line.split(delta)
        for start in range(0, deltas, 1000):
            part = fragments[start : start + 1000]
            yield b"".join(
                [b'%b"delta":%b%b\n' % (before, orjson.dumps(fragment), after) for fragment in part]
            )


def build_line(stream: BenchStream, size: int) -> Iterator[bytes]:
    """Yield a turn whose one assistant text makes a line of about `size` bytes, in chunks."""
    lines = read_case_lines(stream.vendor, stream.text_case)
    old = find_text(lines)
    swapped = False
    for line in lines:
        if swapped or old not in line:
            yield line + b"\n"
            continue
        swapped = True
        before, after = line.split(old)
        yield before + b'"'
        for _ in range(size // MEGABYTE):
            yield b"one line of a hundred megabytes " * (MEGABYTE // 32)
        yield b'"' + after + b"\n"


def write_blocks(blocks: Iterator[bytes], path: str) -> int:
    """Write blocks to a file. Return the number of bytes."""
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
    return os.path.getsize(path)

"""Streams for `make bench`: one long turn of a vendor's real event mix, made from the fixtures.

The lines of some ordinary, successful runs are repeated as they are, but for one session line at the start and
one terminal line at the end. The runs become one session, and in every repetition each id (of a call, a message,
a line) is another one of the same length.
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

ID_KEYS = frozenset({"id", "uuid", "call_id", "toolCallId", "tool_use_id"})
HEAD_TYPES = frozenset({"init", "session"})
TAIL_TYPES = frozenset({"result", "agent_end", "agent_settled"})


class Stream(NamedTuple):
    """One vendor's long turn: whose words, which runs, and the goals as fractions of the floor."""

    vendor: str
    cases: tuple[str, ...]
    goal: float | None
    partial_goal: float | None
    text_case: str = ""


STREAMS = {
    "acai": Stream(
        "acai",
        ("0.1.0-text", "0.1.0-think", "0.1.0-shellok", "0.1.0-parallel"),
        0.25,
        None,
        "0.1.0-text",
    ),
    "acai-2026": Stream("acai", ("2026-04-text", "2026-04-shellok", "2026-04-files"), 0.25, None),
    "qwen": Stream(
        "qwen",
        (
            "0.24.4-text",
            "0.24.4-reasoning",
            "0.24.4-reason-tool",
            "0.24.4-read-file",
            "0.24.4-shell",
            "0.24.4-edit",
            "0.24.4-write-file",
            "0.24.4-grep",
            "0.24.4-parallel",
        ),
        0.3,
        None,
        "0.24.4-text",
    ),
    "cursor": Stream(
        "cursor",
        (
            "shape-2026.08-text-thinking",
            "shape-2026.08-shell-ok",
            "shape-2026.08-edit-create",
            "shape-2026.07-parallel-reads-shell-edit",
        ),
        0.33,
        None,
    ),
    "cursor-deltas": Stream("cursor", ("shape-2026.08-partial-with-tool",), 0.33, 0.3),
    "pi": Stream(
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
        0.9,
        0.3,
        "1.5.2-plain",
    ),
}


def case_lines(vendor: str, case: str) -> list[bytes]:
    """The lines one recorded run printed."""
    return [line for line in (FIXTURES / vendor / case / "vendor.ndjson").read_bytes().split(b"\n") if line]


def place(line: bytes) -> str:
    """Where a line belongs in a long turn: once (`head`, `tail`), repeated (`body`), or nowhere (`drop`)."""
    event = orjson.loads(line)
    if event["type"] in HEAD_TYPES or event.get("subtype") == "init":
        return "head"
    if event["type"] in TAIL_TYPES:
        return "tail"
    return "drop" if event["type"] == "stream_event" else "body"


def values_of(event: object, keys: frozenset[str]) -> Iterator[str]:
    """Every string that stands under one of these keys, at any depth."""
    if isinstance(event, dict):
        for key, value in event.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from values_of(value, keys)
    elif isinstance(event, list):
        for item in event:
            yield from values_of(item, keys)


class Body:
    """The repeated part of a stream as one `%`-template whose holes are the ends of the ids."""

    def __init__(self) -> None:
        self.template = b""
        self.holes: list[int] = []
        self.ids = 0

    def add(self, lines: list[bytes]) -> None:
        """Append the lines of one run; its ids are its own, whatever another run called its calls."""
        found = sorted({value for line in lines for value in values_of(orjson.loads(line), ID_KEYS)})
        text = b"\n".join(lines).replace(b"%", b"%%") + b"\n"
        numbers = {orjson.dumps(value): self.ids + index for index, value in enumerate(found)}
        self.ids += len(found)

        def hole(match: re.Match[bytes]) -> bytes:
            self.holes.append(numbers[match[0]])
            return match[0][:-7] + b'%06x"' if len(match[0]) > 7 else b'"%06x"'

        self.template += re.sub(b"|".join(map(re.escape, numbers)), hole, text) if numbers else text

    def repetition(self, count: int) -> bytes:
        """The lines once more, under new ids."""
        first = count * self.ids
        return self.template % tuple([first + hole for hole in self.holes])


def long_turn(stream: Stream, size: int) -> Iterator[bytes]:
    """About `size` bytes of one turn, in blocks."""
    head: list[bytes] = []
    tail: list[bytes] = []
    body = Body()
    session = b""
    for case in stream.cases:
        placed: dict[str, list[bytes]] = {"head": [], "body": [], "tail": [], "drop": []}
        for line in case_lines(stream.vendor, case):
            placed[place(line)].append(line)
        own = next(values_of(orjson.loads(placed["head"][0]), frozenset({"session_id"})), "").encode()
        session = session or own
        head = head or placed["head"]
        tail = [line.replace(own, session) if own else line for line in placed["tail"]]
        body.add([line.replace(own, session) if own else line for line in placed["body"]])
    waiting = [line + b"\n" for line in head]
    ending = b"".join(line + b"\n" for line in tail)
    said = held = sum(map(len, waiting))
    count = 0
    while said + len(ending) < size:
        waiting.append(body.repetition(count))
        count += 1
        said += len(waiting[-1])
        held += len(waiting[-1])
        if held >= BLOCK:
            yield b"".join(waiting)
            waiting.clear()
            held = 0
    yield b"".join(waiting) + ending


def text_turn(stream: Stream) -> bytes:
    """One recorded turn that says a line of text."""
    return b"".join(line + b"\n" for line in case_lines(stream.vendor, stream.text_case))


def said_text(lines: list[bytes]) -> bytes:
    """The text such a turn says, as JSON."""
    for line in lines:
        event = orjson.loads(line)
        message = event.get("message", event)
        if message.get("role") == "assistant" and message.get("content"):
            content = message["content"]
            return orjson.dumps(content if isinstance(content, str) else content[0]["text"])
    raise ValueError("no text in this turn")


# A model's fragments are words with their space in front.
ENGLISH = """ The parser reads one line at a time and keeps what it has seen in a small table, so that a second pass
 over the file is not needed. When a key is missing it falls back to the default of the section, and the caller is told
 which one was used. I have started the tests again; most of them pass, two still fail because the clock is mocked
 twice.""".replace("\n", "").split(" ")


def one_reply(stream: Stream, deltas: int, words: list[str] | None = None) -> Iterator[bytes]:
    """A pi turn whose text comes in that many deltas of 20 characters, or `words`; whole where the run had it whole."""
    lines = case_lines(stream.vendor, stream.text_case)
    old = said_text(lines)
    fragments = [f"word {index:<14} " for index in range(deltas)]
    if words is not None:
        fragments = [" " + words[index % len(words)] for index in range(deltas)]
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
            yield b"".join([b'%b"delta":%b%b\n' % (before, orjson.dumps(fragment), after) for fragment in part])


def one_line(stream: Stream, size: int) -> Iterator[bytes]:
    """A turn whose one assistant text makes a line of about `size` bytes, in pieces."""
    lines = case_lines(stream.vendor, stream.text_case)
    old = said_text(lines)
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


def write(blocks: Iterator[bytes], path: str) -> int:
    """Blocks into a file; how many bytes that were."""
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
    return os.path.getsize(path)

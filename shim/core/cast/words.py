"""Parts of a recording (one child, the frontend), and the meaning of a line for a replay."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from shim.core.cast.records import CastRecord

# Claude's, Yume's, the Qwen RFC's and pi's.
INTERRUPTS = ("control_request/interrupt", "interrupt", "control/cancel", "abort")
ANSWERS = ("control_response", "tool_approval")  # of Claude's and Yume's
VERDICTS = {"approve": "allow"}  # the Qwen RFC's word
HEARTBEAT = "heartbeat_request"  # sent by the clock, so a replay waits for none
RESULT = "result"  # the kind of a note with what was decided at the end of a turn
SIGNAL = "signal"  # the kind of a note that we sent a child a signal
# the kind of a note with the file that a child wrote about its run; also a letter of steps
REPORT = "report"


class Word(NamedTuple):
    """What a line of one side means to the other. `kind` is "" if it is no line of the protocol.

    `identity` is the id of a request, of the request that is answered, or of a message; `verdict`
    is an answer's.
    """

    kind: str = ""
    identity: str = ""
    verdict: str = ""


def read_word(line: bytes) -> Word:
    """The meaning of one line, with or without its newline."""
    if not line.lstrip().startswith(b"{"):
        return Word()
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Word()
    kind = said.get("type")
    if kind == "control_request":
        return Word(f"{kind}/{_of(said.get('request'), 'subtype')}", _of(said, "request_id"))
    if kind == "control_response":
        response = said.get("response")
        verdict = _of(response, "subtype") if _of(response, "subtype") == "error" else ""
        body = (
            response.get("response", response.get("result")) if isinstance(response, dict) else None
        )
        behavior = _of(body, "behavior")
        identity = _of(response, "request_id") or _of(said, "request_id")
        return Word(kind, identity, verdict or VERDICTS.get(behavior, behavior))
    if kind == "extension_ui_response":  # pi's RPC; the answer to our extension is JSON
        return Word(
            "control_response", _of(said, "id"), "allow" if _allows(_of(said, "value")) else "deny"
        )
    if kind == "prompt":
        return Word("user")
    if kind == "tool_approval":
        return Word(kind, _of(said, "id"), "allow" if said.get("approved") is True else "deny")
    if kind is None and isinstance(said.get("input"), dict):
        return Word("user")  # the Qwen RFC's messages have no type
    if kind == HEARTBEAT:
        return Word()
    return Word(kind, _of(said, "uuid")) if isinstance(kind, str) else Word()


def _allows(value: str) -> bool:
    """Whether an answer to our extension in pi allows the call."""
    try:
        answer = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("allow") is True


def _of(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else ""


def by_child(records: Iterable[CastRecord]) -> Iterator[Iterator[CastRecord]]:
    """The records of one child after another, each from its start to the next one's."""
    children = 0

    def number(record: CastRecord) -> int:
        nonlocal children
        children += record.code == "s"
        return children

    return (child for count, child in groupby(records, number) if count)


def of_child(records: Iterable[CastRecord], number: int) -> Iterator[CastRecord]:
    """The records of a recording's n-th child, from its start to its end.

    The file that it wrote about its run was recorded after its end; here it comes before the end,
    as it was written.
    """
    count, ended = 0, None
    for record in records:
        if record.code == "s":
            count += 1
        if count > number:
            break
        if count == number and record.code == "x":
            ended = record
        elif count == number and (
            ended is None or (record.code == "n" and record.fields.get("kind") == REPORT)
        ):
            yield record if ended is None else record._replace(time_s=ended.time_s)
    if ended is not None:
        yield ended


def of_frontend(records: Iterable[CastRecord]) -> Iterator[CastRecord]:
    return (record for record in records if record.code in "iOn")


def from_message(records: Iterator[CastRecord], told: str) -> Iterator[CastRecord]:
    """The records from the first message that a child was sent; none if it was sent none."""
    for record in records:
        if record.code == told and read_word(record.data).kind == "user":
            yield record
            yield from records

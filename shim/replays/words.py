"""The parts of a recording, and what counts of a line in it: who is told what, and what is answered."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from shim.casts.cast import Record

INTERRUPTS = ("control_request/interrupt", "interrupt")  # Claude's and Yume's
ANSWERS = ("control_response", "tool_approval")  # the same: what is said to a question


class Word(NamedTuple):
    """What counts of a line that one side tells the other. `kind` is "" for what is no line of the protocol.

    `identity` is the id of a request, of what is answered, or of a message; `verdict` what an answer says.
    """

    kind: str = ""
    identity: str = ""
    verdict: str = ""


def read_word(line: bytes) -> Word:
    """The word of one line, with or without its newline."""
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
        body = response.get("response") if isinstance(response, dict) else None
        return Word(kind, _of(response, "request_id"), verdict or _of(body, "behavior"))
    if kind == "tool_approval":
        return Word(kind, _of(said, "id"), "allow" if said.get("approved") is True else "deny")
    return Word(kind, _of(said, "uuid")) if isinstance(kind, str) else Word()


def _of(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else ""


def of_child(records: Iterable[Record], number: int) -> Iterator[Record]:
    """The records of the n-th child of a recording: its start, and its end last."""
    count = 0
    for record in records:
        if record.letter == "s":
            count += 1
        if count == number:
            yield record
        if count > number or (count == number and record.letter == "x"):
            return


def of_frontend(records: Iterable[Record]) -> Iterator[Record]:
    """The records of what the frontend said and saw; how a child ended is none of them."""
    return (record for record in records if record.letter in "iOn")


def from_message(records: Iterator[Record], told: str) -> Iterator[Record]:
    """The records of a child from the first message on that it was told; none where there is no such."""
    for record in records:
        if record.letter == told and read_word(record.data).kind == "user":
            yield record
            yield from records

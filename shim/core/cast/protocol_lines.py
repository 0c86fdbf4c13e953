"""Selects a part of a recording (one child process, or the frontend), and parses protocol lines for
a replay.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from shim.core.cast.format import RecordingRecord
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import as_dict, get_text

# The kinds of interrupts in the protocols of Claude, Yume, the Qwen RFC and pi.
INTERRUPT_KINDS = ("control_request/interrupt", "interrupt", "control/cancel", "abort")
ANSWER_KINDS = ("control_response", "tool_approval")  # used by Claude and Yume
DECISIONS = {"approve": "allow"}  # the Qwen RFC uses `approve`
HEARTBEAT_KIND = "heartbeat_request"  # sent at fixed intervals; a replay ignores it
NOTE_RESULT = "result"  # the kind of the recorder note about decisions at a turn's end
NOTE_SIGNAL = "signal"  # the kind of the recorder note about a signal to a child
# the kind of the recorder note with a child's report file; also a stream code in replay steps
NOTE_REPORT = "report"


class ProtocolLine(NamedTuple):
    """The data in a protocol line that a replay needs. `kind` is "" if the line does not belong to
    a known protocol.

    `id` is the id of a request or a message, or the id of the request that a response answers.
    `decision` is the decision in a permission response.
    """

    kind: str = ""
    id: str = ""
    decision: str = ""


def parse_protocol_line(line: bytes) -> ProtocolLine:
    """Parse a line, which may end with a newline."""
    payload = parse_json_object(line)
    kind = payload.get("type")
    if kind == "control_request":
        return ProtocolLine(
            f"{kind}/{get_text(as_dict(payload.get('request')), 'subtype')}",
            get_text(payload, "request_id"),
        )
    if kind == "control_response":
        response = as_dict(payload.get("response"))
        answer = as_dict(response.get("response", response.get("result")))
        behavior = get_text(answer, "behavior")
        decision = DECISIONS.get(behavior, behavior)
        if response.get("subtype") == "error":
            decision = "error"
        request_id = get_text(response, "request_id", get_text(payload, "request_id"))
        return ProtocolLine(kind, request_id, decision)
    if kind == "extension_ui_response":  # the answer to the shim's extension in pi
        return ProtocolLine(
            "control_response",
            get_text(payload, "id"),
            "allow" if _allows(get_text(payload, "value")) else "deny",
        )
    if kind == "prompt":
        return ProtocolLine("user")
    if kind == "tool_approval":
        return ProtocolLine(
            kind, get_text(payload, "id"), "allow" if payload.get("approved") is True else "deny"
        )
    if kind is None and isinstance(payload.get("input"), dict):
        return ProtocolLine("user")  # messages in the Qwen RFC have no type
    if kind == HEARTBEAT_KIND:
        return ProtocolLine()
    if isinstance(kind, str):
        return ProtocolLine(kind, get_text(payload, "uuid"))
    return ProtocolLine()


def _allows(value: str) -> bool:
    """Return whether the answer for the shim's pi extension allows the tool call."""
    return parse_json_object(value).get("allow") is True


def split_records_by_child(
    records: Iterable[RecordingRecord],
) -> Iterator[Iterator[RecordingRecord]]:
    """Yield the records of each child process, from its start to the start of the next child."""
    child_count = 0

    def count_child(record: RecordingRecord) -> int:
        nonlocal child_count
        child_count += record.code == "s"
        return child_count

    return (child for count, child in groupby(records, count_child) if count)


def select_child_records(
    records: Iterable[RecordingRecord], child_number: int
) -> Iterator[RecordingRecord]:
    """Yield the records of a recording's n-th child process, from its start to its end.

    The child's report file was recorded after the child's end. In the result, the report comes
    before the end, because the child wrote the file before it ended.
    """
    count = 0
    exit_record = None
    for record in records:
        if record.code == "s":
            count += 1
        if count > child_number:
            break
        if count == child_number and record.code == "x":
            exit_record = record
        elif count == child_number and (
            exit_record is None or (record.code == "n" and record.fields.get("kind") == NOTE_REPORT)
        ):
            yield record if exit_record is None else record._replace(time_s=exit_record.time_s)
    if exit_record is not None:
        yield exit_record


def select_frontend_records(records: Iterable[RecordingRecord]) -> Iterator[RecordingRecord]:
    return (record for record in records if record.code in "iOn")


def skip_to_first_message(
    records: Iterator[RecordingRecord], input_stream: str
) -> Iterator[RecordingRecord]:
    """Yield all records from the first message to a child process onwards. Yield nothing if the
    recording has no message.
    """
    for record in records:
        if record.code == input_stream and parse_protocol_line(record.data).kind == "user":
            yield record
            yield from records

"""Finds the message at which `--resume-session-at` resumes a session, in the session's transcript.

A transcript is a tree: each entry names its parent. If a session was resumed at an earlier message,
the entries that it dropped stay in the file, and the next entry names an earlier parent. The current
branch is the path from the first entry to the last one.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import orjson

from shim.core.claude.grammar import list_content_blocks, list_tool_calls, list_tool_results
from shim.core.errors import ResumeRejectedError, UnknownMessageError
from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import omit_middle
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_str, canonicalize_uuid, get_text, list_dicts

# The maximum size of the history in a prompt. It is about a quarter of a common context window.
MAX_HISTORY_CHARS = 200_000
# The limit for a tool's input or output. The model can read a file again.
MAX_TOOL_TEXT_BYTES = 8_000
MAX_ID_CHARS = 60  # the maximum length of an id in an error text

_START = (
    "[The earlier messages of this conversation follow as text. Do not answer them again, and do not "
    "repeat their tool calls. The user's new message comes after them.]"
)
_END = "[End of the earlier messages.]"
_OMISSION = "[The {count} oldest messages are omitted, because the history is too long.]"
_SYNTHETIC_MODEL = "<synthetic>"  # the model of a message that no model wrote
_ZERO_WIDTH_SPACE = "\u200b"


class TranscriptEntry(NamedTuple):
    """A line of a transcript that has an id."""

    uuid: str
    parent_uuid: str  # "" for the first entry
    line: dict[str, Any]

    @property
    def is_message(self) -> bool:
        return self.line.get("type") in ("user", "assistant")

    @property
    def is_prompt(self) -> bool:
        """Whether the entry is a message that the user wrote. Tool results and the lines that a
        program wrote into the conversation are not.
        """
        if self.line.get("type") != "user" or "parent_tool_use_id" in self.line:
            return False
        if self.line.get("isMeta"):
            return False
        return not list_tool_results(self.line)

    @property
    def is_model_answer(self) -> bool:
        """Whether the entry is a message that the model wrote. Errors and notices of a program are
        not.
        """
        if self.line.get("type") != "assistant":
            return False
        return as_dict(self.line.get("message")).get("model") != _SYNTHETIC_MODEL

    @property
    def text(self) -> str:
        """The text of the message, without tool calls and tool results."""
        content = as_dict(self.line.get("message")).get("content")
        if isinstance(content, str):
            return content
        texts = (as_str(block.get("text")) for block in list_content_blocks(self.line))
        return "\n".join(filter(None, texts))


class ResumePoint(NamedTuple):
    """The message at which a session is resumed.

    uuid             the id of the last message that is kept
    history_uuids    the ids of all entries that are kept
    history          the kept messages as text
    omitted_count    the number of kept messages that do not fit into `history`
    written_at       when the last kept message was written, in seconds since 1970; 0 if unknown
    dropped_prompts  the texts of the dropped prompts; () if only a part of a turn is dropped
    reason           a text for the user: why the vendor's session does not contain exactly the kept
                     messages
    """

    uuid: str
    history_uuids: frozenset[str]
    history: str
    omitted_count: int
    written_at: float = 0.0
    dropped_prompts: tuple[str, ...] = ()
    reason: str = ""


def find_resume_point(data: bytes, uuid: str, dropped_turn: str | None) -> ResumePoint | None:
    """Return the resume point for a message. Return None if the message is the session's last one.

    `data` is the transcript. `dropped_turn` is the id of the only prompt whose turn may be dropped.
    Raise UnknownMessageError if the current branch does not contain the message, and
    ResumeRejectedError if another turn would be dropped.
    """
    branch = list_branch_entries(data)
    position = next((index for index, entry in enumerate(branch) if entry.uuid == uuid), None)
    if position is None:
        raise UnknownMessageError(uuid)
    history_entries = branch[: position + 1]
    dropped = branch[position + 1 :]
    if dropped_turn is not None:
        _check_dropped_turn(dropped, uuid, dropped_turn)
    messages = [entry for entry in dropped if entry.is_message]
    if not messages:
        return None
    dropped_prompts: tuple[str, ...] = ()
    if messages[0].is_prompt:
        dropped_prompts = tuple(entry.text for entry in messages if entry.is_prompt)
    return _build_resume_point(history_entries)._replace(dropped_prompts=dropped_prompts)


def find_end_of_history(data: bytes, *, needs_answer: bool = False) -> ResumePoint | None:
    """Return the resume point at the last message of a transcript that the shim wrote. Return None
    if another program wrote entries in the transcript, or if it has no messages. With
    `needs_answer`, also return None if the transcript has no answer from the model.
    """
    branch = list_branch_entries(data)
    if needs_answer and not any(entry.is_model_answer for entry in branch):
        return None
    return _find_end(branch, branch)


def find_end_of_earlier_turns(data: bytes) -> ResumePoint | None:
    """Return the resume point before the last prompt of a transcript that the shim wrote. Return
    None if no message precedes the prompt, or if another program wrote entries in the transcript.
    """
    branch = list_branch_entries(data)
    prompt_positions = [position for position, entry in enumerate(branch) if entry.is_prompt]
    if not prompt_positions:
        return None
    return _find_end(branch[: prompt_positions[-1]], branch)


def _find_end(
    entries: Sequence[TranscriptEntry], branch: Sequence[TranscriptEntry]
) -> ResumePoint | None:
    """Return the resume point after the last of some entries. Return None if they have no messages,
    or if another program wrote entries in the branch.
    """
    has_messages = any(entry.is_message for entry in entries)
    if not has_messages or not all(entry.line.get("shim") is True for entry in branch):
        return None
    return _build_resume_point(entries)


def _build_resume_point(entries: Sequence[TranscriptEntry]) -> ResumePoint:
    history, omitted_count = format_history(entries)
    uuids = frozenset(entry.uuid for entry in entries)
    written_at = _parse_timestamp(as_str(entries[-1].line.get("timestamp")))
    return ResumePoint(entries[-1].uuid, uuids, history, omitted_count, written_at)


def _parse_timestamp(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def list_branch_entries(data: bytes) -> list[TranscriptEntry]:
    """Return the entries of a transcript's current branch, first entry first."""
    entries = {entry.uuid: entry for entry in _parse_entries(data)}
    branch: list[TranscriptEntry] = []
    uuid = next(reversed(entries), "")
    while entry := entries.pop(uuid, None):  # no entry is visited twice, even if there is a cycle
        branch.append(entry)
        uuid = entry.parent_uuid
    branch.reverse()
    return branch


def _parse_entries(data: bytes) -> Iterator[TranscriptEntry]:
    for text in data.split(b"\n"):
        entry = parse_transcript_entry(text)
        if entry is not None:
            yield entry


def parse_transcript_entry(text: bytes) -> TranscriptEntry | None:
    """Return the entry in a line of a transcript. Return None if the line has no id, belongs to a
    subagent or is incomplete.
    """
    try:
        line = as_dict(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None
    uuid = as_str(line.get("uuid"))
    if not uuid or line.get("isSidechain"):
        return None
    return TranscriptEntry(uuid, as_str(line.get("parentUuid")), line)


def _check_dropped_turn(dropped: Sequence[TranscriptEntry], uuid: str, dropped_turn: str) -> None:
    """Raise ResumeRejectedError unless all dropped messages belong to the turn of one prompt."""
    turn_name = dropped_turn[:MAX_ID_CHARS]
    if canonicalize_uuid(dropped_turn) is None:
        raise ResumeRejectedError(f"{turn_name} is not a UUID")
    messages = [entry for entry in dropped if entry.is_message]
    if messages and messages[0].uuid != dropped_turn:
        raise ResumeRejectedError(
            f"the message after {uuid} is not the prompt of the turn {turn_name}, but "
            f"{_describe_entry(messages[0])}"
        )
    for entry in messages[1:]:
        if entry.is_prompt:
            raise ResumeRejectedError(
                f"{_describe_entry(entry)} would be dropped too, and does not belong to the turn "
                f"{turn_name}"
            )


def _describe_entry(entry: TranscriptEntry) -> str:
    return f"the message {entry.uuid} (type {entry.line.get('type')})"


# -- the history as text ---------------------------------------------------------------------------


def format_history(entries: Sequence[TranscriptEntry]) -> tuple[str, int]:
    """Return the messages as one text for the next prompt, and the number of omitted messages. If
    the text would be too long, the oldest messages are omitted. Without messages, the text is "".
    """
    texts = [text for entry in entries if (text := _format_entry(entry))]
    newest_texts: list[str] = []
    free_chars = MAX_HISTORY_CHARS
    for text in reversed(texts):
        free_chars -= len(text)
        if free_chars < 0 and newest_texts:
            break
        newest_texts.append(text[:MAX_HISTORY_CHARS])
    if not newest_texts:
        return "", 0
    omitted_count = len(texts) - len(newest_texts)
    parts = [_START]
    if omitted_count:
        parts.append(_OMISSION.format(count=omitted_count))
    history = "\n\n".join([*parts, *reversed(newest_texts), _END])
    return history, omitted_count


def _format_entry(entry: TranscriptEntry) -> str:
    """Return a message as text, or "" if it has no text, tool call or tool result."""
    if not entry.is_message:
        return ""
    if entry.line["type"] == "assistant" and not entry.is_model_answer:  # a notice
        return ""
    parts = [*_list_texts(entry)]
    for call in list_tool_calls(entry.line):
        tool_input = omit_middle(dump_json(call.get("input")).decode(), MAX_TOOL_TEXT_BYTES)
        parts.append(f"Tool call: {call.get('name')} {tool_input}")
    for result in list_tool_results(entry.line):
        parts.append(f"Tool result: {_format_result(result)}")
    return _disable_references("\n\n".join(parts))


def _list_texts(entry: TranscriptEntry) -> Iterator[str]:
    title = "Message of the assistant:"
    if entry.line.get("type") == "user":
        title = "Message of the user:"
    content = as_dict(entry.line.get("message")).get("content")
    if isinstance(content, str):
        yield f"{title} {content}"
        return
    for block in list_content_blocks(entry.line):
        if block.get("type") == "text":
            yield f"{title} {as_str(block.get('text'))}"
        elif block.get("type") in ("image", "document"):
            yield f"{title} ({block['type']})"


def _format_result(result: dict[str, Any]) -> str:
    content = result.get("content")
    if not isinstance(content, str):
        content = "\n".join(
            get_text(block, "text", f"({block.get('type')})") for block in list_dicts(content)
        )
    return omit_middle(content, MAX_TOOL_TEXT_BYTES)


def _disable_references(text: str) -> str:
    """Return the text with a zero-width space after each `@`, so that no vendor replaces `@FILE` in
    a tool's output with the file's content. The line that ends the history is also changed, so that
    a message cannot end the history.
    """
    return text.replace("@", f"@{_ZERO_WIDTH_SPACE}").replace(
        _END, f"[{_ZERO_WIDTH_SPACE}{_END[1:]}"
    )

"""Reads codex's own record of a thread, which contains data that its stream lacks.

The file is `sessions/YEAR/MONTH/DAY/rollout-TIME-THREAD.jsonl` in codex's data directory, with the
local date. It is read while it grows. Measured with 0.169.0:

- The contents of a file change are recorded before its `item.completed` is printed. The files
  themselves cannot be used: without the sandbox they are changed before `item.started` can be read.
- Each call of the model is recorded with its output, even if the stream has no item for it. This
  happens to refused calls, and to commands that failed at once in the sandbox.
- An item is recorded before the output of its call.

Each line is {"type":…,"payload":{…}}. A line with the type `turn_context` names the model of the
turn. These are the other payloads that are read:

    {"type":"task_started",…}                                                      a turn starts
    {"type":"function_call","name":"exec_command","arguments":"{\\"cmd\\":…}","call_id":C}
    {"type":"custom_tool_call","name":"apply_patch","input":"*** Begin…","call_id":C}
    {"type":"item_completed","item":{"type":"FileChange","id":C,"changes":{PATH:CHANGE},"stdout":…,"stderr":…}}
    {"type":"function_call_output","call_id":C,"output":"…"}, or custom_tool_call_output

A CHANGE is {"type":"add","content":…}, {"type":"update","unified_diff":…,"move_path":…} or
{"type":"delete",…}.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shim.core.policy.policy import MCP_PREFIX
from shim.core.reading.values import as_str, get_text
from shim.core.turn.context import VendorDataReader

# Limit for a turn's calls and changes that are not written yet. No real turn has more.
MAX_PENDING_ENTRIES = 1000
MAX_SEARCHES = 20  # a record is created before the first item is printed, or never
# The folder has the local date, which may differ by a day from the thread's date in UTC.
DAY_OFFSETS = (0, -1, 1)
# The quotes in these markers are not escaped, so a text from the user or the model cannot contain
# a marker.
TASK_STARTED_MARKER = b'"type":"task_started"'
TURN_CONTEXT = "turn_context"
USER_MESSAGE_MARKER = b'"item":{"type":"UserMessage",'
RELEVANT_MARKERS = (
    b'"type":"item_completed"',
    b'_call",',
    b'_call_output",',
    b'"type":"turn_context"',
)
# Type of a file change → Claude's tool. Any other type is an Edit.
CHANGE_TOOL_NAMES = {"add": "Write", "delete": "Delete"}
# Matches the beginning of a finished command's output. Without this text, the command may still be
# running.
EXIT_CODE_REGEX = r"Process exited with code (\d+)\n"
SHELL_TOOL = "exec_command"
PATCH_REJECTED = "patch rejected"  # the sandbox refused it; other errors are the model's mistakes
PATCH_ERRORS = (PATCH_REJECTED, "apply_patch verification failed")
# The output of a call that the shim's hook has blocked starts with one of these texts.
HOOK_BLOCKED = ("Command blocked by PreToolUse hook: ", "Tool call blocked by PreToolUse hook: ")
REFUSAL_PREFIXES = (
    *HOOK_BLOCKED,
    *PATCH_ERRORS,
    "unsupported call",
    "failed to parse function arguments",
)

ClaudeCall = tuple[str, dict[str, Any]]


class UnstreamedToolCall(NamedTuple):
    """A call from the model that is missing in the stream: Claude's tool calls for it, and its
    output.
    """

    call_id: str
    calls: list[ClaudeCall]
    output: str
    is_error: bool
    is_denied: bool


class RecordedPrompt(NamedTuple):
    """A message of the user in the record of a thread."""

    turn_id: str
    text: str


def find_turn_before_prompts(
    data_dir: VendorDataReader, thread_id: str, prompts: Sequence[str]
) -> str:
    """Return the id of the turn before the last prompts of a thread.

    Return "" if the record does not end with these prompts, or if the first of these prompts was
    sent into a running turn.
    """
    recorded = CodexRollout(data_dir, thread_id).list_prompts()
    count = len(prompts)
    if not 0 < count < len(recorded):
        return ""
    turn_before = recorded[-count - 1]
    dropped = recorded[-count:]
    if turn_before.turn_id == dropped[0].turn_id:
        return ""
    # The recorded text may also contain system prompts or an instruction of the shim.
    if all(text in entry.text for text, entry in zip(prompts, dropped, strict=True)):
        return turn_before.turn_id
    return ""


class CodexRollout:
    """The record of one codex thread. `model` is the turn's model, or "" before it has
    been read.
    """

    def __init__(self, data_dir: VendorDataReader, thread_id: str) -> None:
        self.model = ""
        self._data_dir = data_dir
        self._thread_id = thread_id
        self._path: str | None = None
        self._search_count = 0
        self._read_offset = 0
        self._changes: list[dict[str, Any]] = []
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._missing_calls: list[UnstreamedToolCall] = []

    def take_recorded_file_change(self, paths: set[str]) -> dict[str, Any] | None:
        """Return the first recorded change whose set of files is `paths`, or None. Each change is
        returned only once.
        """
        self._read_new_lines()
        for index, change in enumerate(self._changes):
            if set(change["changes"]) == paths:
                return self._changes.pop(index)
        return None

    def take_unstreamed_tool_calls(self) -> list[UnstreamedToolCall]:
        """Return the tool calls that are missing in the stream and were not returned before."""
        self._read_new_lines()
        missing_calls = self._missing_calls
        self._missing_calls = []
        return missing_calls

    def list_prompts(self) -> list[RecordedPrompt]:
        """Return the user's messages at the end of the record."""
        if (path := self._find_path()) is None:
            return []
        _, data = self._data_dir.read_tail(path)
        prompts = []
        for line in data.split(b"\n"):
            if USER_MESSAGE_MARKER not in line:
                continue
            try:
                payload = orjson.loads(line)["payload"]
                parts = payload["item"]["content"]
                text = "\n".join(part["text"] for part in parts if part["type"] == "text")
                prompts.append(RecordedPrompt(str(payload["turn_id"]), text))
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # the first line is incomplete, or another version wrote it
        return prompts

    def _read_new_lines(self) -> None:
        if self._path is None and self._search_count < MAX_SEARCHES:
            self._search_count += 1
            self._path = self._find_path()
        if self._path is None:
            return
        start, data = self._data_dir.read_tail(self._path, self._read_offset)
        end = data.rfind(b"\n") + 1  # the last line may be incomplete
        self._read_offset = start + end
        for line in data[max(data.rfind(TASK_STARTED_MARKER, 0, end), 0) : end].split(b"\n"):
            if any(marker in line for marker in RELEVANT_MARKERS):
                try:
                    entry = orjson.loads(line)
                    payload = entry["payload"]
                    self._record_payload(
                        payload,
                        TURN_CONTEXT if entry.get("type") == TURN_CONTEXT else payload["type"],
                    )
                except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                    continue  # the first line is incomplete, or another version wrote it

    def _find_path(self) -> str | None:
        """Return the path of the thread's record, or None. The first part of a thread's id is its
        start time in milliseconds.
        """
        from datetime import UTC, datetime, timedelta

        try:
            started_at = datetime.fromtimestamp(
                int(self._thread_id.replace("-", "")[:12], 16) / 1000, UTC
            )
            folders = [f"sessions/{started_at + timedelta(days):%Y/%m/%d}" for days in DAY_OFFSETS]
        except (ValueError, OverflowError, OSError):
            return None
        paths = (
            self._data_dir.find_file(folder, f"-{self._thread_id}.jsonl") for folder in folders
        )
        return next((path for path in paths if path), None)

    def _record_payload(self, payload: Mapping[str, Any], kind: str) -> None:
        if kind == "item_completed":
            item = payload["item"]
            self._calls.pop(item["id"], None)  # the stream contains this call
            if item["type"] == "FileChange" and isinstance(item["changes"], dict):
                self._changes.append(item)
                del self._changes[:-MAX_PENDING_ENTRIES]
        elif kind == TURN_CONTEXT:
            self.model = str(payload["model"])
        elif kind in ("function_call", "custom_tool_call"):
            if len(self._calls) < MAX_PENDING_ENTRIES:
                self._calls[payload["call_id"]] = payload
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call = self._calls.pop(payload["call_id"], None)
            missing_call = None
            if call is not None:
                missing_call = _find_missing_call(call, payload["output"])
            if missing_call is not None:
                self._missing_calls.append(missing_call)
                del self._missing_calls[:-MAX_PENDING_ENTRIES]


def _find_missing_call(call: Mapping[str, Any], output: object) -> UnstreamedToolCall | None:
    """Return a recorded call if no item can arrive for it any more, because it was refused or its
    command has ended. Otherwise return None.
    """
    name = _format_tool_name(call)
    text = as_str(output)
    is_refused = text.startswith(REFUSAL_PREFIXES)
    head, _, output_body = text.partition("Output:\n")
    exit_match = None
    if name == SHELL_TOOL:
        exit_match = re.search(EXIT_CODE_REGEX, head)
    if not (is_refused or exit_match):
        return None
    is_error = is_refused
    if exit_match is not None and exit_match[1] != "0":
        is_error = True
    return UnstreamedToolCall(
        str(call["call_id"]),
        _list_claude_calls(call, text),
        output_body if exit_match else text,
        is_error,
        text.startswith((*HOOK_BLOCKED, PATCH_REJECTED)),
    )


def _list_claude_calls(call: Mapping[str, Any], output: str) -> list[ClaudeCall]:
    """Return Claude's tool calls for a recorded call. `output` shows whether the call is a patch."""
    name = _format_tool_name(call)
    arguments = _parse_arguments(call)
    input_text = get_text(arguments, "cmd" if name == SHELL_TOOL else "input")
    if output.startswith((*HOOK_BLOCKED, *PATCH_ERRORS)):
        calls = parse_patch_as_tool_calls(input_text)
        if calls:
            return calls
    if name == "view_image":
        return [("Read", {"file_path": get_text(arguments, "path")})]
    if name == SHELL_TOOL and input_text:
        return [("Bash", {"command": input_text})]
    return [(name, arguments)]


def _format_tool_name(call: Mapping[str, Any]) -> str:
    """Return the name of the tool that the model called. An MCP tool's name includes its server."""
    name = str(call["name"])
    namespace = call.get("namespace")
    if isinstance(namespace, str) and namespace.startswith(MCP_PREFIX):
        return f"{namespace}__{name}"
    return name


def _parse_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call: its `input` if the tool takes a text, otherwise its parsed
    JSON.
    """
    if "input" in call:
        return {"input": call["input"]}
    try:
        arguments = orjson.loads(call["arguments"])
    except orjson.JSONDecodeError:
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    return {"raw": call["arguments"]}


def build_file_change_tool_calls(path: str, change: Mapping[str, Any]) -> list[ClaudeCall]:
    """Return Claude's tool calls for the recorded change of one file. The list is never empty."""
    file_argument = {"file_path": path}
    kind = change.get("type")
    if kind == "add" and isinstance(change.get("content"), str):
        return [("Write", file_argument | {"content": change["content"]})]
    diff = None
    if kind == "update":
        diff = change.get("unified_diff")
    tool_without_diff = CHANGE_TOOL_NAMES.get(str(kind), "Edit")
    return _build_edit_calls(file_argument, as_str(diff), tool_without_diff)


def parse_patch_as_tool_calls(patch: str) -> list[ClaudeCall]:
    """Return Claude's tool calls for a patch in codex's format. The paths are those that the model
    wrote.
    """
    calls: list[ClaudeCall] = []
    for part in re.split(r"^\*\*\* (?=(?:Add|Update|Delete) File: )", patch, flags=re.M)[1:]:
        header, _, body = part.partition("\n")
        verb, _, path = header.partition(" File: ")
        body = body.partition("\n*** End Patch")[0]
        file_argument: dict[str, Any] = {"file_path": path.strip()}
        if verb == "Add":
            lines = [line[1:] for line in body.split("\n") if line.startswith("+")]
            calls.append(
                ("Write", file_argument | {"content": "".join(f"{line}\n" for line in lines)})
            )
        elif verb == "Delete":
            calls.append(("Delete", file_argument))
        else:
            calls += _build_edit_calls(file_argument, body)
    return calls


def _build_edit_calls(
    file_argument: dict[str, Any], diff: str, tool_without_diff: str = "Edit"
) -> list[ClaudeCall]:
    """Return an edit for each hunk of a diff. If there is no hunk, return a single call of
    `tool_without_diff`.
    """
    calls: list[ClaudeCall] = [
        ("Edit", file_argument | {"old_string": old, "new_string": new})
        for old, new in split_diff_hunks(diff)
    ]
    if not calls:
        return [(tool_without_diff, file_argument)]
    return calls


def split_diff_hunks(diff: str) -> Iterator[tuple[str, str]]:
    """Yield the old text and the new text of each hunk in a unified diff, including
    context lines.
    """
    old: list[str] = []
    new: list[str] = []
    last_sides: list[list[str]] = []  # the texts (old, new or both) that contain the previous line
    for line in diff.split("\n"):
        prefix = line[:1]
        if prefix == "@":
            if old or new:
                yield "".join(old), "".join(new)
            old = []
            new = []
        elif prefix in (" ", "-", "+"):
            last_sides = [
                side
                for side, excluded_prefix in ((old, "+"), (new, "-"))
                if prefix != excluded_prefix
            ]
            for side in last_sides:
                side.append(line[1:] + "\n")
        elif prefix == "\\":  # "No newline at end of file"
            for side in last_sides:
                side[-1] = side[-1].removesuffix("\n")
    if old or new:
        yield "".join(old), "".join(new)

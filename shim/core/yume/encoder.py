"""Encodes a turn in Yume's dialect, with one small object per line (Yume's reference, sections 2 to
4).

The line types are `text`, `thinking`, `tool_use`, `tool_result`, `usage`, `result`, `error`,
`interrupt`, `system` and `message_stop`. Each text fragment becomes a line as soon as it arrives,
so complete blocks are not written again. The module `order` determines the order of tool calls,
results and text. A turn ends with the usage, an error or interrupt if there was one, the result,
and the terminator.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.output_writer import OutputWriter
from shim.core.claude.usage import Usage, parse_usage
from shim.core.dialects import DIALECTS
from shim.core.reading.json_text import dump_json, escape_line_separators
from shim.core.reading.limits import omit_middle, shorten_strings, split_text
from shim.core.reading.values import as_dict, get_text
from shim.core.yume.order import OrderedToolCallOutput
from shim.core.yume.protocol import (
    RETRYABLE_CODES,
    choose_yume_error_code,
    format_tool_result,
    parse_retry_delay_s,
)

TERMINATOR = b'{"type":"message_stop"}\n'
CHARS_PER_TOKEN = 4  # used for the token estimate (R6)
COMPACTION_TRIGGERS = ("auto", "manual")

USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
TOOL_NAME_BY_CLAUDE_NAME = {"Agent": "Task"}  # Yume uses Claude's older tool name

# The fields in the shim's result that Yume reads. The answer is not among them, because it was
# written earlier.
COPIED_RESULT_FIELDS = (
    "duration_ms",
    "duration_api_ms",
    "total_cost_usd",
    "modelUsage",
    "structured_output",
    "shim",
)


class YumeEncoder(OutputWriter):
    """Writes Yume's lines into a buffer. `take_bytes` returns the buffered lines. Events without a
    line in Yume's dialect are ignored.

    A process uses a single encoder. So `init` is written only once (R1), and the texts are numbered
    across turns. `frontend_session_id` is the frontend's session id if that id is not a UUID.
    `transcript_writer` writes the same messages in Claude's format to a transcript, which is used
    to list past sessions.
    """

    writes_partial_messages = True
    has_result_terminator_line = True

    def __init__(
        self,
        uuid_prefix: str,
        *,
        max_line_bytes: int = 0,
        frontend_session_id: str = "",
        transcript_writer: OutputWriter | None = None,
    ) -> None:
        dialect_max_bytes = DIALECTS["yume"].max_line_bytes
        super().__init__(min(max_line_bytes or dialect_max_bytes, dialect_max_bytes))
        self.transcript_writer = transcript_writer
        # without a transcript, a writer of the base class ignores all messages
        self._transcript = transcript_writer or OutputWriter()
        self._uuid_prefix = uuid_prefix
        self._frontend_session_id = frontend_session_id
        self._uuid_count = 0
        self._chunk_count = 0
        self._session_id: str | None = None
        self._lines: list[bytes] = []
        self._block_kind = "text"
        self._reset_turn()

    def _reset_turn(self) -> None:
        """Reset the state that belongs to one turn."""
        # the session ids that the frontend knows at the start of the turn
        self._session_ids_before_turn = self._session_id, self._frontend_session_id
        self._ordered_output = OrderedToolCallOutput(self._lines, self._encode_result)
        self._has_response = False
        self._has_text = False
        self._input_chars = self._output_chars = 0  # used to estimate the tokens
        self._error_and_status: tuple[str, int | None] = ("", None)

    def take_bytes(self) -> bytes:
        output = b"".join(self._lines)
        self._lines.clear()
        return output

    def discard_turn(self) -> None:
        """Discard the turn's lines and the session id in them, because the frontend has not
        received these lines.
        """
        self._session_id, self._frontend_session_id = self._session_ids_before_turn
        self._lines.clear()
        self._reset_turn()
        self._transcript.discard_turn()

    def create_uuid(self) -> str:
        self._uuid_count += 1
        return f"{self._uuid_prefix}{self._uuid_count:012x}"

    def count_prompt_chars(self, prompt: str) -> None:
        """Count the characters in a prompt. The count is used to estimate the input tokens."""
        self._input_chars += len(prompt)

    # -- session and turn --------------------------------------------------------------------------

    def write_init_message(self, session_id: str, fields: Mapping[str, Any]) -> None:
        """Write the first line of the process. In later turns, write only a session id that has
        changed (R1, R12).
        """
        self._transcript.write_init_message(session_id, fields)
        if self._session_id is not None:
            self.write_session_id_change(session_id)
            return
        self._session_id = session_id
        line: dict[str, Any] = {
            "type": "system",
            "subtype": "init",
            "session_id": self._resolve_session_id(),
            "model": get_text(fields, "model", "unknown"),
            "cwd": get_text(fields, "cwd"),
            "permissionMode": get_text(fields, "mode", "default"),
            "tools": list(
                dict.fromkeys(
                    TOOL_NAME_BY_CLAUDE_NAME.get(name, name) for name in fields.get("tools", ())
                )
            ),
            "uuid": self.create_uuid(),
            "shim": as_dict(fields.get("shim")),
        }
        self._write_line(line)

    def write_session_id_change(self, session_id: str) -> None:
        """Write the new session id with which the conversation can be resumed (R12)."""
        if session_id != self._session_id:
            self._session_id = session_id
            self._frontend_session_id = ""
            self._write_line({"type": "system", "subtype": "session_id", "session_id": session_id})

    def write_system_message(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """Write a compaction event. Yume understands no other system event (R12)."""
        if subtype == "compact_boundary":
            compact_metadata = as_dict(fields.get("compact_metadata"))
            trigger = compact_metadata.get("trigger")
            metadata = {
                "trigger": trigger if trigger in COMPACTION_TRIGGERS else COMPACTION_TRIGGERS[0],
                "pre_tokens": parse_usage({"input_tokens": compact_metadata.get("pre_tokens")})[
                    "input_tokens"
                ],
            }
            line = {
                "type": "system",
                "subtype": subtype,
                "session_id": self._resolve_session_id(),
                "compact_metadata": metadata,
            }
            self._write_line(line)

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the lines that end the turn (R6, R7, R9, R10, R11)."""
        self._ordered_output.write_all_buffered_lines()
        shim_fields = as_dict(fields.get("shim"))
        cause = get_text(shim_fields, "cause")
        is_error = bool(fields.get("is_error"))
        answer = fields.get("result")
        if (
            not is_error
            and not self._has_text
            and isinstance(answer, str)
            and "structured_output" not in fields
        ):
            self._write_text("text", answer)  # the answer was not written as text before the result
        usage = self._resolve_usage(fields.get("usage"))
        self._write_line({"type": "usage", **usage})
        line: dict[str, Any] = {"is_error": is_error, "subtype": "success", "usage": usage}
        if cause == "interrupted":
            line["subtype"] = "cancelled"
            self._lines.append(b'{"type":"interrupt"}\n')
        elif is_error:
            line |= self._write_failure(fields, cause)
        line |= {name: fields[name] for name in COPIED_RESULT_FIELDS if name in fields}
        if late_count := self._ordered_output.late_result_count:
            repairs = as_dict(shim_fields.get("repairs"))
            line["shim"] = shim_fields | {"repairs": {**repairs, "late_tool_result": late_count}}
        line |= {"uuid": self.create_uuid(), "session_id": self._resolve_session_id()}
        self._write_line({"type": "result", **line})
        self.last_result_line = self._lines[-1]
        self._transcript.finalize_turn_usage(fields)
        self.write_result_terminator_line()
        self._reset_turn()

    def write_result_terminator_line(self) -> None:
        """Write the terminator line of a turn. `write_result` also writes this line."""
        self._lines.append(TERMINATOR)

    def _write_failure(self, result_fields: Mapping[str, Any], cause: str) -> dict[str, Any]:
        """Write the error line. Return the fields that the result line repeats."""
        errors = result_fields.get("errors")
        if not errors:
            errors = [get_text(result_fields, "result", cause)]
        error_name, status = self._error_and_status
        code = choose_yume_error_code(error_name, cause, str(errors[0]))
        error_fields: dict[str, Any] = {"message": errors[0], "code": code}
        retry_fields: dict[str, Any] = {}
        if status is not None:
            retry_fields["status"] = status
        if code in RETRYABLE_CODES:
            retry_fields["retryable"] = True
            if (delay_s := parse_retry_delay_s(str(errors[0]))) is not None:
                retry_fields["retry_after"] = delay_s
        if code == "AUTH" and not self._has_response:
            self._write_line(
                {
                    "type": "system",
                    "subtype": "error",
                    "session_id": self._resolve_session_id(),
                    **error_fields,
                }
            )
        else:
            self._write_line({"type": "error", **error_fields, **retry_fields})
        subtype = result_fields.get("subtype")
        return {
            "subtype": subtype if subtype != "success" else "error_during_execution",
            "errors": errors,
            **retry_fields,
        }

    def _resolve_usage(self, reported_usage: object) -> dict[str, Any]:
        """Return the usage that the vendor reported. If there is none, return an estimate that is
        marked as an estimate (R6).
        """
        usage = parse_usage(reported_usage)
        if any(usage.values()):
            return {name: usage[name] for name in USAGE_KEYS}
        input_chars = 0
        if self._has_response:
            input_chars = self._input_chars
        estimate = dict.fromkeys(USAGE_KEYS, 0) | {
            "input_tokens": -(-input_chars // CHARS_PER_TOKEN),
            "output_tokens": -(-self._output_chars // CHARS_PER_TOKEN),
        }
        return {name: estimate[name] for name in USAGE_KEYS} | {"estimated": True}

    def _resolve_session_id(self) -> str:
        return self._frontend_session_id or self._session_id or ""

    # -- assistant messages ------------------------------------------------------------------------

    def start_message(self, model: str, usage: Usage) -> None:
        self._transcript.start_message(model, usage)

    def set_message_usage(self, usage: Usage) -> None:
        self._transcript.set_message_usage(usage)

    def add_usage(self, usage: Usage) -> None:
        self._transcript.add_usage(usage)

    def start_block(self, kind: str) -> None:
        self._block_kind = kind

    def write_block_delta(self, text_json: bytes) -> None:
        """Write a text fragment as a line (R2, R13)."""
        if not text_json.isascii():
            text_json = escape_line_separators(text_json)
        self._has_response = True
        self._output_chars += (
            len(text_json) if text_json.isascii() else len(text_json.decode())
        ) - 2
        self._ordered_output.add_non_tool_line("", self._encode_text(self._block_kind, text_json))
        self._has_text |= self._block_kind == "text"

    def write_block(self, kind: str, text_json: bytes, is_aborted: bool = False) -> None:
        """Write a content block to the transcript only, because its fragments were already written
        as lines.
        """
        self._transcript.write_block(kind, text_json, is_aborted)

    def write_complete_block(self, block_kind: str, text_json: bytes) -> None:
        """Write a complete content block as a single fragment."""
        self._block_kind = block_kind
        self.write_block_delta(text_json)
        self._transcript.write_block(block_kind, text_json)

    def write_tool_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Write a complete tool call (R3, R5). If its arguments had to be shortened, return the
        shortened arguments.
        """
        input_json, written_input = self._shorten_input(tool_input)
        self._has_response = True
        self._output_chars += len(input_json)
        line = self._encode_call(call_id, "", name, input_json)
        self.last_call_bytes = len(line)
        self._ordered_output.add_tool_call_line("", call_id, line)
        self._transcript.write_tool_call(call_id, name, written_input)
        if written_input is tool_input:
            return None
        return written_input

    def write_tool_result(
        self,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        content: object,
        is_error: bool,
    ) -> None:
        """Write a tool result as a single text."""
        self._transcript.write_tool_result(call_id, name, tool_input, content, is_error)
        text = format_tool_result(content)
        self._input_chars += len(text)
        self._ordered_output.add_tool_result_line(
            "", call_id, self._encode_result(call_id, "", text, is_error)
        )

    def write_buffered_call(self, call_id: str) -> None:
        """Write a buffered tool call immediately, because the frontend must answer its permission
        prompt.
        """
        self._ordered_output.write_buffered_call_and_ancestors(call_id)

    def write_user_text(self, text: str) -> None:
        """Write a text from the user to the transcript. Yume has a separate line type for an
        interrupt (R9).
        """
        self._transcript.write_user_text(text)

    def write_synthetic_message(self, text: str) -> None:
        self._transcript.write_synthetic_message(text)
        self._write_line({"type": "text", "content": text, "id": self._create_chunk_id()})

    def write_api_error(
        self, text: str, error: str, status: int | None, error_type: str | None = None
    ) -> None:
        """Store an API error, which is written together with the result."""
        self._transcript.write_api_error(text, error, status, error_type)
        self._error_and_status = (error, status)

    # -- subagents ---------------------------------------------------------------------------------

    def write_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """Write a subagent's message. It uses the same line types, with the id of the tool call
        that runs the subagent.
        """
        self._transcript.write_subagent_message(parent_call_id, role, message)
        for block in message["content"]:
            kind = block["type"]
            if kind == "tool_use":
                input_json, _ = self._shorten_input(block["input"])
                self._ordered_output.add_tool_call_line(
                    parent_call_id,
                    block["id"],
                    self._encode_call(block["id"], parent_call_id, block["name"], input_json),
                )
            elif kind == "tool_result":
                line = self._encode_result(
                    block["tool_use_id"],
                    parent_call_id,
                    format_tool_result(block["content"]),
                    block["is_error"],
                )
                self._ordered_output.add_tool_result_line(
                    parent_call_id, block["tool_use_id"], line
                )
            elif role == "assistant" and kind in ("text", "thinking"):
                for piece in split_text(block[kind], self.max_bytes):
                    self._ordered_output.add_non_tool_line(
                        parent_call_id, self._encode_text(kind, dump_json(piece), parent_call_id)
                    )

    def set_session_id(self, session_id: str) -> None:
        """Write the init line before a result that no init line precedes, because Yume needs it."""
        self.write_init_message(session_id, {})

    # -- lines -------------------------------------------------------------------------------------

    def _write_text(self, kind: str, text: str) -> None:
        for piece in split_text(text, self.max_bytes):
            self._block_kind = kind
            self.write_block_delta(dump_json(piece))

    def _encode_text(self, kind: str, text_json: bytes, parent_call_id: str | None = "") -> bytes:
        parent_member = self._encode_parent(parent_call_id)
        if kind == "thinking":
            return b'{"type":"thinking","is_thinking":true,"thought":%b%b}\n' % (
                text_json,
                parent_member,
            )
        return b'{"type":"text","content":%b,"id":"%b"%b}\n' % (
            text_json,
            self._create_chunk_id().encode(),
            parent_member,
        )

    def _create_chunk_id(self) -> str:
        self._chunk_count += 1
        return f"chunk-{self._chunk_count}"

    def _encode_call(
        self, call_id: str, parent_call_id: str | None, name: str, input_json: bytes
    ) -> bytes:
        members = (
            dump_json(call_id),
            dump_json(TOOL_NAME_BY_CLAUDE_NAME.get(name, name)),
            input_json,
            self._encode_parent(parent_call_id),
        )
        return b'{"type":"tool_use","id":%b,"name":%b,"input":%b%b}\n' % members

    def _encode_result(
        self, call_id: str, parent_call_id: str | None, text: str, is_error: bool
    ) -> bytes:
        is_error_json = b"false"
        if is_error:
            is_error_json = b"true"
        members = (
            dump_json(call_id),
            dump_json(omit_middle(text, self.max_bytes)),
            is_error_json,
            self._encode_parent(parent_call_id),
        )
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b,"is_error":%b%b}\n' % members

    def _encode_parent(self, parent_call_id: str | None) -> bytes:
        """Return the last member of a subagent's line as JSON, or b"" for the main agent."""
        if parent_call_id == "":
            return b""
        return b',"parent_tool_use_id":%b' % dump_json(parent_call_id)

    def _shorten_input(self, tool_input: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
        """Return a tool call's input as JSON and as a value. An input that is too long for a line
        is shortened.
        """
        input_json = dump_json(tool_input)
        if len(input_json) <= self.max_bytes:
            return input_json, tool_input
        shortened_input = shorten_strings(tool_input, self.max_bytes)
        if not isinstance(shortened_input, dict):
            shortened_input = {"raw": shortened_input}
        return dump_json(shortened_input), shortened_input

    def _write_line(self, line: Mapping[str, Any]) -> None:
        self._lines.append(self._encode_line(line) + b"\n")

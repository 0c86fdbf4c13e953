"""Writes Claude's stream-json. Only this module and `line_pieces` contain the format of Claude's
lines.

The formats are defined in contract section 5. The constant parts of a line are encoded once for
each turn, model or content block. For each line, only the content and one number are encoded, which
takes about a microsecond.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from shim.core.claude.line_pieces import (
    BLOCK_PIECES,
    CONTENT_MEMBER,
    DELTA_USAGE_MEMBER,
    EVENT_END,
    FAILED_RESULT_END,
    INPUT_MEMBER,
    MAIN_AGENT_MEMBER,
    MESSAGE_DELTA_EVENT,
    MESSAGE_HEAD,
    MESSAGE_START_EVENT,
    MESSAGE_STOP_EVENT,
    NAME_MEMBER,
    NO_STOP_REASON_MEMBERS,
    NO_TOOL_USE_RESULT,
    NO_USAGE_JSON,
    RESULT_ENCODERS,
    RESULT_END,
    TOOL_RESULT_START,
    TOOL_USE_BYTES,
    TOOL_USE_START,
    LineBuffer,
    encode_block_start_delta_and_stop,
    encode_failed_tool_result,
    encode_name_as_json,
    encode_repeated_result,
    generate_line_uuid_suffixes,
    generate_message_ids,
)  # fmt: skip
from shim.core.claude.output_writer import OutputWriter
from shim.core.claude.subagent_log import AGENT_TOOLS, SubagentLog
from shim.core.claude.usage import NO_USAGE, MessageUsageCounter, Usage, parse_usage
from shim.core.policy.policy import MCP_PREFIX
from shim.core.reading.json_text import dump_json, escape_line_separators
from shim.core.reading.limits import shorten_strings
from shim.core.reading.values import as_dict, as_list, get_text

CLAUDE_VERSION = "2.1.332"  # the version that was last compared with the contract

# The capabilities in `init`, on which clients rely: the response to an interrupt reports the messages
# that are still queued, and an interrupt can drop these messages.
CAPABILITIES = ("interrupt_receipt_v1", "interrupt_cancel_queued_v1")

TERMINATORS = {"message_stop": b'{"type":"message_stop"}\n', "dollar": b"$\n", "none": b""}

RESERVED_FIELDS = ("type", "subtype", "session_id", "uuid")  # fields that a vendor cannot set


class StreamJsonWriter(OutputWriter):
    """Writes Claude's lines into a buffer, which `take_bytes` returns. Every method appends
    complete lines.

    `uuid_prefix` is the first 24 characters of every line's UUID. The rest of the UUID is a
    counter, so no random numbers are needed. The prefix also makes message ids unique.
    `max_line_bytes` is the maximum length of a line, or 0 for no limit. The Turn keeps texts and
    tool calls below `max_bytes`, and this class shortens everything else. `usage_counter` counts
    the usage of each message for the transcript, and `subagent_log` collects the messages of
    subagents for their transcripts.
    """

    def __init__(
        self,
        uuid_prefix: str,
        *,
        writes_partial_messages: bool = False,
        terminator: bytes = b"",
        max_line_bytes: int = 0,
        usage_counter: MessageUsageCounter | None = None,
        subagent_log: SubagentLog | None = None,
    ) -> None:
        super().__init__(max_line_bytes)
        self.writes_partial_messages = writes_partial_messages
        self._terminator = terminator
        self.has_result_terminator_line = bool(terminator)
        self.usage_counter = usage_counter
        self.subagent_log = subagent_log
        self._lines = LineBuffer()
        self._uuid_prefix = uuid_prefix.encode()
        self._line_ends = generate_line_uuid_suffixes()
        self._message_ids = generate_message_ids(b"msg_" + uuid_prefix.replace("-", "").encode())
        self._last_call = ("", b"")  # the last tool call's id, and the id as JSON
        self._block_index = 0  # the index of the open or next content block
        # the last message's model, and the JSON members that contain the model
        self._encoded_model: tuple[str, bytes] = ("", b"")
        # the last message's usage, and the usage as JSON
        self._encoded_usage: tuple[Usage | None, bytes] = (None, b"")

    claude_version = CLAUDE_VERSION  # the version that is written into `init`

    def take_bytes(self) -> bytes:
        return self._lines.take_joined_lines()

    def discard_turn(self) -> None:
        """Discard the turn's lines and usage. The frontend has not received any of the lines."""
        self._lines.take_joined_lines()
        if self.usage_counter is not None:
            self.usage_counter.discard_current_turn_usage()
        if self.subagent_log is not None:
            self.subagent_log.discard_changes()

    def compact_buffered_lines(self) -> None:
        self._lines.compact_buffered_lines()

    def create_uuid(self) -> str:
        """Return a new UUID for a synthetic id."""
        return (self._uuid_prefix + next(self._line_ends)[:12]).decode()

    def set_session_id(self, session_id: str) -> None:
        """Set the session id for all following lines. The constant end of these lines, up to the
        counter in the UUID, is encoded in advance.
        """
        self._line_tail = (
            b',"session_id":' + dump_json(session_id) + b',"uuid":"' + self._uuid_prefix
        )
        self._event_tail = EVENT_END + self._line_tail
        self._encoded_usage = (None, b"")  # the tail of a message contains the session id
        self._no_usage_tail = b"".join(
            (NO_STOP_REASON_MEMBERS, NO_USAGE_JSON, b"}", MAIN_AGENT_MEMBER, self._line_tail)
        )

    def set_current_message(self, message_id: str, model: str, usage: Usage) -> None:
        model_members = (
            b'","type":"message","role":"assistant","model":' + dump_json(model) + b',"content":['
        )
        self._message_head = MESSAGE_HEAD + dump_json(message_id)[1:-1] + model_members
        self._block_index = 0
        self.set_message_usage(usage)

    def set_block_index(self, index: int) -> None:
        self._block_index = index

    def write_passthrough_line(self, line: bytes) -> None:
        """Write a line that is already in Claude's format. `line` has no newline."""
        if not line.isascii():
            line = escape_line_separators(line)
        self._lines.append(line + b"\n")

    # -- session and turn --------------------------------------------------------------------------

    def write_init_message(self, session_id: str, fields: Mapping[str, Any]) -> None:
        """Write the `system/init` line (contract 5.1). `fields` contains `cwd`, `tools`, `model`,
        `mode`, `shim` and other keys.
        """
        self.set_session_id(session_id)
        line = {
            "type": "system",
            "subtype": "init",
            "cwd": get_text(fields, "cwd"),
            "session_id": session_id,
            "tools": as_list(fields.get("tools")),
            "mcp_servers": as_list(fields.get("mcp_servers")),
            "model": get_text(fields, "model", "unknown"),
            "permissionMode": get_text(fields, "mode", "default"),
            "slash_commands": as_list(fields.get("slash_commands")),
            "apiKeySource": get_text(fields, "key_source", "none"),
            "claude_code_version": self.claude_version,
            "output_style": get_text(fields, "output_style", "default"),
            "agents": as_list(fields.get("agents")),
            "skills": as_list(fields.get("skills")),
            "plugins": [],
            "analytics_disabled": True,
            "product_feedback_disabled": True,
            "uuid": self.create_uuid(),
            "fast_mode_state": "off",
            "fast_mode_disabled_reason": "not_first_party",
            "view_mode": "default",
            "capabilities": CAPABILITIES,
            "shim": as_dict(fields.get("shim")),
        }
        self._lines.append(self._encode_line(line) + b"\n")

    def write_conversation_reset(self, session_id: str, message_id: str | None) -> None:
        line_id = self.create_uuid()
        if message_id is None:
            message_id = self.create_uuid()
        line = {
            "type": "conversation_reset",
            "new_conversation_id": line_id,
            "uuid": line_id,
            "trigger": "clear",
            "user_message_uuid": message_id,
            "session_id": session_id,
        }
        self._lines.append(self._encode_line(line) + b"\n")

    def write_system_message(self, subtype: str, fields: Mapping[str, Any]) -> None:
        vendor_fields = {
            name: value for name, value in fields.items() if name not in RESERVED_FIELDS
        }
        body = self._encode_line({"type": "system", "subtype": subtype, **vendor_fields})
        self._append_line(body[:-1] + self._line_tail)

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the `result` line (contract 5.3), followed by a terminator line if one is
        configured.
        """
        self.finalize_turn_usage(fields)
        body = self._encode_line({"type": "result", **fields})
        self._append_line(body[:-1] + self._line_tail)
        self.last_result_line = self._lines[-1]
        self.write_result_terminator_line()

    def finalize_turn_usage(self, result_fields: Mapping[str, Any]) -> None:
        """Add the part of the turn's usage that does not belong to a message, for the
        transcript.
        """
        if self.usage_counter is not None:
            self.usage_counter.add_uncounted_turn_usage(parse_usage(result_fields.get("usage")))

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the last message. Only a transcript contains this usage."""
        if self.usage_counter is not None:
            self.usage_counter.add_usage(usage)

    def write_vendor_result_line(self, line: bytes) -> None:
        """Write a result line that is already in Claude's format. Its terminator is
        written later.
        """
        self.write_passthrough_line(line)
        self.last_result_line = self._lines[-1]

    def write_result_terminator_line(self) -> None:
        """Write the terminator line if one is configured. This method is only needed after a
        passthrough result, because `write_result` writes its own terminator.
        """
        if self._terminator:
            self._lines.append(self._terminator)

    # -- assistant messages ------------------------------------------------------------------------

    def start_message(self, model: str, usage: Usage) -> None:
        """Start an assistant message with a new id. If partial messages are enabled, write
        `message_start`.
        """
        self._block_index = 0
        model_name, model_members = self._encoded_model
        if model is not model_name:
            model_members = (
                b'","type":"message","role":"assistant","model":'
                + dump_json(model)
                + b',"content":['
            )
            self._encoded_model = model, model_members
        if usage is not self._encoded_usage[0]:
            self.set_message_usage(usage)
        message_id = next(self._message_ids)
        self._message_head = MESSAGE_HEAD + message_id + model_members
        if self.usage_counter is not None:
            self.usage_counter.start_message(message_id)
        if self.writes_partial_messages:
            pieces = (
                MESSAGE_START_EVENT,
                message_id,
                model_members,
                NO_STOP_REASON_MEMBERS,
                self._encoded_usage[1],
                self._event_tail,
                next(self._line_ends),
            )
            self._lines.append(b"".join(pieces))

    def set_message_usage(self, usage: Usage) -> None:
        """Set the usage in the message's following assistant lines (contract S4)."""
        if usage is NO_USAGE:
            self._encoded_usage = usage, NO_USAGE_JSON
            self._message_tail = self._no_usage_tail
        else:
            usage_json = orjson.dumps(usage)
            self._encoded_usage = usage, usage_json
            self._message_tail = b"".join(
                (NO_STOP_REASON_MEMBERS, usage_json, b"}", MAIN_AGENT_MEMBER, self._line_tail)
            )

    def start_block(self, kind: str) -> None:
        """Start a content block whose fragments are written as they arrive. `kind` is `text` or
        `thinking`.
        """
        start_event, self._delta_head, _ = encode_block_start_delta_and_stop(
            kind, self._block_index
        )
        self._lines.append(b"".join((start_event, self._line_tail, next(self._line_ends))))

    def write_block_delta(self, text_json: bytes) -> None:
        self._lines.append(
            b"".join((self._delta_head, text_json, self._event_tail, next(self._line_ends)))
        )

    def write_block(self, kind: str, text_json: bytes, is_aborted: bool = False) -> None:
        """Write the assistant line for the open `text` or `thinking` block and close the block. Its
        content is already encoded.

        `is_aborted` is set if the frontend stopped the turn before the block was complete (contract
        6.4).
        """
        if not text_json.isascii():
            text_json = escape_line_separators(text_json)
        block_head, block_end, _, _ = BLOCK_PIECES[kind]
        tail = self._message_tail
        if is_aborted:
            constant_tail = MAIN_AGENT_MEMBER + self._line_tail
            tail = b"".join((tail.removesuffix(constant_tail), b',"aborted":true', constant_tail))
        self._lines.append(
            b"".join(
                (self._message_head, block_head, text_json, block_end, tail, next(self._line_ends))
            )
        )
        if self.writes_partial_messages:
            self.end_block()
        else:
            self._block_index += 1

    def end_block(self) -> None:
        """End the open content block and increment the block index. A line is only written if
        partial messages are enabled.
        """
        if self.writes_partial_messages:
            self._lines.append(
                b"".join(
                    (
                        encode_block_start_delta_and_stop("text", self._block_index)[2],
                        self._line_tail,
                        next(self._line_ends),
                    )
                )
            )
        self._block_index += 1

    def write_complete_block(self, block_kind: str, text_json: bytes) -> None:
        """Write a content block that was not streamed. Its content is already encoded. If partial
        messages are enabled, the block has a single delta.
        """
        if not text_json.isascii():
            text_json = escape_line_separators(text_json)
        block_head, block_end, _, _ = BLOCK_PIECES[block_kind]
        line_ends = self._line_ends
        tail = self._line_tail
        index = self._block_index
        self._block_index = index + 1
        if not self.writes_partial_messages:
            self._lines.append(
                b"".join(
                    (
                        self._message_head,
                        block_head,
                        text_json,
                        block_end,
                        self._message_tail,
                        next(line_ends),
                    )
                )
            )
            return
        start_event, delta_head, stop_event = encode_block_start_delta_and_stop(block_kind, index)
        event_tail = self._event_tail
        pieces = (
            start_event, tail, next(line_ends), delta_head, text_json, event_tail, next(line_ends),
            self._message_head, block_head, text_json, block_end, self._message_tail, next(line_ends),
            stop_event, tail, next(line_ends),
        )  # fmt: skip
        self._lines.append(b"".join(pieces))

    def write_tool_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Write the assistant line for a complete tool call. If partial messages are enabled, the
        call's input is a single delta.

        If the arguments were too long, return the shortened arguments.
        """
        if name in AGENT_TOOLS and self.subagent_log is not None:
            self.subagent_log.start_agent(call_id, tool_input)
        id_json = dump_json(call_id)
        encoded_name = encode_name_as_json(name)
        input_json = dump_json(tool_input)
        self._last_call = call_id, id_json
        shortened_input: Mapping[str, Any] | None = None
        size_bytes = TOOL_USE_BYTES + len(id_json) + len(encoded_name) + len(input_json)
        if size_bytes > self.max_bytes // 2:  # in a delta, the input is encoded as JSON twice
            fitted = shorten_strings(tool_input, self.max_bytes // 2)
            shortened_input = fitted
            if not isinstance(fitted, dict):
                shortened_input = {"raw": fitted}
            size_bytes -= len(input_json)
            input_json = dump_json(shortened_input)
            size_bytes += len(input_json)
        self.last_call_bytes = size_bytes
        line_ends = self._line_ends
        tail = self._line_tail
        index = self._block_index
        self._block_index = index + 1
        if not self.writes_partial_messages:
            line = (
                self._message_head,
                TOOL_USE_START,
                id_json,
                NAME_MEMBER,
                encoded_name,
                INPUT_MEMBER,
                input_json,
                b"}",
                self._message_tail,
                next(line_ends),
            )
            self._lines.append(b"".join(line))
            return shortened_input
        start_event, delta_head, stop_event = encode_block_start_delta_and_stop("tool_use", index)
        event_tail = self._event_tail
        input_fragment = orjson.dumps(input_json.decode())
        pieces = (
            start_event, TOOL_USE_START, id_json, NAME_MEMBER, encoded_name, INPUT_MEMBER, b"{}",
            event_tail, next(line_ends),
            delta_head, input_fragment, event_tail, next(line_ends),
            self._message_head, TOOL_USE_START, id_json, NAME_MEMBER, encoded_name, INPUT_MEMBER, input_json, b"}",
            self._message_tail, next(line_ends),
            stop_event, tail, next(line_ends),
        )  # fmt: skip
        self._lines.append(b"".join(pieces))
        return shortened_input

    def end_message(self, stop_reason: str | None, usage: Usage) -> None:
        """End the assistant message. A line is only written if partial messages are enabled."""
        if not self.writes_partial_messages:
            return
        line_ends = self._line_ends
        tail = self._line_tail
        usage_json = NO_USAGE_JSON
        if usage is not NO_USAGE:
            usage_json = dump_json(usage)
        pieces = (
            MESSAGE_DELTA_EVENT, encode_name_as_json(stop_reason), DELTA_USAGE_MEMBER, usage_json, b"}",
            MAIN_AGENT_MEMBER, tail, next(line_ends),
            MESSAGE_STOP_EVENT, tail, next(line_ends),
        )  # fmt: skip
        self._lines.append(b"".join(pieces))

    # -- tool results and other lines --------------------------------------------------------------

    def write_tool_result(
        self,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        content: object,
        is_error: bool,
    ) -> None:
        """Write a tool call's result as a user line (contract S7). `call_id`, `name` and
        `tool_input` describe the tool call.
        """
        agent_result = None
        if name in AGENT_TOOLS and self.subagent_log is not None:
            agent_result = self.subagent_log.end_agent(call_id, content, is_error=is_error)
        content_json = dump_json(content)
        last_call_id, id_json = self._last_call
        if call_id is not last_call_id:
            id_json = dump_json(call_id)
        key, value, value_end = NO_TOOL_USE_RESULT
        result_end = RESULT_END
        if is_error:
            (key, value, value_end), result_end = (
                encode_failed_tool_result(content_json),
                FAILED_RESULT_END,
            )
        elif name in RESULT_ENCODERS and content.__class__ is str:
            key, value, value_end = RESULT_ENCODERS[name](tool_input, content, content_json)
        elif content.__class__ is list and name.startswith(MCP_PREFIX):
            key, value = encode_repeated_result(content_json, self.max_bytes)
        elif agent_result is not None:
            key, value = encode_repeated_result(dump_json(agent_result), self.max_bytes)
        pieces = (
            TOOL_RESULT_START,
            id_json,
            CONTENT_MEMBER,
            content_json,
            result_end,
            key,
            value,
            value_end,
            self._line_tail,
            next(self._line_ends),
        )
        self._lines.append(b"".join(pieces))

    def write_user_text(self, text: str) -> None:
        body = b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":'
        self._append_line(body + dump_json(text) + b"}]}" + MAIN_AGENT_MEMBER + self._line_tail)

    def write_synthetic_user_text(self, text: str) -> None:
        body = b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":'
        end = b'}]},"isSynthetic":true'
        self._append_line(body + dump_json(text) + end + MAIN_AGENT_MEMBER + self._line_tail)

    def echo_user_message(
        self, message: Mapping[str, Any], message_id: str | None, timestamp: str
    ) -> None:
        """Echo the user's own message (contract C15)."""
        fields = {"type": "user", "message": message, "parent_tool_use_id": None, "isReplay": True}
        if timestamp:
            fields["timestamp"] = timestamp
        if message_id is None:
            self._append_line(self._encode_line(fields)[:-1] + self._line_tail)
        else:
            tail = self._line_tail[: -len(self._uuid_prefix)]
            self._lines.append(
                self._encode_line(fields)[:-1] + tail + dump_json(message_id)[1:] + b"}\n"
            )

    def write_synthetic_message(self, text: str) -> None:
        fields = {
            "type": "assistant",
            "message": self._build_synthetic_message(text),
            "parent_tool_use_id": None,
        }
        self._append_line(self._encode_line(fields)[:-1] + self._line_tail)

    def _build_synthetic_message(self, text: str) -> dict[str, object]:
        return {
            "id": self.create_uuid(),
            "type": "message",
            "role": "assistant",
            "model": "<synthetic>",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "stop_sequence",
            "stop_sequence": "",
            "usage": NO_USAGE,
        }

    def write_compaction_note(self) -> None:
        content = "<local-command-stdout>Compacted </local-command-stdout>"
        fields: dict[str, object] = {
            "type": "user",
            "message": {"role": "user", "content": content},
            "parent_tool_use_id": None,
            "isReplay": True,
        }
        self._append_line(self._encode_line(fields)[:-1] + self._line_tail)

    def write_local_command_output(self, text: str, *, is_failed: bool) -> None:
        stream = "stderr" if is_failed else "stdout"
        message = self._build_synthetic_message(text)
        fields: dict[str, object] = {
            "type": "assistant",
            "message": {**message, "stop_reason": "end_turn", "stop_sequence": None},
            "parent_tool_use_id": None,
            "local_command_source": f"<local-command-{stream}>{text}</local-command-{stream}>",
        }
        if is_failed:
            fields["local_command_outcome"] = {"kind": "failed"}
        self._append_line(self._encode_line(fields)[:-1] + self._line_tail)

    def write_api_error(
        self, text: str, error: str, status: int | None, error_type: str | None = None
    ) -> None:
        """Write the assistant line for a failed API request (contract S10, 5.8)."""
        fields: dict[str, object] = {
            "type": "assistant",
            "message": self._build_synthetic_message(text),
            "parent_tool_use_id": None,
            "error": error,
            "is_api_error_message": True,
        }
        if status is not None:
            fields |= {"api_error_status": status, "api_error_type": error_type}
        self._append_line(self._encode_line(fields)[:-1] + self._line_tail)

    def write_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """Write a subagent's message. `parent_call_id` is the id of the tool call that runs the
        subagent.
        """
        fields = {"type": role, "message": message, "parent_tool_use_id": parent_call_id}
        line_end = next(self._line_ends)
        self._lines.append(self._encode_line(fields)[:-1] + self._line_tail + line_end)
        if self.subagent_log is not None and parent_call_id is not None:
            uuid = (self._uuid_prefix + line_end[:12]).decode()
            self.subagent_log.add_message(parent_call_id, role, message, uuid)

    def record_hidden_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        if self.subagent_log is not None and parent_call_id is not None:
            complete_message = {"id": self.create_message_id(), **message}
            self.subagent_log.add_message(
                parent_call_id, role, complete_message, self.create_uuid()
            )

    def create_message_id(self) -> str:
        return next(self._message_ids).decode()

    def _append_line(self, body: bytes) -> None:
        self._lines.append(body + next(self._line_ends))

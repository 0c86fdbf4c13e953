"""pi's stream. Measured: 0.73.1, 0.87.1, 1.5.2; older generations from documents.

The stream has three generations, told apart per record (pi page, section 1): an update may repeat
the whole message (`message`, `partial`) or bring the delta alone; `message_end` has the whole
message in all of them. Without partial messages the updates need no parsing at all: they are kept
until `message_end` makes them superfluous, so that a reply that was cut is still said.
"""

from typing import Any

from shim.adapters.pi import TOOLS, two_way
from shim.core.adapter.tools import absolute, translate
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.usage import NO_USAGE, Usage, count, dollars, usage
from shim.core.reading.decode import Decoder
from shim.core.turn.open_calls import read_id
from shim.core.turn.outcome import Exit
from shim.core.turn.tool_calls import OPEN_CALLS
from shim.core.turn.turn import Turn

UPDATE = b'{"type":"message_update"'
AGENT_END = b'{"type":"agent_end"'
# Echoes and summaries: a `turn_end` or `agent_end` repeats whole conversations. A tool's result
# comes twice, and the second time only matters while a call is open.
UNREAD = (
    b'{"type":"turn_end"',
    AGENT_END,
    b'{"type":"tool_execution_update"',
    b'{"type":"message_start","message":{"role":"user"',
    b'{"type":"message_start","message":{"role":"system"',
    b'{"type":"message_start","message":{"role":"toolResult"',
    b'{"type":"message_end","message":{"role":"user"',
    b'{"type":"message_end","message":{"role":"system"',
)
WILL_RETRY = b'"willRetry":'  # at the end of an `agent_end`, said by versions since 0.75.4
RESULT = b'{"type":"message_end","message":{"role":"toolResult"'
RECEIVED = "Received arguments:\n"  # followed by the text that the model sent
REPETITION = b',"partial":'  # cumulative generations: from here on the line says the message again
LONG = 1024  # bytes of a line that are worth cutting it
DIALOG = "extension_ui_request"
OURS = "claude-shim"  # what our extension calls itself
GLUED = b'}{"ty'  # another event on the line: it is read, whatever the first one is
# of updates kept for a reply that may be cut; beyond that they are read at once
HELD_BYTES = 2 * 1024 * 1024
HELD_LINES = 8192

REASONS = {"stop": "end_turn", "toolUse": "tool_use", "length": "max_tokens"}
REASONS_TO_STOP = ("stop", "length")
FAILED = ("error", "aborted")


class PiTranslator(Translator):
    """`_cut` is a reply that ended in an error: it waits for the retry that may follow it."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._cwd = ""
        self._reset()

    def _reset(self) -> None:
        self._updates: list[bytes] = []
        self._bytes = 0
        self._cut: dict[str, Any] | None = None
        self._compacting = False
        self._compaction_error = ""
        self._last: dict[str, Any] | None = None
        self._begun = self._handled = False
        # id of a call → the text that the model sent instead of JSON arguments
        self._malformed: dict[str, str] = {}
        # id of a call → number of results whose message has not come yet
        self._executed: dict[str, int] = {}

    def begin(self, turn: Turn) -> None:
        super().begin(turn)
        self._reset()

    def unread(self, event: Event) -> Translator:
        """A dialog of an extension: behind the hello of ours, the whole stream is that of its RPC."""
        if event.get("type") != DIALOG:
            return super().unread(event)
        if event.get("statusKey") != OURS or type(self) is not PiTranslator:
            return self
        return two_way().translator(self.turn, partial=self.partial)

    def line(self, raw: bytes) -> bytes | None:
        """Skip lines without a use, cut repetitions off; without partial messages keep updates
        unread.
        """
        if not raw.startswith(UPDATE):
            unread = raw.startswith(UNREAD) or (raw.startswith(RESULT) and not self.turn.open)
            if not unread or GLUED in raw:
                return raw
            if raw.startswith(AGENT_END):
                self._agent_ended(newer=WILL_RETRY in raw[-len(WILL_RETRY) - 8 :])
            return None
        if len(raw) > LONG:
            cut = raw.find(REPETITION)
            if (
                cut > 0
                and raw.find(b'"assistantMessageEvent":', 0, cut) > 0
                and b'"toolcall_' not in raw[:cut]
            ):
                if raw.find(GLUED, cut) > 0:
                    return raw
                raw = raw[:cut] + b"}}"
        if self.partial or self._bytes < 0 or GLUED in raw:
            return raw
        self._updates.append(raw)
        self._bytes = size = self._bytes + len(raw)
        if size > HELD_BYTES or len(self._updates) > HELD_LINES:
            self._read_updates()
            self._bytes = -1
        return None

    def repaired(self, event: Event) -> None:
        """An update that had to be repaired waits with the others; its escapes keep halves of
        characters.
        """
        if event.get("type") != "message_update" or self.partial or self._bytes < 0:
            self.feed(event)
        else:
            import json

            self.line(
                json.dumps({"type": "message_update"} | event, separators=(",", ":")).encode()
            )

    def _read_updates(self) -> None:
        """Read the updates of a reply whose end never came, or that is too long to keep."""
        updates, self._updates = self._updates, []
        account = self.turn.account
        decoder = Decoder(account)
        for raw in updates:
            account.line = raw
            for event, _ in decoder.repair(raw):
                try:
                    self.on_message_update(event)
                except (KeyError, TypeError):
                    account.repaired("malformed_event")
        decoder.close()

    # -- the frame ---------------------------------------------------------------------------------

    def on_session(self, event: Event) -> None:
        self._cwd = str(event.get("cwd") or "")
        self.turn.started(session_id=event.get("id"), cwd=event.get("cwd"))

    def on_agent_settled(self, event: Event) -> None:
        self.turn.settle()

    def on_agent_start(self, event: Event) -> None:
        """A run begins, the first or one more (a retry, a compaction, another prompt)."""
        self._begun = True
        self.turn.unsettle()

    on_turn_start = on_agent_start

    def on_agent_end(self, event: Event) -> None:
        self._agent_ended(newer="willRetry" in event)

    def _agent_ended(self, *, newer: bool) -> None:
        """Older versions say nothing after this event, and some never exit; a version that
        continues says so.
        """
        if self._complete():
            self.turn.settle()

    on_turn_end = Translator.ignored
    on_entry_appended = on_queue_update = on_thinking_level_changed = on_session_info_changed = (
        Translator.ignored
    )
    on_summarization_retry_start = on_summarization_retry_end = on_response = Translator.ignored
    on_extension_error = on_bash_execution_update = Translator.ignored

    # -- replies -----------------------------------------------------------------------------------

    def on_message_start(self, event: Event) -> None:
        message = event["message"]
        if message.get("role") != "assistant":
            return
        self._begun = True
        self._executed.clear()
        self._malformed.clear()
        self.turn.unsettle()
        self._give_up()
        self._forget()
        self.turn.message(model=message.get("model"))

    def on_message_update(self, event: Event) -> None:
        update = event["assistantMessageEvent"]
        kind = update["type"]
        if kind == "text_delta":
            self.turn.text(update["delta"], update.get("contentIndex"))
        elif kind == "thinking_delta":
            self.turn.thinking(update["delta"], update.get("contentIndex"))
        elif kind == "toolcall_end":
            self._call(update.get("toolCall") or {}, kind)

    def on_message_end(self, event: Event) -> None:
        message = event["message"]
        role = message.get("role")
        if role == "toolResult":
            self._result_message(message)
            return
        if role == "custom":
            # a command that an extension answers without the model (page, trap 15)
            self._handled = True
        if role != "assistant":
            return
        reason = message.get("stopReason")
        self._last, self._begun = message, False
        if reason in FAILED:
            self._cut = message
            return
        if not self.partial and self._bytes < 0:
            self._read_updates()
        self._forget()
        counted = counted_usage(message.get("usage"))
        self._whole(message, counted)
        self.turn.message_end(counted, REASONS.get(str(reason)), cost(message.get("usage")))

    def _whole(self, message: dict[str, Any], counted: Usage) -> None:
        turn = self.turn
        turn.message_facts(message.get("model"), counted)
        content = message.get("content") or []
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(content if isinstance(content, list) else [content]):
            try:
                self._block(index, block)
            except (AttributeError, KeyError, TypeError) as error:  # the other blocks are said
                turn.account.repaired("malformed_event", f"{error!r}: {block}")

    def _block(self, index: int, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind == "text":
            self.turn.text_snapshot(block["text"], index)
        elif kind == "thinking":
            self.turn.thinking_snapshot(block["thinking"], index)
        elif kind == "toolCall":
            self._call(block, "message_end")

    def _forget(self) -> None:
        self._updates.clear()
        self._bytes = 0

    def _give_up(self) -> None:
        """Say a cut reply: it was not retried, so it is the last one."""
        if self._cut is not None:
            message, self._cut = self._cut, None
            self._read_updates()
            self._forget()
            counted = counted_usage(message.get("usage"))
            self._whole(message, counted)
            self.turn.message_end(counted, None, cost(message.get("usage")), aborted=True)

    def _take_back(self) -> None:
        """The cut reply is asked for again: it is forgotten, what it cost is not."""
        if self._cut is not None:
            counted, self._cut = self._cut.get("usage"), None
            self.turn.spent(counted_usage(counted), cost(counted))
        self._forget()
        self.turn.retract()

    def on_auto_retry_start(self, event: Event) -> None:
        self.turn.unsettle()
        self._take_back()
        attempt, limit, delay = (
            event.get("attempt", 1),
            event.get("maxAttempts", 1),
            event.get("delayMs", 0),
        )
        self.turn.retry(attempt, limit, delay, str(event.get("errorMessage") or ""))

    def on_auto_retry_end(self, event: Event) -> None:
        if not event.get("success") and event.get("finalError"):
            self._last = {"stopReason": "error", "errorMessage": event["finalError"]}

    # -- tools -------------------------------------------------------------------------------------

    def _call(self, call: dict[str, Any], source: str) -> None:
        """Announce a call. pi reports each call in its reply, and again when the call runs."""
        name, arguments = translate(TOOLS, call["name"], self._read_arguments(call))
        if call["name"] in TOOLS:
            arguments = absolute(arguments, self._cwd)
        self.turn.tool_use(call.get("id"), name, arguments, source=source)

    def _read_arguments(self, call: dict[str, Any]) -> object:
        """Return a call's arguments, or the model's text if its arguments are not JSON.

        For such arguments pi (since 1.6) has `{}` and `argumentsError`, which contains the model's
        text. The event of the call's run, which fails at once, does not repeat it.
        """
        identity = read_id(call.get("id"))
        reason = call.get("argumentsError")
        if isinstance(reason, str) and not call.get("arguments"):
            if len(self._malformed) < OPEN_CALLS:
                self._malformed[identity] = reason.partition(RECEIVED)[2] or reason
        elif call.get("type") == "toolCall":
            self._malformed.pop(identity, None)  # another call with the same id
        if not call.get("arguments") and identity in self._malformed:
            return self._malformed[identity]
        return call.get("arguments")

    def on_tool_execution_start(self, event: Event) -> None:
        call = {
            "id": event.get("toolCallId"),
            "name": event["toolName"],
            "arguments": event.get("args"),
        }
        self._call(call, "tool_execution_start")

    on_tool_execution_update = Translator.ignored

    def on_tool_execution_end(self, event: Event) -> None:
        call = read_id(event.get("toolCallId"))
        if len(self._executed) < OPEN_CALLS:
            self._executed[call] = self._executed.get(call, 0) + 1
        self._result((event.get("result") or {}) | event)

    def _result_message(self, message: dict[str, Any]) -> None:
        """Ignore a message that repeats a result, and write any other: it belongs to another call
        with the same id.
        """
        call = read_id(message.get("toolCallId"))
        if self._executed.get(call):
            self._executed[call] -= 1
        else:
            self._result(message)

    def _result(self, result: dict[str, Any]) -> None:
        turn, call = self.turn, read_id(result.get("toolCallId"))
        tool = result.get("toolName")
        name = translate(TOOLS, tool, {})[0] if isinstance(tool, str) else None
        blocks = content(result.get("content"))
        is_error = bool(result.get("isError"))
        if turn.find_call(call, name) is not None:
            turn.tool_result(call, blocks, is_error, name)
        elif not turn.conversation.knows(call):
            turn.tool_result(call, blocks, is_error)

    # -- compaction --------------------------------------------------------------------------------

    def on_compaction_start(self, event: Event) -> None:
        self._compacting = True
        self.turn.unsettle()
        if self._cut is not None:
            self._take_back()

    def on_compaction_end(self, event: Event) -> None:
        self._compacting = False
        result = event.get("result")
        self._compaction_error = "" if result else str(event.get("errorMessage") or "")
        if not result:
            return
        self._last = None
        trigger = "manual" if event.get("reason") == "manual" else "auto"
        self.turn.compacted(trigger, count(result.get("tokensBefore")))
        # its tokens are no reply's (page, section 6)
        self.turn.spent(NO_USAGE, cost(result.get("usage")))

    on_auto_compaction_start = on_compaction_start
    on_auto_compaction_end = on_compaction_end

    # -- the end -----------------------------------------------------------------------------------

    def eof(self, child_exit: Exit | None, stderr: str) -> None:
        """The exit of older versions is their one word for the end of a turn."""
        self._conclude()

    def _conclude(self) -> None:
        """The last reply and an open compaction tell how the turn ended."""
        last = self._last or {}
        if last.get("stopReason") in FAILED:
            self.turn.failed(str(last.get("errorMessage") or last["stopReason"]))
        elif self._compaction_error and last.get("stopReason") != "stop":
            self.turn.failed(self._compaction_error)
        elif self._compacting:
            self.turn.failed(
                "pi ended while it was compacting its context; the prompt was lost",
                kind="truncated",
            )
        self._give_up()
        self._read_updates()
        if self.turn.outcome is None and self._complete():
            self.turn.ended()

    def _complete(self) -> bool:
        """Whether what was seen is a whole run: a last reply that stopped by itself, and nothing
        begun after it.
        """
        if self._last is not None and not self._begun:
            return self.turn.settled or self._last.get("stopReason") in REASONS_TO_STOP
        return self._last is None and not self._begun and (self._handled or self.turn.settled)


def cost(counted: object) -> float:
    """What a reply cost, in dollars, by pi's own price table."""
    priced = counted.get("cost") if isinstance(counted, dict) else None
    return dollars(priced.get("total")) if isinstance(priced, dict) else 0.0


def counted_usage(counted: object) -> Usage:
    """Its usage of one reply: cached tokens are not inside input, reasoning is inside output."""
    if not isinstance(counted, dict):
        return NO_USAGE
    return usage(
        counted.get("input"),
        counted.get("cacheRead"),
        counted.get("cacheWrite"),
        counted.get("output"),
    )


def content(blocks: object) -> object:
    """Return the content of a tool result: only texts as one text, other blocks unchanged, because
    they are MCP's.
    """
    if not isinstance(blocks, list):
        return blocks if isinstance(blocks, str) else ""
    if all(isinstance(block, dict) and block.get("type") == "text" for block in blocks):
        return "\n".join(block.get("text", "") for block in blocks)
    return [block for block in blocks if isinstance(block, dict)]

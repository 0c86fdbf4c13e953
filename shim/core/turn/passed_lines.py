"""Pass-through: lines that are Claude's already are written as they came, and followed.

The Turn keeps up with what they say (open blocks and calls, the session, the result), so that it can finish in
Claude's words what a real claude leaves unfinished when it dies.
"""

from typing import Any

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.json_text import dump
from shim.core.turn.machine import CLOSED, MESSAGE, NEW, READY, TEXT, THINKING
from shim.core.turn.result import Outcome
from shim.core.turn.tool_calls import Calls

FOLLOWED = 1000  # calls without a result; of one that is forgotten a result would be dropped as nobody's


class Verbatim(Calls):
    """The one verb of pass-through."""

    def verbatim(self, raw: bytes, event: dict[str, Any]) -> None:
        """A line of a real claude: `raw` without its LF, `event` as parsed.

        A result waits for the next line or the end, which may contradict it; a second result, a second `init` before
        a result (contract S20) and a result without its call are dropped. Lines beside the conversation pass at any
        time, so the terminator comes with the end of the stream or the next turn.
        """
        kind, subtype = event.get("type"), event.get("subtype")
        if kind == "result":
            self._state_result(raw, event)
        elif kind == "system" and subtype == "init":
            self._adopt(raw, event)
        elif kind == "message_stop":  # the terminator is ours to say: a real claude has none
            self.account.repaired("terminator")
        elif kind not in ("assistant", "user", "stream_event"):
            if self.stated:
                self.closed(None, "")
            if self.state is CLOSED and self.sealed and self.pen.terminates:
                self._late()  # the terminator was said: the end, for whoever asked for one
            else:
                self.pen.verbatim(raw)
        else:
            self._conversation(kind, raw, event)

    def _conversation(self, kind: str, raw: bytes, event: dict[str, Any]) -> None:
        if self.stated and self.state is not CLOSED:
            self.closed(None, "")
        if self.state is CLOSED or (self.state is NEW and not self.go(READY)):
            self._late()
            return
        follow = {
            "assistant": self._follow_assistant,
            "user": self._follow_user,
            "stream_event": self._follow_stream_event,
        }
        if follow[kind](event) and (kind != "stream_event" or self._partial):
            self.pen.verbatim(raw)

    def _adopt(self, raw: bytes, event: dict[str, Any]) -> None:
        if self.state is not NEW:
            self.account.repaired("second_init")
            return
        session = str(event.get("session_id"))
        self.conversation.session_id = self.conversation.vendor_session = session
        self.facts["vendor_version"] = event.get("claude_code_version")
        self.model = str(event.get("model"))
        self.pen.adopt_session(session)
        tools = event.get("tools")
        if self._policy is not None and self._policy.hidden and isinstance(tools, list):
            listed = [name for name in tools if name not in self._policy.hidden]
            raw = dump(event | {"tools": listed})
        self.pen.verbatim(raw)
        self.state = READY

    def _state_result(self, raw: bytes, event: dict[str, Any]) -> None:
        if self.state is CLOSED or self.stated:
            self.account.repaired("second_result", raw)
            return
        self.stated = raw
        session = event.get("session_id")
        if self.state is NEW and isinstance(session, str):
            self.conversation.vendor_session = session
        if event.get("is_error"):
            errors = event.get("errors")
            message = event.get("result") or (errors[0] if isinstance(errors, list) and errors else "")
            self.outcome = Outcome("failed", message=str(message), cause="vendor_error")
        else:
            self.outcome = Outcome("ended", facts={"result": event.get("result")})
            self.last_text = str(event.get("result") or "")
        self.stated_outcome = self.outcome

    def _hides(self, block: dict[str, Any]) -> bool:
        """Whether a block is a call that is hidden; its id is remembered for the result."""
        if self._policy is None or block.get("type") != "tool_use" or block.get("name") not in self._policy.hidden:
            return False
        self._hide(str(block.get("id")))
        return True

    def _follow_assistant(self, event: dict[str, Any]) -> bool:
        parent = event.get("parent_tool_use_id")
        hidden = [block for block in event["message"]["content"] if self._hides(block)]
        if hidden or parent in self._hidden:
            return False
        for block in event["message"]["content"]:
            if parent:
                if block.get("type") == "tool_use" and isinstance(block["id"], str):
                    self.nested_calls[block["id"]] = (parent, block["id"])
                    _bound(self.nested_calls)
            elif block.get("type") == "tool_use":
                self.open[block["id"]] = (block["id"], block["name"], {})  # its arguments were said
                _bound(self.open)
            elif block.get("type") == "text":
                self.last_text = block["text"]
        if parent:
            return True
        self._parts = []
        if self.state in (TEXT, THINKING):
            self.state = MESSAGE
            self._stop_due = self._partial
        return True

    def _follow_user(self, event: dict[str, Any]) -> bool:
        content = event["message"]["content"]
        if isinstance(content, str):
            return True
        if event.get("parent_tool_use_id") in self._hidden:
            return False
        if any(block.get("tool_use_id") in self._hidden for block in content):
            return False
        if event.get("parent_tool_use_id"):
            for block in content:
                self.nested_calls.pop(block.get("tool_use_id"), None)
            return True
        for block in content:
            if block.get("type") == "tool_result":
                if self.open.pop(block.get("tool_use_id"), None) is None:
                    self.account.repaired("orphan_tool_result", block)
                    return False
                self.results += 1
        return True

    def _follow_stream_event(self, event: dict[str, Any]) -> bool:
        inner = event["event"]
        kind = inner["type"]
        if kind == "content_block_start" and self._hides(inner["content_block"]):
            self._hidden_block = inner["index"]
        if self._hidden_block is not None and inner.get("index") == self._hidden_block:
            if kind == "content_block_stop":
                self._hidden_block = None
            return False
        if kind == "message_start":
            message = inner["message"]
            self.model = str(message.get("model"))
            self.pen.adopt_message(str(message.get("id")), self.model, message.get("usage") or NO_USAGE)
            self.replies += 1
            self.state = MESSAGE
        elif kind == "content_block_start":
            block = inner["content_block"]["type"]
            if inner["index"].__class__ is not int:
                raise TypeError("the index of a block is no number")
            if self.state is READY:
                self.pen.adopt_message(self.pen.new_message_id(), self.model, NO_USAGE)
            self.pen.adopt_block(inner["index"])
            self.state = {"text": TEXT, "thinking": THINKING}.get(block, MESSAGE)
            self._parts, self._size = [], 0
            self._stop_due = self._partial and self.state is MESSAGE
        elif kind == "content_block_delta":
            fragment = inner["delta"].get("text") or inner["delta"].get("thinking")
            if isinstance(fragment, str) and self.state in (TEXT, THINKING) and self._size < self._room:
                self._parts.append(fragment)
                self._size += len(fragment)
        elif kind == "content_block_stop":
            self._stop_due = False
            if self.state is not READY:
                self.state = MESSAGE
        elif kind == "message_stop":
            self.state = READY
        return True


def _bound(table: dict[str, Any]) -> None:
    if len(table) > FOLLOWED:
        del table[next(iter(table))]

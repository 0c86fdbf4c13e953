"""A turn whose lines are Claude's already: they are written as they came, and followed.

The turn keeps up with what the lines say (open blocks and calls, the session, the result), so that it can finish in
Claude's words what a real claude leaves unfinished when it dies.
"""

from typing import Any

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.account import Account
from shim.core.reading.json_text import dump
from shim.core.turn.machine import CLOSED, MESSAGE, NEW, READY, TEXT, THINKING
from shim.core.turn.outcome import Outcome
from shim.core.turn.terms import Terms
from shim.core.turn.turn import Forwarding, Turn

FOLLOWED = 1000  # calls without a result; of one that is forgotten a result would be dropped as nobody's
BLOCKS = {"text": TEXT, "thinking": THINKING}

Line = dict[str, Any]


class PassedTurn(Forwarding):
    """Has one verb of its own, `verbatim`; all else is the turn's that follows."""

    __slots__ = ("_hidden_block", "_owed")

    turn: Turn

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._hidden_block: int | None = None  # the index of a hidden call's block that is open
        self._owed = 0  # results of background work, each of an `init` of its own, that may come behind the first one

    def next(self, terms: Terms | None = None, account: Account | None = None) -> "PassedTurn":
        """The turn after this one, in the same conversation."""
        return PassedTurn(self.turn.next(terms, account))

    def verbatim(self, raw: bytes, event: Line) -> None:
        """A line of a real claude: `raw` without its LF, `event` as parsed.

        A result waits for the next line or the end, which may contradict it. A second `init` before a result, the
        second result that it stands for (contract S20) and a result without its call are dropped where the frontend
        reads to a terminator. Lines beside the conversation pass at any time, so the terminator comes with the end of
        the stream or the next turn.
        """
        turn, kind = self.turn, event.get("type")
        if kind == "result":
            self._state(raw, event)
        elif kind == "system" and event.get("subtype") == "init":
            self._adopt(raw, event)
        elif kind == "message_stop":  # the terminator is ours to say: a real claude has none
            turn.account.repaired("terminator")
        elif kind == "assistant":
            self._pass(raw, self._live(raw) and self._follow_assistant(event))
        elif kind == "user":
            self._pass(raw, self._live(raw, user=True) and self._follow_user(event))
        elif kind == "stream_event":
            self._pass(raw, self._live(raw) and self._follow_stream_event(event) and turn.pen.partial)
        else:
            if turn.stated:
                turn.finish()
            if turn.state is CLOSED and turn.end.sealed and turn.pen.terminates:
                turn.machine.late()  # the terminator was said: the end, for whoever asked for one
            else:
                turn.pen.verbatim(raw)

    def _pass(self, raw: bytes, passes: bool) -> None:
        if passes:
            self.turn.pen.verbatim(raw)

    @property
    def _lenient(self) -> bool:
        """Whether the frontend can take all that a real claude says: it reads to no terminator, nothing is hidden."""
        policy = self.turn.terms.policy
        return not (self.turn.pen.terminates or (policy is not None and policy.hidden))

    def _live(self, raw: bytes, *, user: bool = False) -> bool:
        """Whether a line belongs to the turn; the first one says the `init` that did not come.

        Behind the result a line passes that belongs to background work, or that says a message of the user's again.
        """
        turn = self.turn
        if turn.stated and turn.state is not CLOSED:
            turn.finish()
        if turn.state is CLOSED:
            if self._owed or (user and self._lenient):
                turn.pen.verbatim(raw)
            else:
                turn.machine.late()
            return False
        return turn.state is not NEW or turn.machine.go(READY)

    def _adopt(self, raw: bytes, event: Line) -> None:
        """The `init` of a real claude."""
        turn, policy = self.turn, self.turn.terms.policy
        if turn.state is not NEW:
            turn.account.repaired("second_init")
            if self._lenient:
                self._owed += 1
                turn.pen.verbatim(raw)
            return
        session = str(event.get("session_id"))
        turn.conversation.session_id = turn.conversation.vendor_session = session
        turn.opening.facts["vendor_version"] = event.get("claude_code_version")
        turn.reply.model = str(event.get("model"))
        turn.pen.adopt_session(session)
        tools = event.get("tools")
        if policy is not None and policy.hidden and isinstance(tools, list):
            raw = dump(event | {"tools": [name for name in tools if name not in policy.hidden]})
        turn.pen.verbatim(raw)
        turn.machine.go(READY, True)

    def _state(self, raw: bytes, event: Line) -> None:
        """The result of a real claude, which waits."""
        turn = self.turn
        if turn.state is CLOSED or turn.stated:
            turn.account.repaired("second_result", raw)
            if self._owed:
                self._owed -= 1
                turn.finish()
                turn.pen.verbatim(raw)
            return
        session = event.get("session_id")
        if turn.state is NEW and isinstance(session, str):
            turn.conversation.vendor_session = session
        if self._lenient:  # a turn that never began has no `init` (contract 5.10), and a call may be left open
            turn.open.clear()
            if turn.state is NEW:
                turn.machine.go(READY, True)
        if event.get("is_error"):
            errors = event.get("errors")
            message = event.get("result") or (errors[0] if isinstance(errors, list) and errors else "")
            outcome = Outcome("failed", message=str(message), cause="vendor_error")
        else:
            outcome = Outcome("ended", facts={"result": event.get("result")})
            turn.reply.last_text = str(event.get("result") or "")
        turn.end.outcome, turn.end.stated = outcome, (raw, outcome)

    # -- what the lines say -------------------------------------------------------------------------------

    def _hides(self, block: Line) -> bool:
        """Whether a block is a call that is hidden; its id is remembered for the result."""
        policy = self.turn.terms.policy
        if policy is None or block.get("type") != "tool_use" or block.get("name") not in policy.hidden:
            return False
        self.turn.calls.hide(str(block.get("id")))
        return True

    def _follow_assistant(self, event: Line) -> bool:
        """Whether the line passes."""
        turn, parent, content = self.turn, event.get("parent_tool_use_id"), event["message"]["content"]
        hidden = [block for block in content if self._hides(block)]
        if hidden or parent in turn.calls.hidden:
            return False
        for block in content:
            if parent:
                if block.get("type") == "tool_use" and isinstance(block["id"], str):
                    turn.nested.open[block["id"]] = (parent, block["id"])
                    _bound(turn.nested.open)
            elif block.get("type") == "tool_use":
                turn.open[block["id"]] = (block["id"], block["name"], {})  # its arguments were said
                _bound(turn.open)
            elif block.get("type") == "text":
                turn.reply.last_text = block["text"]
        if parent:
            return True
        turn.speech.parts = []
        if turn.state in (TEXT, THINKING):
            turn.machine.go(MESSAGE, True)
            turn.reply.stop_due = turn.pen.partial
        return True

    def _follow_user(self, event: Line) -> bool:
        """Whether the line passes."""
        turn, content = self.turn, event["message"]["content"]
        hidden = turn.calls.hidden
        if isinstance(content, str):
            return True
        if event.get("parent_tool_use_id") in hidden or any(block.get("tool_use_id") in hidden for block in content):
            return False
        if event.get("parent_tool_use_id"):
            for block in content:
                turn.nested.open.pop(block.get("tool_use_id"), None)
            return True
        for block in content:
            if block.get("type") == "tool_result":
                if turn.open.pop(block.get("tool_use_id"), None) is None:
                    turn.account.repaired("orphan_tool_result", block)
                    return self._lenient
                turn.calls.results += 1
        return True

    def _follow_stream_event(self, event: Line) -> bool:
        """Whether the line passes, for a frontend that takes partial messages."""
        turn, inner = self.turn, event["event"]
        kind = inner["type"]
        if kind == "content_block_start" and self._hides(inner["content_block"]):
            self._hidden_block = inner["index"]
        if self._hidden_block is not None and inner.get("index") == self._hidden_block:
            if kind == "content_block_stop":
                self._hidden_block = None
            return False
        if kind == "message_start":
            message = inner["message"]
            turn.reply.model = str(message.get("model"))
            turn.pen.adopt_message(str(message.get("id")), turn.model, message.get("usage") or NO_USAGE)
            turn.reply.number += 1
            turn.machine.go(MESSAGE, True)
        elif kind == "content_block_start":
            self._block_start(inner["index"], inner["content_block"]["type"])
        elif kind == "content_block_delta":
            fragment = inner["delta"].get("text") or inner["delta"].get("thinking")
            if isinstance(fragment, str) and turn.state in (TEXT, THINKING):
                turn.speech.follow(fragment)
        elif kind == "content_block_stop":
            turn.reply.stop_due = False
            if turn.state is not READY:
                turn.machine.go(MESSAGE, True)
        elif kind == "message_stop":
            turn.machine.go(READY, True)
        return True

    def _block_start(self, index: object, kind: str) -> None:
        turn = self.turn
        if index.__class__ is not int:
            raise TypeError("the index of a block is no number")
        if turn.state is READY:
            turn.pen.adopt_message(turn.pen.new_message_id(), turn.model, NO_USAGE)
        turn.pen.adopt_block(index)
        turn.machine.go(BLOCKS.get(kind, MESSAGE), True)
        turn.speech.follow_block()
        turn.reply.stop_due = turn.pen.partial and turn.state is MESSAGE


def _bound(table: dict[str, Any]) -> None:
    if len(table) > FOLLOWED:
        del table[next(iter(table))]

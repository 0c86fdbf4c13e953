"""Yume's side of a conversation: its frames in, nothing but flat lines out (its reference, section
1).

    {"type":"user","content":…}                              a message; `message` as Claude has it
                                                             is read too
    {"type":"interrupt"}                                      stops the turn that runs
    {"type":"set_permission_mode","mode":…}                   from now on, in its names or Claude's
    {"type":"tool_approval","id":…,"approved":true|false}     the answer about a call, by the id of
                                                              its `tool_use` line

A call that the vendor asks about is said first; then its approval is awaited, for APPROVAL_SECONDS.
One that comes before the vendor's question is kept for it. `$`, the older end of a message, is
heard and means nothing. A frame that cannot be read is skipped with a word on stderr.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.control.control import KIND_CHARACTERS, Control
from shim.core.claude.control.wishes import Chosen, Decided, Interrupt, Wish
from shim.core.claude.facts import SessionState
from shim.core.claude.hooks.callbacks import Seen
from shim.core.claude.messages import PRIORITY_LATER, parse_line, parse_message
from shim.core.claude.permissions import (
    DENIED_BY_RULE_TEXT,
    NOT_GRANTED_TEXT,
    QUESTION_TOOL,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
    PermissionRequest,
)
from shim.core.reading.account import printable
from shim.core.reading.bounded import Bounded
from shim.core.reading.json_text import dump
from shim.core.yume.pen import YumePen
from shim.core.yume.words import yume_mode

# Yume's own limit for a turn is ten minutes, so no question needs to wait longer.
APPROVAL_SECONDS = 600.0
# approvals that came before the vendor asked: the frontend has seen the call already
EARLY_APPROVALS = 1000
UNANSWERED = "Nobody approved this call in time."
DENIED = "The call was denied."
UNANSWERABLE = "This frontend can approve a call, but has no way to answer a question. Go on without the answer."
STOPPED = "The turn was stopped before this call was approved."


def _decision(frame: Mapping[str, Any]) -> PermissionDecision:
    """The decision of a frame: only `true` approves."""
    if frame.get("approved") is True:
        return PermissionDecision(True)
    reason = frame.get("reason") or frame.get("message")
    return PermissionDecision(False, message=reason if isinstance(reason, str) else DENIED)


class YumeControl(Control):
    patience = APPROVAL_SECONDS

    def __init__(
        self,
        facts: SessionState,
        mint: Callable[[], str],
        now: Callable[[], str],
        pen: YumePen,
        *,
        unattended: bool,
    ) -> None:
        """`unattended`: the vendor runs its tools and never asks."""
        super().__init__(facts, mint, now)
        self._pen = pen
        self.facts.serving_vendor = self.facts.serving_vendor._replace(never_asks=unattended)
        self._early: dict[str, PermissionDecision] = {}
        self._decided = Bounded[str, None](
            EARLY_APPROVALS
        )  # calls of this turn, so that a second approval of a call approves no later question

    def take(self) -> bytes:
        """Nothing: the pen writes all lines."""
        return self._pen.take()

    # -- what the frontend says --------------------------------------------------------------------

    def receive(self, raw: bytes) -> list[Wish]:
        if raw.strip() in (b"", b"$"):
            return []
        frame = parse_line(raw)
        kind = frame.get("type") if isinstance(frame, dict) else None
        if not isinstance(frame, dict) or not isinstance(kind, str):
            self._complain(f"a line of stdin is no frame ({len(raw)} bytes)")
        elif kind == "user":
            self._message(frame, len(raw))
        elif kind == "interrupt":
            return [*self._give_up(""), Interrupt()] if self.running else []
        elif kind == "set_permission_mode":
            return self._choose(frame.get("mode"))
        elif kind == "tool_approval":
            return self._approve(frame)
        else:
            self._complain(f"a frame of type {printable(kind[:KIND_CHARACTERS])} is not known")
        return []

    def _message(self, frame: Mapping[str, Any], size: int) -> None:
        message = frame.get("message")
        if not isinstance(message, dict):
            message = {"role": "user", "content": frame.get("content")}
        try:
            read = parse_message({**frame, "message": message}, self._now())
        except ValueError as error:
            self._complain(f"a message cannot be read: {error}")
            return
        # Yume waits for the end of every message: none is said into the turn of another.
        self.messages.append(read._replace(size_bytes=size, priority=PRIORITY_LATER))

    def _choose(self, name: object) -> list[Wish]:
        mode, asks, known = yume_mode(name)
        if not known:
            self._complain(
                f"the permission mode {printable(str(name)[:KIND_CHARACTERS])!r} is not known: default",
                "",
            )
        if asks and not self.facts.serving_vendor.asks_permissions:
            # an unattended vendor is refused by its next turn, if no other vendor answers
            self._complain(
                "it asks nobody here"
                + ("" if self.facts.serving_vendor.never_asks else "; it keeps to its own default"),
                "",
            )
        self.facts.mode, self.facts.answers_prompts = mode, asks
        return [Chosen("mode", mode)]

    def _approve(self, frame: Mapping[str, Any]) -> list[Wish]:
        call, decision = str(frame.get("id")), _decision(frame)
        asked = self._asked.pop(call, None)
        if asked is not None:
            self._decide(call)
            return [Decided(asked, decision)]
        if self.running and call not in self._decided and len(self._early) < EARLY_APPROVALS:
            self._early[call] = decision
        else:
            self._complain("an approval is about no call that waits for one")
        return []

    def _decide(self, call: str) -> None:
        self._decided[call] = None

    def _give_up(self, message: str) -> list[Wish]:
        asked, self._asked = self._held | self._asked, {}
        self._held.clear()
        denial = PermissionDecision(False, message=message or STOPPED, ends_turn=not message)
        return [Decided(it, denial) for it in asked.values()]

    # -- what we ask -------------------------------------------------------------------------------

    def ask(self, permission: PermissionRequest) -> PermissionDecision | None:
        """Write the call and wait for its approval. Returns the decision if no approval is needed."""
        if permission.refusal:
            return PermissionDecision(False, message=permission.refusal)
        hook, shown = self._verdicts.of(permission.call_id), self._shown(permission)
        if hook.allow is False:
            return PermissionDecision(False, message=hook.reason, frontend_knows=False)
        ruled = self.facts.evaluate_call(permission.tool, shown, hook)
        if ruled.decided == "deny":
            return PermissionDecision(
                False,
                message=DENIED_BY_RULE_TEXT.format(tool=permission.tool, why=ruled.why),
                frontend_knows=False,
            )
        if permission.tool == QUESTION_TOOL:
            return PermissionDecision(False, message=UNANSWERABLE, frontend_knows=False)
        changed = None if shown == permission.tool_input else shown
        # a person approves every other call
        if ruled.decided == "allow" and (ruled.ruled or not self.facts.answers_prompts):
            return PermissionDecision(True, updated_input=changed)
        # Yume shows no other input
        if not self.facts.answers_prompts or self.facts.mode == "dontAsk" or changed is not None:
            return PermissionDecision(
                False,
                message=hook.reason or NOT_GRANTED_TEXT.format(tool=permission.tool),
                frontend_knows=False,
            )
        size = len(dump(permission.tool_input))
        if size > self._pen.room:
            return PermissionDecision(
                False, message=f"The call is too large to be asked about ({size} bytes)."
            )
        if (early := self._early.pop(permission.call_id, None)) is not None:
            self._decide(permission.call_id)
            return early
        if self._deaf:
            return PermissionDecision(False, message=STREAM_CLOSED_TEXT)
        self._pen.expose(permission.call_id)
        self._asked[permission.call_id] = permission
        return None

    def withdraw(self) -> None:
        """Nothing: Yume knows by the result that nothing is asked any more."""

    def expired(self, permission: PermissionRequest) -> PermissionDecision | None:
        """The denial of a call without an answer in time (R14); None if it was answered."""
        if self._asked.get(permission.call_id) is not permission:
            return None
        del self._asked[permission.call_id]
        self._decide(permission.call_id)
        return PermissionDecision(False, message=UNANSWERED)

    # -- what Claude's frontends are told and Yume is not ------------------------------------------

    def end(self) -> None:
        """The turn is over: forget its approvals."""
        self._early.clear()
        self._decided.clear()
        super().end()

    def observe(self, seen: Seen, *, prompt: str = "", last: str = "") -> None:
        """Nothing: Yume has no hooks."""

    def state(self, state: str) -> None:
        """Nothing: Yume reads the state from the lines."""

    def system(self, subtype: str, **fields: object) -> None:
        """Nothing: Yume has no such lines."""

    def _complain(self, text: str, consequence: str = "; the line was skipped") -> None:
        self.complaints.append(f"{self.facts.vendor_name}: {text}{consequence}\n")

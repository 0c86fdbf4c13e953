"""Claude's side of one turn: the machine that owns every invariant of the stream (table and states: `frame`).

A vendor's translator says what happened, in verbs, and may be naive about it. What must be said on the way, and what
may never be said, is decided here, for any order of verbs. Pure: no clock, no file, no randomness.
"""

from typing import Any

from shim.core.api_errors import classify
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Permission
from shim.core.claude.policy import STRUCTURED
from shim.core.claude.usage import Usage, dollars, known
from shim.core.ids import parse_uuid
from shim.core.reading.account import Account
from shim.core.turn import result
from shim.core.turn.machine import CLOSED, ECHO, MESSAGE, NAME_CHARACTERS, NEW, READY, TEXT, THINKING, paths
from shim.core.turn.passed_lines import Verbatim
from shim.core.turn.terms import Terms

# What a fact must be to be believed: it goes into the init line, and some clients end on another type there.
FACTS: dict[str, type] = {
    **dict.fromkeys(("cwd", "model", "mode", "key_source", "vendor_version"), str),
    **dict.fromkeys(("tools", "mcp_servers", "slash_commands", "agents"), list),
}

REFUSAL_CHARACTERS = 20_000  # of what the result of a refused call will say


ITEMS: dict[str, type] = {"tools": str, "slash_commands": str, "agents": str, "mcp_servers": dict}
SYNTHETIC = "<synthetic>"  # the model of what no model said: ours to say, never a vendor's


class Turn(Verbatim):
    """One turn. `state`, `is_error`, `cause` and `final_text` may be read; everything else is verbs."""

    # -- the frame ----------------------------------------------------------------------------------------

    def started(self, **facts: Any) -> None:
        """The vendor said who it is: session_id, model, cwd, tools (Claude's names), mode, slash_commands …

        The first call that carries a session id says the `init` line; facts that come later are too late for it.
        """
        session = facts.pop("session_id", None)
        if session and isinstance(session, str):
            if self.conversation.vendor_session not in (None, session):
                self.account.repaired("session_id_changed", session)
                self._follow(session)
            self.conversation.vendor_session = session
        for name, value in facts.items():
            if isinstance(value, FACTS.get(name, object)) and value is not None and value != SYNTHETIC:
                if isinstance(value, list):
                    value = [item for item in value if isinstance(item, ITEMS.get(name, object))]
                self.facts[name] = self.sure(value)
        if session and self.state is NEW:
            self.go(READY)

    def _follow(self, session: str) -> None:
        """A dialect that can tell is told of a vendor's new id, if the old one was the conversation's (Yume's R12)."""
        conversation, found = self.conversation, parse_uuid(session)
        ours = conversation.session_id is not None and conversation.session_id == conversation.vendor_session
        if self._retries and ours and found and self.state is not CLOSED:
            conversation.session_id = found
            self.pen.session_changed(found)

    def message(self, model: str | None = None, usage: Usage | None = None) -> None:
        """A new reply begins; nothing is said before its first block."""
        if self.state not in (NEW, READY, ECHO):
            self.go(READY)
        self.message_facts(model, usage)

    def message_facts(self, model: str | None = None, usage: Usage | None = None) -> None:
        """The model and the usage known so far of the reply that is open or comes next."""
        if model and model != self.model and isinstance(model, str) and model != SYNTHETIC:
            self.model = model[:NAME_CHARACTERS]
        if usage is not None:
            if usage.__class__ is not Usage:
                usage = known(usage)
            self._start_usage = usage
            if self.state is not READY and self.state in (MESSAGE, TEXT, THINKING):
                self.pen.message_usage(usage)

    def message_end(
        self,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        cost: float = 0.0,
        *,
        aborted: bool = False,
        adds: bool = True,
    ) -> None:
        """The reply is over; `usage` and `cost` are of this reply only and add up.

        `adds`: False where the vendor's last numbers are those of the turn, which it says at the end (`spent`).
        `aborted`: it did not end by itself, so it has no stop reason (contract 6.4).
        """
        self._aborted = aborted
        if usage:
            if usage.__class__ is not Usage:
                usage = known(usage)
            if self.state is not READY:  # else its last line is said, and the next reply has numbers of its own
                self._reply_usage = usage
            if adds:
                self.count(usage)
        if cost:
            self.cost += dollars(cost)
        self.stop_reason = stop_reason or self.stop_reason
        if self.state is not NEW:
            self.go(READY)
        if self._said_size and not self._retries:
            self._forget_said()
        if self._budget is not None:
            self._count_cost(self._budget)

    def _count_cost(self, budget: float) -> None:
        """Claude's `--max-budget-usd` for a vendor that says what a reply cost: no reply follows that is beyond it.

        A turn that is over is over: the limit ends one that would go on (contract F10).
        """
        if self.conversation.cost + self.cost > budget and self.open and self.outcome is None:
            amount = f"{budget:.12f}".rstrip("0").rstrip(".")
            self.failed(f"Reached maximum budget (${amount})", kind="limit", subtype="error_max_budget_usd")
            self.finish()

    def spent(self, usage: Usage, cost: float) -> None:
        """Usage and cost of a request that is no reply of this turn (one that failed, a compaction)."""
        self.count(known(usage))
        self.cost += dollars(cost)

    # -- beside the conversation --------------------------------------------------------------------------

    def system(self, subtype: str, **fields: Any) -> None:
        """A `system` line; it never closes a block."""
        if self.state is NEW:
            self.go(READY)
        if self.state is CLOSED:
            self._late()
        else:
            self.pen.system(subtype, self.sure(fields))

    def refused(self, permission: Permission, message: str, *, announced: bool) -> None:
        """A permission was refused; `announced`: the frontend refused it itself and need not be told (5.13)."""
        self.denied(permission.call, permission.tool, permission.arguments)
        if not announced and self.state is not CLOSED:
            self.system("permission_denied", tool_name=permission.tool, tool_use_id=permission.call, message=message)
        self._remember_refusal(permission.call, message)

    def corrected(self, permission: Permission, message: str) -> None:
        """A call was allowed with another input only: its result will say so, and it is no denial."""
        self._remember_refusal(permission.call, message)

    def _remember_refusal(self, call: str, message: str) -> None:
        if any(call == said_as for said_as, _, _ in self.open.values()):  # as many as calls are open
            self._refusals[call] = message[:REFUSAL_CHARACTERS]

    def retry(self, attempt: int, limit: int, delay_ms: int, message: str) -> None:
        """The vendor asks its model again (contract 5.8, `api_retry`)."""
        failure = self.waits = classify(message)
        self.system(
            "api_retry",
            attempt=attempt,
            max_retries=limit,
            retry_delay_ms=delay_ms,
            error_status=failure.status,
            error=failure.retry_error,
        )

    def compacted(self, trigger: str, before: int) -> None:
        """The vendor shortened its context; `trigger` is manual or auto, `before` the tokens it had."""
        self.system("compact_boundary", compact_metadata={"trigger": trigger, "pre_tokens": before})

    def unknown(self, kind: object, sample: object = "") -> None:
        """An event of the vendor that has no translation."""
        self.account.unknown_event(kind, sample)

    def answers(self, message: Message, *, echo: bool) -> None:
        """The user's message that this turn answers; `echo` says it again behind the init line (contract C15)."""
        self.answered = message
        self.pen.asked(message.text)
        self.echo = echo

    def next(self, terms: Terms | None = None, account: Account | None = None) -> "Turn":
        """The turn after this one, in the same conversation; on other terms if there are any."""
        turn = type(self)(self.pen, terms or self.terms, self.conversation, account or self.account)
        if terms is not None and terms.vendor != self.terms.vendor:
            return turn  # what another vendor said of itself is not this one's
        turn.facts = dict(self.facts)
        if terms is None or terms.model == self.terms.model:
            turn.model = self.model
        else:
            turn.facts.pop("model", None)
        return turn

    # -- the steps of the table ---------------------------------------------------------------------------

    def _init(self) -> None:
        terms, conversation = self.terms, self.conversation
        if conversation.session_id is None:
            conversation.session_id = (
                terms.session_id or parse_uuid(conversation.vendor_session or "") or terms.fresh_id
            )
        shim: dict[str, Any] = {"vendor": terms.vendor, "unattended": terms.unattended}
        if version := self.facts.get("vendor_version") or terms.vendor_version:
            shim["vendor_version"] = version
        if terms.replays:
            shim["replay"] = True
        if terms.tried:
            shim["tried"] = [it.fact() for it in terms.tried]
        facts: dict[str, Any] = {"cwd": terms.cwd, "tools": list(terms.tools), "mode": terms.mode, "shim": shim}
        self.model = (self.model or self.facts.get("model") or terms.model or "unknown")[:NAME_CHARACTERS]
        facts |= {"model": terms.model or self.model} | self.facts
        if terms.read is not None and STRUCTURED not in facts["tools"]:
            facts["tools"] = [*facts["tools"], STRUCTURED]
        if terms.policy:
            facts["tools"] = terms.policy.listed(facts["tools"])
        self.pen.init(conversation.session_id, facts)
        if self.answered is not None:
            if self.echo:
                self.pen.replay(self.answered.message, self.answered.uuid, self.answered.timestamp)
            if notice := self.answered.notice(terms.vendor):
                self.pen.notice(notice)

    def _end(self) -> None:
        result.conclude(self)


Turn.paths = paths(Turn)

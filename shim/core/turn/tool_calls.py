"""Tool calls of a turn: every call gets one result, every result has a call, whatever order they come in."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.hooks.callbacks import Seen
from shim.core.claude.mcp_content import convert_result, is_failed_result
from shim.core.policy.policy import STRUCTURED
from shim.core.policy.rules import MCP
from shim.core.reading.account import Account
from shim.core.reading.json_text import UNSURE, Exact, as_content, dump
from shim.core.reading.limits import LONGEST_CHARACTER, fit, fit_images
from shim.core.turn.machine import CLOSED, DONE, MESSAGE, READY, Machine
from shim.core.turn.outcome import MAX_TURNS, End
from shim.core.turn.reply import Reply
from shim.core.turn.terms import NAME_CHARACTERS, SEEN_IDS, Conversation, Pen, Terms

EARLY_RESULTS = 64  # results that came before their call
# Open calls, and bytes of their arguments as JSON. No agent runs so many at once; beyond a bound the older half is
# answered with an error, so that memory and the end of the turn stay small if a vendor forgets them.
OPEN_CALLS = 1000
OPEN_BYTES = 8 * 1024 * 1024
DENIALS = 100  # entries of `permission_denials`; all of them are in one line
REFUSAL_CHARACTERS = 20_000  # of what the result of a refused call will say

UNANSWERED = "No result was reported for this call."
UNANSWERED_INTERRUPTED = "Interrupted while this call was running; it may have run in part or in full."
STRUCTURED_SAID = "Structured output provided successfully"  # contract 5.11

Call = tuple[str, str, Mapping[str, Any]]  # id as said, name, arguments


class Denials:
    """The calls that were refused, for the result's `permission_denials`. They share `room`, half of a line."""

    def __init__(self, account: Account, exact: Exact, room: int) -> None:
        self._account = account
        self._exact = exact
        self._room = room
        self._bytes = 0
        self.entries: dict[str, dict[str, Any]] = {}  # by id

    def add(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call was refused; one whose arguments have no room is named without them."""
        identity = identity[:NAME_CHARACTERS]
        if identity in self.entries:
            return
        given = self._exact.value(arguments)
        entry = {"tool_name": name[:NAME_CHARACTERS], "tool_use_id": identity, "tool_input": given}
        room = self._room - self._bytes
        if (size := len(dump(entry))) > room:
            self._account.repaired("denial_cut", name)
            entry["tool_input"] = {}
            size = len(dump(entry))
        if len(self.entries) < DENIALS and size <= room:
            self.entries[identity] = entry
            self._bytes += size + 1


class ToolCalls:
    """The verbs for tools, and the calls that wait for their results."""

    def __init__(
        self,
        machine: Machine,
        pen: Pen,
        terms: Terms,
        conversation: Conversation,
        account: Account,
        exact: Exact,
        reply: Reply,
        end: End,
        denials: Denials,
        finish: Callable[[], None],
    ) -> None:
        """`finish` says the result of the turn: a limit was reached, or a call that must not run has begun."""
        self._machine = machine
        self._pen = pen
        self._terms = terms
        self._conversation = conversation
        self._account = account
        self._exact = exact
        self._reply = reply
        self._end = end
        self._denials = denials
        self._finish = finish
        self._room = pen.room // 2  # characters of a result: its text stands in a line twice for some tools
        self.redact: Callable[[Any], Any] | None = None  # what a call's id, name and arguments are said as
        self.open: dict[str, Call] = {}  # the vendor's id → the call
        self.hidden: set[str] = set()  # ids of calls that were left out of the stream
        self.results = 0  # that were said
        self.observed: list[Seen] | None = None  # calls and results for a frontend's hooks, if it has any
        self.interrupted = False  # a call was open when the turn was interrupted
        self._open_bytes = 0  # at least of their arguments
        self._early: dict[str, tuple[object, bool]] = {}  # results that came before their call, and whether it failed
        self._refusals: dict[str, str] = {}  # id as said → why the call was refused

    # -- the verbs ----------------------------------------------------------------------------------------

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any], hidden: bool = False) -> None:
        """A whole call, in Claude's words. The same id while open is the same call; later it is a new one.

        `hidden`: the call and its result are left out of the stream, unless it must not be made at all.
        """
        if identity.__class__ is not str or not identity:
            identity = self._pen.new_uuid()
        elif len(identity) > NAME_CHARACTERS:
            identity = identity[:NAME_CHARACTERS]
        if identity in self.open or identity in self.hidden:
            return
        if name.__class__ is not str:
            name = "unknown"
        elif len(name) > NAME_CHARACTERS:
            name = name[:NAME_CHARACTERS]
        if arguments.__class__ is not dict:
            arguments = {"raw": arguments}
        for value in arguments.values():
            if value.__class__ in UNSURE:
                arguments = self._exact.value(arguments)
                break
        denied, judge = False, self._terms.judge
        if hidden or judge is not None:
            refused = identity in self._denials.entries  # it never ran, so there is nothing to stop
            denied = judge is not None and not refused and judge.denies(name, arguments)
            if (hidden and not denied) or (judge is not None and judge.hides(name)):
                self.hide(identity)
                return
        if self._machine.state is not MESSAGE and not self._machine.go(MESSAGE):
            return
        whole = arguments  # a hook's answer may hand them back to the vendor, so it is asked about these
        if self.redact is None or self.asks_by_line:
            said_as = self._conversation.claim(identity, self._account)
        else:
            said_as = self._conversation.claim(self.redact(identity), self._account)
            name, arguments = self.redact(name), self.redact(arguments)
        self._reply.asks_tools = True
        said = self._pen.tool_use(said_as, name, arguments)
        if said is not None:
            self._account.repaired("input_cut", name)
            arguments = said
        self.open[identity] = (said_as, name, arguments)
        self._open_bytes += self._pen.call_bytes
        if len(self.open) > OPEN_CALLS or self._open_bytes > OPEN_BYTES:
            self._bound_open(identity)
        if self.observed is not None:
            self.observed.append(Seen("PreToolUse", said_as, name, whole))
        if denied and not (judge is not None and judge.waits(name)):
            self._forbidden(identity, name, arguments)
        elif self._early and identity in self._early:
            content, is_error = self._early.pop(identity)
            self.tool_result(identity, content, is_error)

    def tool_result(
        self,
        identity: str,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """What a call returned. `name` and `arguments` make up for a call that was never announced.

        `content` is a text, Claude's blocks, blocks of MCP, or a whole result of MCP (`mcp_content`).
        A result before its call waits for it; a second result is counted and dropped.
        """
        if content.__class__ is not str:
            content = self._exact.value(content)
        if identity.__class__ is str and len(identity) > NAME_CHARACTERS:
            identity = identity[:NAME_CHARACTERS]
        call = self.open.pop(identity, None)
        if call is None:
            call = self._called_late(identity, content, is_error, name, arguments)
            if call is None:
                return
        if self._machine.state is not READY and not self._machine.go(READY):
            if self._machine.state is DONE:  # it is answered with the end, as every call is
                self.open[identity] = call
            return
        judge, is_error = self._terms.judge, is_error or self.interrupted  # a vendor may call what it stopped complete
        if content.__class__ is not str or call[1].startswith(MCP):
            is_error = is_error or is_failed_result(content)
            content = as_content(convert_result(content, call[1], failed=is_error))
        if not is_error and judge is not None and judge.waits(call[1]) and judge.denies(call[1], call[2]):
            self.open[identity] = call  # the vendor knew that it may not, and it ran
            self._forbidden(*call)
            return
        if self._refusals:
            refusal = self._refusals.pop(call[0], "")
            content = (refusal if is_error else "") or content
        content = self._answer(call, content, is_error)
        if self.observed is not None and not is_error:
            self.observed.append(Seen("PostToolUse", *call, content))
        if self._terms.limits.max_turns is not None:
            self._count_turns(self._terms.limits.max_turns)

    def fill_results(self, content: str = "") -> None:
        """The vendor never says what its open calls returned: each gets `content`."""
        if self.open and self._machine.go(READY):
            calls = list(self.open.values())
            self.open.clear()
            for call in calls:
                self._answer(call, content, False)
            if self._terms.limits.max_turns is not None:
                self._count_turns(self._terms.limits.max_turns)

    def forbid(self, call: str, reason: str) -> None:
        """The frontend forbids a call that the vendor runs without asking: the turn is stopped."""
        for said_as, name, arguments in list(self.open.values()):
            if said_as == call:
                self._forbidden(call, name, arguments, reason)
                return
        if self._machine.state is not CLOSED and self._conversation.knows(call):
            self._end.stopped(f"{reason}: the turn was stopped; the call has run", "denied")
            self._finish()

    def refused(self, call: str, message: str) -> None:
        """The result of an open call will say why it was refused."""
        if any(call == said_as for said_as, _, _ in self.open.values()):  # as many as calls are open
            self._refusals[call] = message[:REFUSAL_CHARACTERS]

    def hide(self, identity: str) -> None:
        if len(self.hidden) >= SEEN_IDS:
            self.hidden.clear()
        self.hidden.add(identity[:NAME_CHARACTERS])

    @property
    def asks_by_line(self) -> bool:
        """Whether a call's line may be the question to the frontend: it decides about what it is shown."""
        return self._terms.questions is not None and self._terms.questions()

    @property
    def any(self) -> bool:
        """Whether the vendor has called a tool, or a result came before its call."""
        return bool(self.results or self.open or self.hidden or self._early)

    # -- the end ------------------------------------------------------------------------------------------

    def structured(self, value: Mapping[str, Any]) -> None:
        """Say the structured answer as the call that Claude makes of it (contract F11, 5.11)."""
        identity = self._pen.new_uuid()
        self._machine.go(MESSAGE)
        self._reply.asks_tools = True
        self._pen.tool_use(identity, STRUCTURED, value)
        self._machine.go(READY)
        self.results += 1
        self._pen.tool_result(identity, STRUCTURED, value, STRUCTURED_SAID, False)

    def fill(self) -> str:
        """Answer the calls that are open at the end; gives back what their results say."""
        interrupted = self._end.interrupted
        text = UNANSWERED_INTERRUPTED if interrupted else UNANSWERED
        self.interrupted = interrupted and (self.interrupted or bool(self.open))
        outcome = self._end.outcome
        if outcome is not None and outcome.cause == "denied":
            text = outcome.message
        for call in self.open.values():
            self._answer(call, self._refusals.get(call[0]) or text, True)
        self.open.clear()
        return text

    def count_orphans(self) -> None:
        """The results whose calls never came."""
        for identity in self._early:
            self._account.repaired("orphan_tool_result", identity)

    # -- how it is done -----------------------------------------------------------------------------------

    def _answer(self, call: Call, content: object, is_error: bool) -> object:
        """Say the result of a call; gives back its content as it was said."""
        if self._reply.said.size:
            self._reply.said.forget()
        self.results += 1
        if content.__class__ is not str or len(content) * LONGEST_CHARACTER > self._room:
            content = self._fitted(content)
        self._pen.tool_result(call[0], call[1], call[2], content, is_error)
        return content

    def _fitted(self, content: object) -> object:
        """A result that fits a line (contract 5.4)."""
        if isinstance(content, str) and len(content) * LONGEST_CHARACTER <= self._room:
            return content
        fitted = fit(fit_images(content, self._room), self._room, self._terms.keep)
        if fitted is not content:
            self._account.repaired("result_cut")
        return fitted

    def _called_late(
        self, identity: str, content: object, is_error: bool, name: str | None, arguments: Mapping[str, Any] | None
    ) -> Call | None:
        """The call of a result whose call is not open: invented, or None when there is nothing to answer."""
        if identity in self.hidden:
            self.hidden.discard(identity)
        elif self._conversation.knows(identity):
            self._account.repaired("second_tool_result", identity)
        elif name is not None:
            self.tool_use(identity, name, arguments or {})
            return self.open.pop(identity, None)
        elif len(self._early) < EARLY_RESULTS:
            self._early[identity] = (self._fitted(content), is_error)
        else:
            self._account.repaired("orphan_tool_result", identity)
        return None

    def _bound_open(self, newest: str) -> None:
        """Answer the oldest calls where too many are open, or too much of them is remembered."""
        sizes = {identity: len(dump(call[2])) for identity, call in self.open.items()}
        self._open_bytes = sum(sizes.values())
        if len(self.open) <= OPEN_CALLS and self._open_bytes <= OPEN_BYTES - OPEN_BYTES // 8:
            return  # with room for many calls before they are measured again
        for identity in list(self.open):
            few = len(self.open) <= OPEN_CALLS // 2 and self._open_bytes <= OPEN_BYTES // 2
            if few or identity == newest or self._machine.state is CLOSED:
                return
            self._open_bytes -= sizes[identity]
            self._account.repaired("call_given_up", identity)
            self.tool_result(identity, UNANSWERED, True)

    def _count_turns(self, limit: int) -> None:
        """Claude's `--max-turns` for a vendor that cannot count: no reply begins beyond the limit (contract F10)."""
        if self._reply.number >= limit and not self.open:
            self._end.failed(f"{MAX_TURNS} ({limit})", {}, kind="limit", subtype="error_max_turns")
            self._finish()

    def count_cost(self, budget: float) -> None:
        """Claude's `--max-budget-usd` for a vendor that says what a reply cost: no reply follows that is beyond it.

        A turn that is over is over: the limit ends one that would go on (contract F10).
        """
        beyond = self._conversation.cost + self._reply.cost > budget
        if beyond and self.open and self._end.outcome is None:
            amount = f"{budget:.12f}".rstrip("0").rstrip(".")
            text = f"Reached maximum budget (${amount})"
            self._end.failed(text, {}, kind="limit", subtype="error_max_budget_usd")
            self._finish()

    def _forbidden(self, identity: str, name: str, arguments: Mapping[str, Any], reason: str = "") -> None:
        """The second line of defence: a call that must not run has begun, so the turn is stopped (surface page)."""
        text = f"{reason or f'{name} is not allowed in this session'}: the turn was stopped; the call may have begun"
        if self.redact is not None:
            identity, name, arguments, text = map(self.redact, (identity, name, arguments, text))
        self._denials.add(identity, name, arguments)
        self._end.stopped(text, "denied")
        self._finish()

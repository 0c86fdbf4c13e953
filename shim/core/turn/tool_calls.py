"""Tool calls of a turn: every call gets one result, every result has a call, whatever order they come in."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.hooks import Seen
from shim.core.claude.permissions import TURN_OVER, Permission
from shim.core.claude.policy import STRUCTURED
from shim.core.claude.usage import Usage
from shim.core.reading.json_text import UNSURE, as_content, dump
from shim.core.reading.limits import LONGEST_CHARACTER, fit
from shim.core.turn import result
from shim.core.turn.machine import CLOSED, DONE, MESSAGE, NAME_CHARACTERS, READY, Call
from shim.core.turn.nested import Nested
from shim.core.turn.result import Outcome
from shim.core.turn.speech import Blocks
from shim.core.turn.terms import SEEN_IDS, Structured

EARLY_RESULTS = 64  # results that came before their call
QUESTIONS = 1000  # calls that a vendor may ask about in one turn; more is no work but a flood
# Calls without a result: no agent runs so many at once. Beyond it, and beyond so much of their arguments as JSON, the
# older half is answered, so that memory and the end of the turn stay small whatever a vendor forgets.
OPEN_CALLS = 1000
OPEN_BYTES = 8 * 1024 * 1024
DENIALS = 100  # entries of `permission_denials`; all of them are in one line


class Calls(Blocks):
    """The verbs for tools."""

    nested = Nested

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any], *, hidden: bool = False) -> None:
        """A whole call, in Claude's words. The same id while open is the same call; later it is a new one.

        `hidden`: it and its result are left out of the stream, unless it must not be made at all.
        """
        if identity.__class__ is not str or not identity:
            identity = self.pen.new_uuid()
        identity = identity[:NAME_CHARACTERS]
        if identity in self.open or identity in self._hidden:
            return
        name = name[:NAME_CHARACTERS] if name.__class__ is str else "unknown"
        if arguments.__class__ is not dict:
            arguments = {"raw": arguments}
        for value in arguments.values():
            if value.__class__ in UNSURE:
                arguments = self.sure(arguments)
                break
        verdict = "allow" if self._policy is None else self._policy.verdict(name, arguments)
        if verdict == "hide" or (hidden and verdict == "allow"):
            self._hide(identity)
            return
        if self.state is not MESSAGE and not self.go(MESSAGE):
            return
        said_as = self.claim(identity)
        self._calls_in_reply = True
        whole = arguments  # a hook's answer may hand them back to the vendor, so it is asked about these
        if self.redact is not None and not self.asks_by_line:
            arguments = self.redact(arguments)
        said = self.pen.tool_use(said_as, name, arguments)
        if said is not None:
            self.account.repaired("input_cut", name)
            arguments = said
        self.open[identity] = (said_as, name, arguments)
        self._open_bytes += self.pen.call_bytes
        if len(self.open) > OPEN_CALLS or self._open_bytes > OPEN_BYTES:
            self._bound_open(identity)
        if self.observed is not None:
            self.observed.append(Seen("PreToolUse", said_as, name, whole))
        if verdict == "deny":
            self._forbidden(identity, name, arguments)
        elif identity in self._early:
            content, is_error = self._early.pop(identity)
            self.tool_result(identity, content, is_error)

    def _bound_open(self, newest: str) -> None:
        """Answer the oldest calls where too many are open, or too much of them is remembered."""
        sizes = {identity: len(dump(call[2])) for identity, call in self.open.items()}
        self._open_bytes = sum(sizes.values())
        if len(self.open) <= OPEN_CALLS and self._open_bytes <= OPEN_BYTES - OPEN_BYTES // 8:
            return  # with room for many calls before they are measured again
        for identity in list(self.open):
            few = len(self.open) <= OPEN_CALLS // 2 and self._open_bytes <= OPEN_BYTES // 2
            if few or identity == newest or self.state is CLOSED:
                return
            self._open_bytes -= sizes[identity]
            self.account.repaired("call_given_up", identity)
            self.tool_result(identity, result.UNANSWERED, True)

    def _hide(self, identity: str) -> None:
        identity = identity[:NAME_CHARACTERS]
        if len(self._hidden) >= SEEN_IDS:
            self._hidden.clear()
        self._hidden.add(identity)

    def tool_result(
        self,
        identity: str,
        content: object,
        is_error: bool = False,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """What a call returned. `name` and `arguments` make up for a call that was never announced.

        A result before its call waits for it; a second result is counted and dropped.
        """
        if content.__class__ is not str:
            content = as_content(self.sure(content))
        if identity.__class__ is str:
            identity = identity[:NAME_CHARACTERS]
        call = self.open.pop(identity, None)
        if call is None:
            call = self._called_late(identity, content, is_error, name, arguments)
            if call is None:
                return
        if self.state is not READY and not self.go(READY):
            if self.state is DONE:  # it is answered with the end, as every call is
                self.open[identity] = call
            return
        if self._said_size:
            self._forget_said()
        self.results += 1
        if self._refusals:
            refusal = self._refusals.pop(call[0], "")
            content = (refusal if is_error else "") or content
        content = self._fitted(content)
        self.pen.tool_result(call[0], call[1], call[2], content, is_error)
        if self.observed is not None and not is_error:
            self.observed.append(Seen("PostToolUse", *call, content))
        if self._max_turns is not None:
            self._count_turns(self._max_turns)

    def _fitted(self, content: object) -> object:
        """A result that fits a line: its text stands there twice for some tools (contract 5.4)."""
        room = self._room // 2
        if isinstance(content, str) and len(content) * LONGEST_CHARACTER <= room:
            return content
        fitted = fit(content, room, self.terms.keep)
        if fitted is not content:
            self.account.repaired("result_cut")
        return fitted

    def _count_turns(self, limit: int) -> None:
        """Claude's `--max-turns` for a vendor that cannot count: no reply begins beyond the limit (contract F10)."""
        if self.replies >= limit and not self.open:
            self.failed(f"{result.MAX_TURNS} ({limit})", kind="limit", subtype="error_max_turns")
            self.finish()

    def _called_late(
        self, identity: str, content: object, is_error: bool, name: str | None, arguments: Mapping[str, Any] | None
    ) -> Call | None:
        """The call of a result whose call is not open: invented, or None when there is nothing to answer."""
        if identity in self._hidden:
            self._hidden.discard(identity)
        elif self.conversation.knows(identity):
            self.account.repaired("second_tool_result", identity)
        elif name is not None:
            self.tool_use(identity, name, arguments or {})
            return self.open.pop(identity, None)
        elif len(self._early) < EARLY_RESULTS:
            self._early[identity] = (self._fitted(content), is_error)
        else:
            self.account.repaired("orphan_tool_result", identity)
        return None

    def fill_results(self, content: str = "") -> None:
        """The vendor never says what its open calls returned: each gets `content`."""
        if self.open and self.go(READY):
            calls = list(self.open.values())
            self.open.clear()
            for call in calls:
                self._answer(call, content, False)
            if self._max_turns is not None:
                self._count_turns(self._max_turns)

    def forbid(self, call: str, reason: str) -> None:
        """The frontend forbids a call that the vendor runs without asking: the turn is stopped."""
        for said_as, name, arguments in list(self.open.values()):
            if said_as == call:
                self._forbidden(call, name, arguments, reason)
                return
        if self.state is not CLOSED and self.conversation.knows(call):
            self.stopped(f"{reason}: the turn was stopped; the call has run", "denied")
            self.finish()

    def permission(
        self, request: str, identity: str, name: str, arguments: Mapping[str, Any], own: tuple[str, Mapping[str, Any]]
    ) -> None:
        """The vendor asks whether a call may run; `own` are its own name and arguments of it.

        The call is said if it was not; the question waits in `asked` for the shell. One that nobody may be asked
        carries its refusal: the vendor gets an answer to every question.
        """
        identity = identity[:NAME_CHARACTERS]
        if len(self.asked) > QUESTIONS:
            self.account.repaired("question_left_out", identity)
            return
        arguments = self.sure(arguments)
        refusal = self._unaskable(request, identity, name, arguments)
        said_as = self.open[identity][0] if identity in self.open else identity
        if not refusal:
            self._asking.add(identity)
            self._asking_requests.add(request)
        self.asked.append(Permission(request, said_as, name, arguments, *own, refusal))

    def _unaskable(self, request: str, identity: str, name: str, arguments: Mapping[str, Any]) -> str:
        if self.state is CLOSED or self.state is DONE:
            return TURN_OVER
        if identity in self._asking or request in self._asking_requests:
            return "This call was asked about before."
        if len(self._asking) >= QUESTIONS:
            return "Too many calls were asked about in this turn."
        if self._policy is not None and self._policy.verdict(name, arguments) == "hide":
            return f"{name} is hidden in this session."
        self.tool_use(identity, name, arguments)
        if self.state is CLOSED or identity not in self.open:
            return TURN_OVER
        return ""

    def denied(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that was refused: an entry in the result's `permission_denials` (once per id).

        They share half of a line; a call whose arguments have no room there is named without them.
        """
        identity = identity[:NAME_CHARACTERS]
        if identity in self.denials:
            return
        entry = {"tool_name": name[:NAME_CHARACTERS], "tool_use_id": identity, "tool_input": self.sure(arguments)}
        room = self._room // 2 - self._denial_bytes
        if (size := len(dump(entry))) > room:
            self.account.repaired("denial_cut", name)
            entry["tool_input"] = {}
            size = len(dump(entry))
        if len(self.denials) < DENIALS and size <= room:
            self.denials[identity] = entry
            self._denial_bytes += size + 1

    def child(self, parent: str, usage: Usage | None = None) -> Nested:
        """The nested agent that the call `parent` runs; `usage` is that of its reply, which adds up."""
        if usage is not None:
            self.count(usage)
        call = self.open.get(parent)
        if call is None and not self.conversation.knows(parent):
            self.account.repaired("unknown_parent", parent)
            return self.nested(self, None, usage)
        return self.nested(self, call[0] if call else parent, usage)

    def _structure(self, read: Callable[[str], Structured], outcome: Outcome) -> None:
        """Contract F11, 5.11: the last text as `StructuredOutput`, or an error when it does not fit the schema."""
        if outcome.facts.get("structured_output") is not None:
            return
        self.go(READY)
        text = self.last_text or str(outcome.facts.get("result") or "")
        value, fault = read(text)
        if value is None:
            message = f"the answer does not fit --json-schema: {fault}"
            self.outcome = Outcome("failed", message=message, cause="vendor_error", facts=outcome.facts)
            return
        identity = self.pen.new_uuid()
        self.go(MESSAGE)
        self._calls_in_reply = True
        self.pen.tool_use(identity, STRUCTURED, value)
        self.go(READY)
        self.results += 1
        self.pen.tool_result(identity, STRUCTURED, value, result.STRUCTURED_SAID, False)
        self.outcome = outcome._replace(facts={**outcome.facts, "structured_output": value})

    def _fill(self) -> None:
        interrupted = self.outcome is not None and self.outcome.kind == "interrupted"
        text = result.UNANSWERED_INTERRUPTED if interrupted else result.UNANSWERED
        self.interrupted_call = interrupted and (self.interrupted_call or bool(self.open))
        if self.outcome is not None and self.outcome.cause == "denied":
            text = self.outcome.message
        for call in self.open.values():
            self._answer(call, self._refusals.get(call[0]) or text, True)
        self.open.clear()
        for identity, (parent, _) in list(self.nested_calls.items()):
            self.nested(self, parent).tool_result(identity, text, True)
        for identity in self._early:
            self.account.repaired("orphan_tool_result", identity)
        if interrupted:
            self.pen.user_text(result.INTERRUPTED_IN_TOOL if self.interrupted_call else result.INTERRUPTED)

    def _answer(self, call: Call, content: object, is_error: bool) -> None:
        said_as, name, arguments = call
        if self._said_size:
            self._forget_said()
        self.results += 1
        self.pen.tool_result(said_as, name, arguments, self._fitted(content), is_error)

    def _forbidden(self, identity: str, name: str, arguments: Mapping[str, Any], reason: str = "") -> None:
        """The second line of defence: a call that must not run has begun, so the turn is stopped (surface page)."""
        self.denied(identity, name, arguments)
        reason = reason or f"{name} is not allowed in this session"
        self.stopped(f"{reason}: the turn was stopped; the call may have begun", "denied")
        self.finish()

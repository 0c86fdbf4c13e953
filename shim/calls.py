"""Tool calls of a turn: every call gets one result, every result has a call, whatever order they come in."""

from collections.abc import Mapping
from typing import Any

from shim import ending
from shim.blocks import Blocks
from shim.frame import MESSAGE, READY, TEXT, THINKING
from shim.nested import Nested

SEEN_IDS = 10_000  # tool ids remembered in a conversation; an id that comes again is a new call
EARLY_RESULTS = 64  # results that came before their call


class Calls(Blocks):
    """The verbs for tools."""

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A whole call, in Claude's words. The same id while open is the same call; later it is a new one."""
        if not isinstance(identity, str) or not identity:
            identity = self.pen.new_uuid()
        if identity in self.open or identity in self._hidden:
            return
        if not isinstance(arguments, dict):
            arguments = {"raw": arguments}
        verdict = self.terms.policy.verdict(name, arguments) if self.terms.policy else "allow"
        if verdict == "hide":
            self._hidden.add(identity)
            return
        if not self.go(MESSAGE):
            return
        seen = self.conversation.seen
        said_as = identity
        if identity in seen:
            seen[identity] += 1
            said_as = f"{identity}~{seen[identity]}"
            self._answered.pop(identity, None)
            self.account.repaired("reused_tool_id", identity)
        else:
            if len(seen) >= SEEN_IDS:
                del seen[next(iter(seen))]
            seen[identity] = 1
        self._calls_in_reply = True
        self.pen.tool_use(said_as, name, arguments)
        self.open[identity] = (said_as, name, arguments)
        if verdict == "deny":
            self._forbidden(identity, name, arguments)
        elif identity in self._early:
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

        A result before its call waits for it; a second result is counted and dropped.
        """
        call = self.open.pop(identity, None)
        if call is None and identity in self._hidden:
            self._hidden.discard(identity)
            return
        if call is None and identity in self._answered:
            self.account.repaired("second_tool_result", identity)
            return
        if call is None and name is not None:
            self.tool_use(identity, name, arguments or {})
            call = self.open.pop(identity, None)
            if call is None:
                return
        if call is None:
            if len(self._early) < EARLY_RESULTS:
                self._early[identity] = (content, is_error)
            else:
                self.account.repaired("orphan_tool_result", identity)
            return
        if not self.go(READY):
            return
        self._answer(identity, call, content, is_error)
        limit = self.terms.max_turns
        if limit is not None and self.replies >= limit and not self.open:
            self.failed(f"Reached maximum number of turns ({limit})", kind="limit", subtype="error_max_turns")
            self.finish()

    def fill_results(self, content: str = "") -> None:
        """The vendor never says what its open calls returned: each gets `content`."""
        for identity in list(self.open):
            self.tool_result(identity, content)

    def denied(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call that was refused: an entry in the result's `permission_denials` (once per id)."""
        if all(entry["tool_use_id"] != identity for entry in self.denials) and len(self.denials) < SEEN_IDS:
            self.denials.append({"tool_name": name, "tool_use_id": identity, "tool_input": arguments})

    def child(self, parent: str) -> Nested:
        """The nested agent that the call `parent` runs."""
        call = self.open.get(parent)
        if call is None and parent not in self.conversation.seen:
            self.account.repaired("unknown_parent", parent)
            return Nested(self, None)
        return Nested(self, call[0] if call else parent)

    def _fill(self) -> None:
        interrupted = self.outcome is not None and self.outcome.kind == "interrupted"
        failed = self.outcome is None or self.outcome.kind != "ended"
        text = ending.UNANSWERED_INTERRUPTED if interrupted else ending.UNANSWERED
        self.interrupted_call = interrupted and bool(self.open)
        if self.outcome is not None and self.outcome.cause == "denied":
            text = self.outcome.message
        for identity, call in self.open.items():
            self._answer(identity, call, text, failed)
        self.open.clear()
        for identity, parent in list(self.nested_calls.items()):
            Nested(self, parent).tool_result(identity, text, failed)
        for identity in self._early:
            self.account.repaired("orphan_tool_result", identity)
        if interrupted:
            self.pen.user_text(ending.INTERRUPTED_IN_TOOL if self.interrupted_call else ending.INTERRUPTED)

    def _answer(self, identity: str, call: tuple[str, str, Mapping[str, Any]], content: object, is_error: bool) -> None:
        said_as, name, arguments = call
        if len(self._answered) >= SEEN_IDS:
            del self._answered[next(iter(self._answered))]
        self._answered[identity] = None
        self._said = {TEXT: [], THINKING: []}
        self.results += 1
        self.pen.tool_result(said_as, name, arguments, content, failed=is_error)

    def _forbidden(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """The second line of defence: a call that must not run has begun, so the turn is stopped (surface page)."""
        self.denied(identity, name, arguments)
        self.failed(
            f"{name} is not allowed in this session: the turn was stopped; the call may have begun",
            kind="denied",
            api=False,
        )
        self.finish()

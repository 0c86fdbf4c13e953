"""What compiled rules call, and what they remember in one child, so that no profile has to."""

from typing import TYPE_CHECKING, Any, ClassVar

from shim.core.adapter.tools import Tool, Tools, translate_tool_call
from shim.core.adapter.translator import Event, Translator
from shim.core.api_errors import Cause
from shim.core.claude.usage import NO_USAGE, Usage, parse_count
from shim.core.reading.account import Diagnostics
from shim.core.turn.open_calls import STREAM
from shim.core.turn.turn import Turn
from shim.profiles.run.tally import Tally

if TYPE_CHECKING:
    from shim.profiles.run.nested import NestedEvents
    from shim.profiles.run.parts import Parts

NOTICE_CHARACTERS = 2000
ONCE = 1000  # of what was said once is remembered
ONCE_CHARACTERS = 20_000  # of one such value: of a longer one its beginning, and its length
LIMITS = {
    **dict.fromkeys(("turns", "max_turns"), "error_max_turns"),
    **dict.fromkeys(("budget", "max_budget"), "error_max_budget_usd"),
}


class DoubtfulError(Exception):
    """An event out of a broken line that is not of this session."""


class Engine(Translator):
    """The verbs of rules, as far as they need more than one verb of the Turn."""

    usage_means: ClassVar[str] = "none"
    marks_ids: ClassVar[bool] = False
    counts_replies: ClassVar[bool] = False  # whether a rule says how a reply ended
    # whether calls of tools that the profile does not name are left out
    hides: ClassVar[bool] = False
    late: ClassVar[bool] = False  # what a call returned may come behind the next message, or never
    tools: ClassVar[Tools] = {}
    server_tool: ClassVar[str] = ""  # how the vendor names a tool of an MCP server

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self.mark = f"{turn.writer.create_uuid()[-6:]}_" if self.marks_ids else ""
        self.session: object = None
        self.notice = ""
        self.tally = Tally(self.usage_means, turn.conversation)
        self.held: list[tuple[str, str]] = []
        self.answers = False  # whether it has ever said what a call returned
        self.parts: Parts | None = None
        # of blocks that are streamed and then said whole, without a name
        self.keys = {"text": 0, "thinking": 0}
        self.doubts = False  # an event out of a broken line is being read
        self._once: set[int] = set()
        self._nested: NestedEvents | None = None
        self._server_names: list[str] | None = None

    @property
    def nested(self) -> "NestedEvents":
        """The events of nested agents, which `stream.parent` tells apart."""
        if self._nested is None:
            from shim.profiles.run.nested import NestedEvents

            self._nested = NestedEvents(self)
        return self._nested

    @property
    def account(self) -> Diagnostics:
        """Where repairs are counted."""
        return self.turn.diagnostics

    def forget(self) -> None:
        """Another turn begins: nothing of the last one is remembered."""
        self._once.clear()
        self.held.clear()
        self.parts = self._nested = self._server_names = None
        self.session, self.notice = None, ""
        self.tally.begin()

    def first(self, values: tuple[Any, ...]) -> bool:
        """Whether these values come for the first time in this turn."""
        seen = hash(tuple(map(_short, values)))
        if seen in self._once:
            return False
        if len(self._once) >= ONCE:
            self._once.clear()
        self._once.add(seen)
        return True

    # -- who speaks --------------------------------------------------------------------------------

    def feed_repaired(self, event: Event) -> None:
        """An event out of a broken line: it counts only if it is of this session (threats: forged
        lines).
        """
        self.doubts = True
        try:
            self.feed(event)
        except DoubtfulError:
            self.account.record("doubtful_event")
        finally:
            self.doubts = False

    def doubt(self, session: Any) -> None:
        """An event that may be of anybody names its session. DoubtfulError where that is another
        one.
        """
        if session and self.turn.conversation.vendor_session_id not in (None, session):
            raise DoubtfulError

    def follow(self, session: Any) -> None:
        """The vendor said its session, which was not its session before."""
        if self.doubts:
            self.doubt(session)
        self.session = session
        self.turn.start_session(session_id=session)

    def shown(self, names: Any) -> Any:
        """The names of a list of tools whose calls are said."""
        return (
            [name for name in names if not self.hidden(name)] if names.__class__ is list else names
        )

    # -- blocks ------------------------------------------------------------------------------------

    def snapshot(self, kind: str, whole: Any, key: Any, final: bool) -> None:
        """The text of a block so far; `final`: that is all of it."""
        if whole is None:
            return
        (self.turn.update_text if kind == "text" else self.turn.update_thinking)(whole, key)
        if final:
            self.turn.end_block()
            self.keys[kind] += 1

    def say(self, whole: Any, kind: str) -> None:
        """A whole block. It waits for the next event while calls are open: what they returned may
        come behind it.
        """
        if self.held:
            self.say_held()
        if not self.turn.open_calls:
            self.turn.add_block(whole, kind)
        elif whole.__class__ is str:
            self.held.append((kind, whole))
        else:
            raise TypeError(f"a block of {kind} is no text")

    def say_held(self, *, fill: bool = True) -> None:
        """Say what waited; `fill`: what the open calls returned is not said any more."""
        if fill and self.turn.open_calls:
            self.turn.fill_results()
        for kind, whole in self.held:
            self.turn.add_block(whole, kind)
        self.held.clear()

    def translate(self, name: Any, arguments: Any) -> tuple[str, dict[str, Any]]:
        """Return a call with Claude's names of the tool and its arguments, also for tools of
        configured MCP servers.
        """
        if not self.server_tool or name.__class__ is not str or name in self.tools:
            return translate_tool_call(self.tools, name, arguments)
        from shim.profiles.acp.servers import resolve_server_tool

        if self._server_names is None:
            self._server_names = self.turn.config.session.list_server_names()
        claude_name = resolve_server_tool(
            self.server_tool, self._server_names, name, self.turn.config.evaluator
        )
        tools = {name: Tool(claude_name)} if claude_name else self.tools
        return translate_tool_call(tools, name, arguments)

    # -- calls -------------------------------------------------------------------------------------

    def hidden(self, name: Any) -> bool:
        """Whether calls of a tool are left out of the stream."""
        return self.hides and name.__class__ is str and self.tools.get(name) is None

    @property
    def oldest(self) -> str:
        """The call that is open longest."""
        return next(iter(self.turn.open_calls), "")

    def call(self, own: Any, name: Any, arguments: Any, source: str = STREAM) -> None:
        if self.parts is not None:
            self.parts.whole(own)
        if self._nested is not None and (parent := self._nested.end_pieces(own)) is not None:
            self._nested.call(parent, own, name, arguments)
            return
        if self.held:
            self.calls()
        self.turn.add_tool_call(
            own, *self.translate(name, arguments), hidden=self.hidden(name), source=source
        )

    def calls(self) -> None:
        """A call follows: thinking between two calls leaves the first one open, a text does not."""
        self.say_held(fill=any(kind == "text" for kind, _ in self.held))

    def piece(self, key: Any, own: Any, name: Any, fragment: Any) -> None:
        if self.parts is None:
            from shim.profiles.run.parts import Parts

            self.parts = Parts(self.account)
        self.parts.add(key, own, name, fragment)

    def gathered(self, key: Any = None, *, whole: bool = True) -> None:
        """The calls that came in pieces are whole (the one under `key`, if it is named), or never
        will be.
        """
        if self.parts is None:
            return
        if whole:
            self.parts.say(self.call, key)
        else:
            self.parts.drop()

    def result_with_call(
        self, own: Any, content: Any, failed: bool, name: Any, arguments: Any
    ) -> None:
        """What a call returned that may not have been said before."""
        if self.hidden(name):
            self.call(own, name, arguments)
        else:
            self.turn.add_tool_result(own, content, failed, *self.translate(name, arguments))

    def denied(self, own: Any, name: Any, arguments: Any) -> None:
        claude_name, arguments = self.translate(name, arguments)
        if claude_name.__class__ is not str:
            claude_name = "unknown"
        call = None
        if own and name is not None:
            call = self.turn.find_call(own, claude_name, arguments)
        elif own:
            call = self.turn.find_call(own)
        if call is not None:
            self.turn.add_denial(*call)
            return
        self.turn.add_denial(str(own or claude_name), claude_name, arguments)

    def write_nested(self) -> None:
        """Write the open blocks of all nested agents, because the output has ended."""
        if self._nested is not None:
            self._nested.flush()

    # -- numbers and ends --------------------------------------------------------------------------

    def replied(self, counted: Usage | None, stop_reason: Any, cost: float) -> None:
        """A reply is over; usage and cost as the vendor counts them."""
        self.gathered()
        reason = stop_reason if isinstance(stop_reason, str) else None
        if self.usage_means == "request":
            self.turn.end_message(counted, reason, cost)
            return
        self.tally.note(counted, cost)
        if reason:
            self.turn.end_message(None, reason)

    def result(
        self,
        counted: Usage | None,
        cost: float,
        *,
        is_error: Any = None,
        error: Any = None,
        code: Any = None,
        text: Any = None,
        duration_ms: Any = None,
        stop_reason: Any = None,
        limit: Any = None,
        interrupted: Any = None,
    ) -> None:
        """The vendor says that it is done; the fields are those of a `result` rule."""
        bad = bool(interrupted or is_error)
        self.gathered(whole=not bad)
        self.write_nested()
        if self.late:
            # Calls are open at a good end only where the vendor never says what one returned.
            self.say_held(fill=not bad and not self.answers)
        facts = self.tally.facts(counted, cost)
        facts |= {"duration_ms": parse_count(duration_ms) or None, "result": text}
        if isinstance(stop_reason, str):
            self.turn.end_message(None, stop_reason)
        if interrupted:
            self.turn.record_interrupt(**facts)
        elif is_error and not (error or text) and self.failed:
            self._add(facts)  # the reason was said before
        elif is_error:
            kind: Cause | None = None if limit is None else "limit"
            words, subtype = str(error or text or self.notice or "error"), LIMITS.get(str(limit))
            self.turn.record_failure(
                words, kind=kind, status=_status(code), subtype=subtype, **facts
            )
        else:
            self.turn.record_end(**facts)
        self.turn.finalize()

    def error(self, words: Any, code: Any, kind: Cause | None) -> None:
        """The turn failed, unless a result says more."""
        self.turn.record_failure(str(words or "error"), kind=kind, status=_status(code))

    def noticed(self, words: Any) -> None:
        """What is said again if the turn fails without a reason."""
        self.notice = str(words or "")[:NOTICE_CHARACTERS]

    def retry(self, attempt: Any, most: Any, delay: Any, words: Any) -> None:
        """The model is asked again."""
        numbers = [parse_count(number) for number in (attempt, most, delay)]
        self.noticed(words)
        self.turn.write_retry(
            numbers[0] or 1, numbers[1] or numbers[0] or 1, numbers[2], self.notice
        )

    def compacted(self, trigger: Any, tokens: Any) -> None:
        self.turn.write_compaction("manual" if trigger == "manual" else "auto", parse_count(tokens))

    def _add(self, facts: dict[str, Any]) -> None:
        """More is known of an end that was said before."""
        outcome = self.turn.outcome
        if outcome is not None:
            self.turn.outcome = outcome._replace(fields={**outcome.fields, **facts})

    def spend(self) -> None:
        """A total that no end has named is this turn's all the same, however it ended."""
        if self.tally.unsaid:
            facts = self.tally.facts(None, 0.0)
            self.turn.add_usage(facts["usage"] or NO_USAGE, facts.get("cost", 0.0))

    @property
    def failed(self) -> bool:
        return self.turn.outcome is not None and self.turn.outcome.kind == "failed"


def _short(value: Any) -> Any:
    if value.__class__ is str:
        return value[:ONCE_CHARACTERS], len(value)
    return (
        value if value is None or isinstance(value, (int, float)) else str(value)[:ONCE_CHARACTERS]
    )


def _status(code: Any) -> int | None:
    return code if code.__class__ is int else None

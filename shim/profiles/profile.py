"""The translators that apply a profile's rules to the child's output.

`ProfileTranslator` is a public class. The class that a profile names as its `adapter` is a subclass
of it.
"""

import re
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, ClassVar

from shim.core.adapter.translator import Event, Translator
from shim.core.api_errors import classify_api_error
from shim.core.reading.values import strip_ansi_colors
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.profiles.check.config_node import MAX_SEARCHED_CHARS, ConfigNode
from shim.profiles.compile.rules import ProfileEventRules
from shim.profiles.compile.stream import ParsedStreamRules, StderrPatternRule
from shim.profiles.run.engine import ProfileRuleEngine

MAX_STDERR_LINES = 1000  # only the last lines are read; the stored stderr tail is shorter
MAX_REASON_CHARS = 2000  # the length of an error text from stderr

# The fields of `ParsedStreamRules` that become attributes of the translator class.
STREAM_FIELDS = (
    *(
        "rules",
        "reports",
        "untyped",
        "ok_exits",
        "synthesizes",
        "causes",
        "ignored_stderr_prefixes",
        "usage_means",
        "counts_replies",
    ),
)

Handler = Callable[[Event], None]


class ProfileTranslator(ProfileRuleEngine):
    """Translates a child's output by the rules of one profile. A profile's adapter class is a
    subclass that overrides `on_event` or `on_exit`.
    """

    rules: ClassVar[ProfileEventRules]
    reports: ClassVar[ProfileEventRules | None] = None
    ok_exits: ClassVar[frozenset[int]] = frozenset((0,))
    synthesizes: ClassVar[bool] = False
    causes: ClassVar[Mapping[int, Any]] = {}  # exit code → Cause
    stderr_rules: ClassVar[tuple[StderrPatternRule, ...]] = ()
    # Has one function, which loads the translator class for JSON-RPC messages. The list is empty for
    # a program without such a protocol.
    protocol: ClassVar[list[Callable[[], type[Translator]]]] = []

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self.handlers = dict.fromkeys(self.rules.types, self._compile_handler)
        self.default_handler: Handler = self._compile_default_handler

    def _compile_handler(self, event: Event) -> None:
        """Compile the rules for an event type at the first event of that type, and apply the rules."""
        kind = event["type"]
        self.handlers[kind] = handler = MethodType(self.rules.find_event_handler(kind), self)
        handler(event)

    def _compile_default_handler(self, event: Event) -> None:
        """Compile the rules for any event type at the first event that needs them, and apply the
        rules.
        """
        self.default_handler = MethodType(self.rules.find_event_handler(None), self)
        self.default_handler(event)

    def choose_translator_for_unknown_event(self, event: Event) -> Translator:
        """Handle an event whose type no rule names, and return the translator for the following
        events.

        A JSON-RPC message means that this is a recording of the program's JSON-RPC protocol. In
        this case, return the protocol's translator. To any other event, apply the rules for any
        event type.
        """
        if self.protocol and event.get("jsonrpc") == "2.0":
            return self.protocol[0]()(self.turn, partial=self.partial)
        self.default_handler(event)
        return self

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self.reset_for_next_turn()

    def on_event(self, event: Event) -> bool:
        """Return whether this method has handled the event. If not, the profile's rules apply to
        the event. Adapter classes override this method.
        """
        return False

    def on_exit(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Handle the child's exit, before the profile's rules determine the outcome. `self.report`
        has the content of the child's report file. Adapter classes override this method.
        """

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Determine the outcome from stderr and the exit code, if no event has reported it."""
        if self.reports is not None and self.report is not None:
            self.reports.find_event_handler(None)(self, self.report)
        self.on_exit(child_exit, stderr)
        if self.buffered_blocks:
            self.write_buffered_blocks(fill_results=False)
        stderr_lines = stderr.splitlines()[-MAX_STDERR_LINES:]
        for line in stderr_lines:
            self._apply_stderr_rule(line[:MAX_SEARCHED_CHARS])
        has_partial_calls = bool(self.partial_calls)
        self.finish_partial_calls(is_complete=False)
        self.write_open_subagent_blocks()
        self.add_unreported_usage_to_turn()
        if child_exit is None or not self._needs_outcome(child_exit, stderr):
            return
        code = child_exit.code or 0
        if self._is_successful_exit(code) and not has_partial_calls:
            self.turn.record_turn_end()
        else:
            self._record_failed_exit(code, stderr_lines)

    def _needs_outcome(self, child_exit: ChildExit, stderr: str) -> bool:
        """Return whether the exit code must explain how the turn ended."""
        turn = self.turn
        if turn.outcome_tracker.outcome is not None or child_exit.signal is not None:
            return False
        trust_prompt = turn.config.vendor.trust_prompt
        # The trust prompt hint explains more than the exit code.
        return not trust_prompt or trust_prompt not in stderr

    def _is_successful_exit(self, code: int) -> bool:
        """Return whether an exit code means that the turn has ended, although no event has reported
        its end.
        """
        if not self.synthesizes or code not in self.ok_exits:
            return False
        return self._is_answer_complete()

    def _record_failed_exit(self, code: int, stderr_lines: list[str]) -> None:
        """Record why a turn ended without a complete answer.

        The reason is on stderr or in the last notice. The turn itself reads stderr for an exit code
        without a meaning and for an API error, so in these cases only a notice is recorded.
        """
        turn = self.turn
        error_text = self._join_error_lines(stderr_lines)
        reason = strip_ansi_colors(error_text or self.last_notice)[:MAX_REASON_CHARS]
        cause = self.causes.get(code)
        if cause is None or classify_api_error(reason).is_recognized_api_failure:
            if not error_text and self.last_notice:
                turn.record_failure(reason)
        elif cause == "interrupted":
            turn.record_interrupt()
        else:
            text = reason or f"{turn.config.vendor.name} exited with code {code}"
            turn.record_failure(text, api=False, kind=cause)

    def _join_error_lines(self, stderr_lines: list[str]) -> str:
        """Return the lines of stderr without those that the profile ignores."""
        error_lines = [
            line for line in stderr_lines if not line.startswith(self.ignored_stderr_prefixes)
        ]
        return "\n".join(error_lines).strip()

    def _apply_stderr_rule(self, line: str) -> None:
        """Apply the first rule that matches a stderr line."""
        for rule in self.stderr_rules:
            match = re.search(rule.regex, line)
            if match is None:
                continue
            if rule.emit == "session":
                self.turn.record_vendor_session_info(session_id=match["session_id"])
            elif self.turn.outcome_tracker.outcome is None and not line.startswith(
                self.ignored_stderr_prefixes
            ):
                error_text = match.groupdict().get("error") or match[0]
                self.turn.record_failure(strip_ansi_colors(error_text), kind=rule.cause)
            return

    def _is_answer_complete(self) -> bool:
        """Return whether the last message has ended without calling tools."""
        turn = self.turn
        if self.counts_replies:
            if turn.machine.state != "ready":
                return False
            if turn.assistant_message.has_ended_with_tool_calls:
                return False
            if turn.assistant_message.number > 0:
                return True
            return turn.assistant_message.stop_reason is not None
        if turn.assistant_message.number <= 0:
            return False
        if turn.open_calls:
            return False
        return not turn.assistant_message.has_ended_with_tool_calls


class UntypedEventTranslator(ProfileTranslator):
    """Translates events by the rules of a profile that has rules for any event type."""

    _protocol_translator: Translator | None = None  # None until the first JSON-RPC message

    def feed(self, event: Event) -> None:
        """Apply the rules for the event's type, or the rules for any type. A JSON-RPC message is
        passed to the protocol's translator.
        """
        if self.protocol and "jsonrpc" in event:
            if self._protocol_translator is None:
                self._protocol_translator = self.protocol[0]()(self.turn, partial=self.partial)
            self._protocol_translator.feed(event)
            self.turn = self._protocol_translator.turn
            return
        kind = event.get("type")
        (
            self.handlers.get(kind, self.default_handler)
            if kind.__class__ is str
            else self.default_handler
        )(event)

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """Determine the outcome from the child's exit. If the child used the JSON-RPC protocol, the
        protocol's translator determines the outcome.
        """
        if self._protocol_translator is None:
            super().feed_eof(child_exit, stderr)
        else:
            self._protocol_translator.feed_eof(child_exit, stderr)


class AdapterThenRulesTranslator(ProfileTranslator):
    """Passes each event to the profile's adapter class first, and then to the rules."""

    def feed(self, event: Event) -> None:
        """Call `on_event`. If it does not handle the event, apply the rules for the event's type,
        or the rules for any type.
        """
        if self.on_event(event):
            return
        kind = event.get("type")
        (
            self.handlers.get(kind, self.default_handler)
            if kind.__class__ is str
            else self.default_handler
        )(event)


def build_translator_class(
    node: ConfigNode,
    stream: ParsedStreamRules,
    adapter_class: type[Translator] | None,
    load_protocol_class: Callable[[], type[Translator]] | None = None,
) -> type[ProfileTranslator]:
    """Return a class that translates by a profile's rules. Raise FrontendError if `adapter_class`
    is not a subclass of ProfileTranslator.

    `load_protocol_class` returns the translator class for recordings in which the program uses
    JSON-RPC.
    """
    base_class: type[ProfileTranslator] = AdapterThenRulesTranslator
    if adapter_class is None:
        base_class = UntypedEventTranslator
        if all(rule.types for rule in stream.rules):
            base_class = ProfileTranslator
        bases: tuple[type, ...] = (base_class,)
    elif issubclass(adapter_class, ProfileTranslator):
        bases = (adapter_class, base_class)
    else:
        raise node.get_child("adapter").build_error(
            "a subclass of shim.profiles.profile.ProfileTranslator"
        )
    protocol = []
    if load_protocol_class is not None:
        protocol = [load_protocol_class]
    fields = {name: getattr(stream, name) for name in STREAM_FIELDS} | {
        "__doc__": f"The rules of {node.source.path}.",
        "tools": stream.options.tools,
        "server_tool": stream.options.server_tool_format,
        "hides": stream.options.hides_unknown_tools,
        "late": stream.options.has_late_results,
        "marks_ids": stream.options.has_process_ids,
        "stderr_rules": stream.stderr,
        "protocol": protocol,
    }
    translator_class: type[ProfileTranslator] = type(bases[0].__name__, bases, fields)
    return translator_class

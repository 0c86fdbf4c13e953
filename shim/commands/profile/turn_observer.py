"""Reports each Turn method that a translator calls, for `shim vendor check`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from shim.core.adapter.translator import Translator
from shim.core.turn.turn import Turn

# Turn method → name in the report. Translators do not call other methods of a Turn.
VERB_BY_METHOD: Mapping[str, str] = {
    "record_vendor_session_info": "started",
    "start_message": "message",
    "add_text": "text",
    "add_thinking": "thinking",
    "add_block": "say",
    "add_thinking_block": "think",
    "update_text": "text_snapshot",
    "update_thinking": "thinking_snapshot",
    "end_block": "block_end",
    "add_tool_call": "tool_use",
    "add_tool_result": "tool_result",
    "fill_open_call_results": "fill_results",
    "add_denial": "denied",
    "end_message": "message_end",
    "retract_message": "retract",
    "write_retry": "retry",
    "write_compaction": "compacted",
    "write_system_event": "system",
    "add_user_text": "user_text",
    "record_unknown_event": "unknown",
    "record_turn_end": "ended",
    "record_failure": "failed",
    "record_interrupt": "interrupted",
    "record_vendor_completion": "settle",
    "finish": "finish",
    "add_usage": "spent",
    "stop": "stopped",
    "request_permission": "permission",
    "update_message": "message_facts",
    "close": "closed",
}
# Parameter → name in the report. Other parameter names are not changed.
ARGUMENT_NAMES = {"tool_input": "arguments", "announced_call": "announced"}
# Arguments that only name the event kind. They are left out of the report.
HIDDEN_ARGUMENTS = ("source",)
SUBAGENT_METHOD = "get_subagent"  # returns a subagent whose method calls are reported too


class TurnMethodCall(NamedTuple):
    """A method call on a Turn, with its arguments. `parent_id` is the tool call that runs the
    subagent, or "" for the main agent.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parent_id: str = ""


TurnMethodCallback = Callable[[TurnMethodCall, Any], None]


class TurnObserver:
    """Wraps a Turn or a subagent. Each method call is first reported to `on_verb`, then made."""

    __slots__ = ("_on_verb", "_parent_id", "_turn")

    def __init__(self, turn: Any, on_verb: TurnMethodCallback, parent_id: str = "") -> None:
        object.__setattr__(self, "_turn", turn)
        object.__setattr__(self, "_on_verb", on_verb)
        object.__setattr__(self, "_parent_id", parent_id)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._turn, name)
        if name == "create_next":
            return lambda *args, **kwargs: TurnObserver(value(*args, **kwargs), self._on_verb)
        if name == SUBAGENT_METHOD:
            return lambda parent, *args, **kwargs: TurnObserver(
                value(parent, *args, **kwargs), self._on_verb, str(parent)
            )
        verb_name = VERB_BY_METHOD.get(name)
        if verb_name is None:
            return value

        def record_and_call(*args: Any, **kwargs: Any) -> Any:
            visible_kwargs = {
                ARGUMENT_NAMES.get(key, key): value
                for key, value in kwargs.items()
                if key not in HIDDEN_ARGUMENTS
            }
            self._on_verb(
                TurnMethodCall(verb_name, args, visible_kwargs, self._parent_id), self._turn
            )
            return value(*args, **kwargs)

        return record_and_call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._turn, name, value)


def create_observed_translator_class(
    translator: type[Translator], on_turn_method_call: TurnMethodCallback
) -> type[Translator]:
    """Return a subclass of a vendor's translator that reports method calls on its Turn to
    `on_verb`.
    """

    def wrap_turn(turn: Turn) -> Turn:
        if isinstance(turn, TurnObserver):
            return turn
        return cast(Turn, TurnObserver(turn, on_turn_method_call))

    class ObservedTranslator(translator):  # type: ignore[misc, valid-type]  # of any vendor
        def __init__(self, turn: Turn, *, partial: bool = False) -> None:
            super().__init__(wrap_turn(turn), partial=partial)

        def start_turn(self, turn: Turn) -> None:
            super().start_turn(wrap_turn(turn))

    return ObservedTranslator

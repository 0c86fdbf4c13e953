"""A Turn whose verbs are noted as a translator says them: what `shim vendor check` sees of any
vendor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from shim.core.adapter.translator import Translator
from shim.core.turn.turn import Turn

# What a translator tells a Turn (house page, "the Turn"); everything else of it is read, or is the
# shell's.
RECORDED_METHODS = frozenset(
    (
        *(
            "started",
            "message",
            "text",
            "thinking",
            "say",
            "think",
            "text_snapshot",
            "thinking_snapshot",
            "block_end",
        ),
        *(
            "tool_use",
            "tool_part",
            "tool_parts_end",
            "tool_result",
            "fill_results",
            "denied",
            "message_end",
            "retract",
        ),
        *(
            "retry",
            "compacted",
            "system",
            "user_text",
            "unknown",
            "ended",
            "failed",
            "interrupted",
            "settle",
            "finish",
        ),
        *("spent", "stopped", "permission", "message_facts", "closed"),
    )
)
HIDDEN_ARGUMENTS = (
    "source",
)  # arguments that name the kind of event; they are not shown to a person
CHILD_METHOD = "child"  # gives a nested agent, with verbs of its own


class Verb(NamedTuple):
    """One verb with what it was told; `within` is the call that a nested agent runs under, "" for
    the turn itself.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parent_id: str = ""


VerbCallback = Callable[[Verb, Any], None]


class TurnObserver:
    """Stands before a Turn (or a nested agent): each verb is told to `note`, with the Turn, before
    it is said.
    """

    __slots__ = ("_note", "_turn", "_within")

    def __init__(self, turn: Any, on_verb: VerbCallback, parent_id: str = "") -> None:
        object.__setattr__(self, "_turn", turn)
        object.__setattr__(self, "_note", on_verb)
        object.__setattr__(self, "_within", parent_id)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._turn, name)
        if name == "next":
            return lambda *args, **kwargs: TurnObserver(value(*args, **kwargs), self._note)
        if name == CHILD_METHOD:
            return lambda parent, *args, **kwargs: TurnObserver(
                value(parent, *args, **kwargs), self._note, str(parent)
            )
        if name not in RECORDED_METHODS:
            return value

        def record_and_call(*args: Any, **kwargs: Any) -> Any:
            visible_kwargs = {
                key: value for key, value in kwargs.items() if key not in HIDDEN_ARGUMENTS
            }
            self._note(Verb(name, args, visible_kwargs, self._within), self._turn)
            return value(*args, **kwargs)

        return record_and_call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._turn, name, value)


def observe_translator(translator: type[Translator], on_verb: VerbCallback) -> type[Translator]:
    """The class of a vendor's translator, with a Turn that tells `note`."""

    def wrap_turn(turn: Turn) -> Turn:
        return turn if isinstance(turn, TurnObserver) else cast(Turn, TurnObserver(turn, on_verb))

    class ObservedTranslator(translator):  # type: ignore[misc, valid-type]  # of any vendor
        def __init__(self, turn: Turn, *, partial: bool = False) -> None:
            super().__init__(wrap_turn(turn), partial=partial)

        def begin(self, turn: Turn) -> None:
            super().begin(wrap_turn(turn))

    return ObservedTranslator

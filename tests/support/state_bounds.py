"""The limits of stored state that hold for any input."""

import orjson

from shim.core.adapter.child_stream import ChildStream
from shim.core.reading.diagnostics import MAX_KINDS, OVERFLOW_KIND, Diagnostics
from shim.core.reading.values import MAX_SAMPLE_CHARS
from shim.core.turn.assistant_message import MAX_MESSAGE_CHARS
from shim.core.turn.context import MAX_USED_IDS


def check_diagnostics(diagnostics: Diagnostics) -> None:
    """Assert that diagnostics are bounded and printable for any counted output."""
    for counts in (diagnostics.repairs, diagnostics.unknown_events):
        assert len(counts) <= MAX_KINDS + (OVERFLOW_KIND in counts), (
            "the account has so many kinds and no more"
        )
        assert all(len(kind) <= MAX_SAMPLE_CHARS for kind in counts), "a kind is a name, not a text"
        assert all(count > 0 for count in counts.values())
    assert len(diagnostics.samples) <= 2 * (MAX_KINDS + 1)
    assert all(len(sample) <= MAX_SAMPLE_CHARS for sample in diagnostics.samples.values()), (
        "samples are short"
    )
    # orjson is strict: it rejects lone surrogates and values that JSON does not have
    orjson.dumps(diagnostics.build_report())


# The maximum size of a table of a Turn, a conversation or a translator. `MAX_USED_IDS` is the largest
# limit.
ENTRIES_REMEMBERED = MAX_USED_IDS

TEXT_REMEMBERED = MAX_MESSAGE_CHARS

# The caller takes the content of these fields after every chunk.
_TAKEN = frozenset({"pending_permissions", "hook_events", "outbox"})

_TABLES = frozenset({dict, list, set, tuple})


def check_memory(translation: ChildStream) -> None:
    """Assert that the stored state of a child is bounded for any number of lines."""
    turn = translation.turn
    for part in (
        turn,
        turn.conversation,
        translation.diagnostics,
        translation._dispatcher.translator,
        translation._dispatcher._repairer,
    ):
        fields = {name: getattr(part, name) for name in getattr(type(part), "__slots__", ())}
        for name, value in (fields or vars(part)).items():
            if value.__class__ not in _TABLES or name in _TAKEN or not value:
                continue
            where = f"{type(part).__name__}.{name}"
            if name == "_parts":  # the open block, bounded like a text
                assert sum(map(len, value)) <= TEXT_REMEMBERED, f"{where} is too long"
            else:
                assert len(value) <= ENTRIES_REMEMBERED, f"{where} has {len(value)} entries"

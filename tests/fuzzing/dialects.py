"""The dialects that are fuzzed, one row each. New dialects are added here."""

import importlib.util
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from stream_invariants import check_turns

from fuzzing.inputs import FuzzRun
from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, STABLE_SESSION_ID
from shim.core.adapter.adapter import Adapter
from shim.core.claude.control import ControlSession
from shim.core.claude.session_state import SessionState
from shim.core.claude.writer import TERMINATORS


class Dialect(NamedTuple):
    """How to write and check one dialect.

    `module` contains its encoder. `open` creates an encoder (module, partial, limit). `check`
    checks its streams (output, partial, limit). `listen` creates the object that reads the frontend
    (session state, id source, clock).
    """

    module: str
    open: Callable[[Any, bool, int], Any]
    check: Callable[[bytes, bool, int], object]
    listen: Callable[[SessionState, Callable[[], str], Callable[[], str]], ControlSession]


def _create_claude_writer(module: Any, partial: bool, limit: int) -> Any:
    return module.StreamJsonWriter(
        STABLE_ID_PREFIX,
        writes_partial_messages=partial,
        terminator=TERMINATORS["message_stop"],
        max_line_bytes=limit,
    )


def _check_claude(output: bytes, partial: bool, limit: int) -> object:
    return check_turns(output, partial, limit=limit)


def _create_yume_encoder(module: Any, partial: bool, limit: int) -> Any:
    return module.YumeEncoder(STABLE_ID_PREFIX, max_line_bytes=limit)


def _check_yume(output: bytes, partial: bool, limit: int) -> object:
    assert all(len(line) <= limit for line in output.split(b"\n")), (
        f"no line is longer than {limit}"
    )
    return import_module("yume_stream").check_flat(output)


def _create_yume_control(
    session_state: SessionState, create_id: Callable[[], str], now: Callable[[], str]
) -> ControlSession:
    encoder = _create_yume_encoder(
        import_module("shim.core.yume.encoder"), True, session_state.options.max_line_bytes
    )
    encoder.write_init_message(STABLE_SESSION_ID, {})
    listening: ControlSession = import_module("shim.core.yume.control").YumeControlSession(
        session_state, create_id, now, encoder, never_asks=False
    )
    return listening


# One row per dialect. A dialect whose module is missing is left out.
DIALECTS = {
    "claude": Dialect(
        "shim.core.claude.writer", _create_claude_writer, _check_claude, ControlSession
    ),
    "yume": Dialect(
        "shim.core.yume.encoder", _create_yume_encoder, _check_yume, _create_yume_control
    ),
}
PRESENT = tuple(name for name, entry in DIALECTS.items() if importlib.util.find_spec(entry.module))


def select_dialect(run: FuzzRun) -> str:
    """Return the dialect in which a run is written."""
    return PRESENT[run.resolve_knob("dialect", len(PRESENT))]


def select_adapter(run: FuzzRun) -> Adapter:
    """Return the adapter of a run for its dialect. Only Claude's own dialect passes through a real
    claude's lines.
    """
    return (
        get_adapter(run.target)
        if select_dialect(run) == "claude"
        else get_adapter(run.target, without_passthrough=True).copy_with(passthrough=False)
    )

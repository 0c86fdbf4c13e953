"""The targets of an input, and the invariants of every input.

A vendor's run goes through the decoder, the vendor's translator, the Turn and a dialect's encoder.
The invariants of `support` are asserted on every stream, fed at once and in chunks. The other
targets take what other programs write.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from random import Random
from typing import Any

from policy_builder import build_evaluator
from state_bounds import check_diagnostics, check_memory
from stream_invariants import check_frames
from turn_stage import build_turn_config

from fuzzing.dialects import DIALECTS, select_adapter, select_dialect
from fuzzing.frontend_targets import run_command_line, run_control, run_settings
from fuzzing.inputs import KNOBS, FuzzRun
from shim.adapters import VENDORS
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import AskPermissionCommand, StreamCommands
from shim.core.claude.permissions import PermissionRequest
from shim.core.turn.context import JsonSchemaAnswer
from shim.core.turn.outcome import ChildExit

# -- the choices of the settings -------------------------------------------------------------------

EXITS = (
    ChildExit(code=0),
    ChildExit(code=0),
    None,
    ChildExit(code=1),
    ChildExit(code=130),
    ChildExit(signal="SIGTERM"),
    ChildExit(code=53),
)
STDERRS = (
    "",
    *("", "Error: 429 rate limit", "boom\x1b[31m\u2028\x00", "Workspace Trust") * 3,
    "x" * 9000,
)
LIMITS = (100_000, 10_000, 10_000, 1_000_000, 12_345)


def _read_answer(text: str) -> JsonSchemaAnswer:
    return (
        JsonSchemaAnswer({"answer": text[:100]})
        if len(text) % 2
        else JsonSchemaAnswer(None, "it is no JSON")
    )


_TURN_OPTIONS: Sequence[dict[str, Any]] = (
    {},
    {},
    {"evaluator": build_evaluator(deny=["Bash(rm:*)", "Write"], hidden=["Read"])},
    {"evaluator": build_evaluator(only=["Bash", "Edit"])},
    {"max_turns": 2, "requested_max_turns": 2},
    {"max_budget_usd": 0.0001},
    {"read_answer": _read_answer},
    {"store_text": lambda text: "/state/spill/1.txt"},
    {"requested_id": "11111111-2222-4333-8444-555555555555", "model": "asked-for"},
)

# -- the allowed work per input --------------------------------------------------------------------

IN_PIECES = 5  # one run of this many is also fed in chunks
# Generous: the limits find what grows faster than its input, on a busy machine and with
# instrumentation.
SECONDS, SECONDS_A_LINE, SECONDS_A_BYTE = 2.0, 4e-3, 6e-6
# The most lines that one event can become: the ends of open blocks, and the lines of a message, a
# block and a call.
LINES_A_VALUE = 12
BYTES, BYTES_A_LINE, TIMES_LONGER = 300_000, 4_000, 80


def _select_options(run: FuzzRun, read: Adapter) -> dict[str, Any]:
    """Return the options of the turn. A real claude counts usage and answers by itself."""
    options = _TURN_OPTIONS[run.resolve_knob("terms", len(_TURN_OPTIONS))]
    return (
        {} if read.passthrough and not options.keys() <= {"evaluator", "requested_id"} else options
    )


def open_child(run: FuzzRun, previous: ChildStream | None = None) -> ChildStream:
    """Create the translation of a run."""
    read = select_adapter(run)
    config = build_turn_config(
        read.name,
        **{
            "tools": read.listed_tools,
            "can_retract": read.abilities.can_repeat_reply,
            "login_command": read.login_hint,
            "trust_prompt": read.environment.trust_prompt_text,
            "clean_exit_codes": read.shutdown.clean_exit_codes,
            **_select_options(run, read),
        },
    )
    if previous is not None:
        return ChildStream(read.translator_class, config, previous.writer, previous)
    entry = DIALECTS[select_dialect(run)]
    limit = LIMITS[run.resolve_knob("limit", len(LIMITS))]
    writer = entry.open(import_module(entry.module), bool(run.resolve_knob("partial", 2)), limit)
    return ChildStream(read.translator_class, config, writer)


def run_child(run: FuzzRun) -> int:
    """Assert the invariants on the output for a vendor's lines. Return how many lines were fed."""
    body = run.encode_body()
    count = body.count(b"\n") + 1
    started_at = time.monotonic()
    output, diagnostics = _feed_child(run, body, None)
    if time.monotonic() - started_at > SECONDS:
        _check_time(run, body, count)
    _check_work(body, count, output)
    if run.resolve_knob("cut", IN_PIECES) == 0:
        second_output, second_diagnostics = _feed_child(
            run, body, Random(run.knobs[KNOBS.index("cut")])
        )
        assert second_output == output, (
            f"in pieces it is said otherwise: {_describe_difference(output, second_output)}"
        )
        assert second_diagnostics == diagnostics, (
            f"in pieces it is counted otherwise: {diagnostics!r} is not {second_diagnostics!r}"
        )
    return count


def _feed_child(run: FuzzRun, body: bytes, pieces: Random | None) -> tuple[bytes, list[object]]:
    """Return the output for a body and the diagnostics, fed at once or in random chunks."""
    plan = run.resolve_knob("turns", 8)
    parts = _split_parts(body, 3 if plan >= 4 else 1)
    translation = open_child(run)
    outputs, accounts = [], []
    permissions: list[PermissionRequest] = []
    for number, part in enumerate(parts):
        for chunk in [part] if pieces is None else _split_chunks(part, pieces):
            turn = translation.turn
            lines, commands = translation.feed(chunk)
            outputs.append(lines)
            if translation.turn is not turn:
                permissions.clear()
            permissions += _list_permission_requests(commands)
            _check_questions(permissions)
        if number + 1 == len(parts):
            break
        if plan == 4:
            outputs.append(translation.close(ChildExit(code=0))[0])
            accounts.append(_check_diagnostics(translation))
            translation = open_child(run, previous=translation)
        elif plan == 5 and not select_adapter(run).passthrough:
            outputs.append(translation.finish()[0])
            accounts.append(_check_diagnostics(translation))
            translation.start_turn(translation.turn.config)
        elif plan >= 6:
            translation.turn.record_interrupt()
    stderr = STDERRS[run.resolve_knob("stderr", len(STDERRS))]
    outputs.append(translation.close(EXITS[run.resolve_knob("exit", len(EXITS))], stderr)[0])
    accounts.append(_check_diagnostics(translation))
    output = b"".join(outputs)
    if pieces is None:
        _check_stream(run, output)
    return output, accounts


def _list_permission_requests(commands: StreamCommands) -> list[PermissionRequest]:
    return [each.permission for each in commands if isinstance(each, AskPermissionCommand)]


def _check_diagnostics(translation: ChildStream) -> object:
    check_diagnostics(translation.diagnostics)
    assert translation.turn.end_cause != "internal", (
        f"a mistake of ours: {translation.turn.final_text}"
    )
    assert "malformed_end" not in translation.diagnostics.repairs, translation.diagnostics.samples[
        "malformed_end"
    ]
    check_memory(translation)
    return translation.diagnostics.build_report()


def _check_stream(run: FuzzRun, output: bytes) -> None:
    limit = LIMITS[run.resolve_knob("limit", len(LIMITS))]
    partial = bool(run.resolve_knob("partial", 2))
    if select_adapter(run).passthrough:
        check_frames(output)  # a real claude's lines pass through, broken ones too
    else:
        DIALECTS[select_dialect(run)].check(output, partial, limit)


def _check_questions(requests: Sequence[PermissionRequest]) -> None:
    """Check that a call is asked about once, and that a refused question has a reason."""
    open_questions = [request for request in requests if not request.refusal]
    for name in ("request_id", "call_id"):
        ids = [getattr(request, name) for request in open_questions]
        assert len(set(ids)) == len(ids), f"two open questions with one {name}"


def _check_work(body: bytes, count: int, output: bytes) -> None:
    """Check that the output is in proportion to the input, in lines and in bytes."""
    lines = output.count(b"\n")
    allowed = 100 + LINES_A_VALUE * (count + body.count(b"{"))
    assert lines <= allowed + len(body) // 1000, (
        f"{count} lines of {len(body)} bytes became {lines} lines"
    )
    max_bytes = BYTES + BYTES_A_LINE * lines + TIMES_LONGER * len(body)
    assert len(output) <= max_bytes, f"{len(body)} bytes became {len(output)}"


def _check_time(run: FuzzRun, body: bytes, count: int) -> None:
    """Run a slow run again with CPU time: the machine may have been busy."""
    started_at = time.process_time()
    _feed_child(run, body, None)
    took = time.process_time() - started_at
    allowed = SECONDS + SECONDS_A_LINE * count + SECONDS_A_BYTE * len(body)
    assert took <= allowed, (
        f"{count} lines of {len(body)} bytes took {took:.1f} s; {allowed:.1f} are generous"
    )


def _split_parts(body: bytes, most: int) -> list[bytes]:
    """Split a body into at most `most` parts of full lines."""
    parts, start = [], 0
    for number in range(1, most):
        end = body.find(b"\n", len(body) * number // most)
        if end >= start:
            parts.append(body[start : end + 1])
            start = end + 1
    return [*parts, body[start:]]


def _split_chunks(body: bytes, chance: Random) -> Iterator[bytes]:
    """Split a body into chunks. A short body has single bytes too."""
    start = 0
    sizes = (1, 2, 3, 7, 64) if len(body) < 4000 else (1, 9, 300, 4096, 65_536)
    while start < len(body):
        size = chance.choice(sizes)
        yield body[start : start + size]
        start += size


def _describe_difference(first: bytes, other: bytes) -> str:
    for first_line, right in itertools.zip_longest(
        first.split(b"\n"), other.split(b"\n"), fillvalue=b"(nothing)"
    ):
        if first_line != right:
            return f"{first_line[:400]!r} is not {right[:400]!r}"
    return "nothing"


TARGETS: dict[str, Callable[[FuzzRun], int]] = {
    **dict.fromkeys(VENDORS, run_child),
    "control": run_control,
    "words": run_command_line,
    "settings": run_settings,
}
CHILDREN = tuple(VENDORS)

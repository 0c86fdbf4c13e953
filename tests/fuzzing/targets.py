"""What an input is run through, and what must hold whatever is in it.

A run of a vendor: its lines through the decoder, the vendor's translator, the Turn and a dialect's pen, with the
invariants of `support` asserted on every stream, fed whole and in pieces. Beside them the other things that outsiders
write: the frontend's lines, the command line, the settings file.
"""

import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from random import Random
from typing import Any, NamedTuple

import orjson
from support import SEPARATORS, check_account, check_frames, check_memory, check_turns

from fuzzing.inputs import KNOBS, Run
from shim import argv, config
from shim.account import printable
from shim.answers import Facts
from shim.control import Control
from shim.ending import Exit
from shim.errors import FrontendError
from shim.events import TERMINATORS
from shim.permissions import Permission
from shim.policy import Policy
from shim.terms import Structured, Terms
from shim.translate import STABLE_IDENTITY, STABLE_SESSION
from shim.translation import Translation
from shim.vendor import Vendor
from shim.vendors import VENDORS, find

# -- dialects ---------------------------------------------------------------------------------------------------------


class Dialect(NamedTuple):
    """Where its pen is, how one is opened (module, partial, limit), what checks its streams (said, partial, limit).

    `listen` opens what hears its frontend (facts, mint, now).
    """

    module: str
    open: Callable[[Any, bool, int], Any]
    check: Callable[[bytes, bool, int], object]
    listen: Callable[[Facts, Callable[[], str], Callable[[], str]], Control]


def _claude_pen(module: Any, partial: bool, limit: int) -> Any:
    return module.ClaudePen(STABLE_IDENTITY, partial=partial, terminator=TERMINATORS["message_stop"], limit=limit)


def _check_claude(said: bytes, partial: bool, limit: int) -> object:
    return check_turns(said, partial, limit=limit)


def _yume_pen(module: Any, partial: bool, limit: int) -> Any:
    return module.YumePen(STABLE_IDENTITY, limit=limit)


def _check_yume(said: bytes, partial: bool, limit: int) -> object:
    assert all(len(line) <= limit for line in said.split(b"\n")), f"no line is longer than {limit}"
    return import_module("flat").check_flat(said)


def _yume_control(facts: Facts, mint: Callable[[], str], now: Callable[[], str]) -> Control:
    pen = _yume_pen(import_module("shim.yume"), True, CONTROL_BYTES)
    pen.init(STABLE_SESSION, {})
    listening: Control = import_module("shim.yume_control").YumeControl(facts, mint, now, pen, unattended=False)
    return listening


# One row for each; one whose module is not there is left out.
DIALECTS = {
    "claude": Dialect("shim.events", _claude_pen, _check_claude, Control),
    "yume": Dialect("shim.yume", _yume_pen, _check_yume, _yume_control),
}
PRESENT = tuple(name for name, one in DIALECTS.items() if importlib.util.find_spec(one.module))


def dialect(run: Run) -> str:
    """The dialect that a run is said in."""
    return PRESENT[run.knob("dialect", len(PRESENT))]


def vendor(run: Run) -> Vendor:
    """The vendor of a run, as its dialect reads it: only in Claude's own a real claude's lines are passed."""
    return find(run.target) if dialect(run) == "claude" else find(run.target, flat=True)._replace(passthrough=False)


# -- the choices that knobs make --------------------------------------------------------------------------------------

EXITS = (Exit(code=0), Exit(code=0), None, Exit(code=1), Exit(code=130), Exit(signal="SIGTERM"), Exit(code=53))
STDERRS = ("", *("", "Error: 429 rate limit", "boom\x1b[31m\u2028\x00", "Workspace Trust") * 3, "x" * 9000)
LIMITS = (100_000, 10_000, 10_000, 1_000_000, 12_345)


def _read_answer(text: str) -> Structured:
    return Structured({"answer": text[:100]}) if len(text) % 2 else Structured(None, "it is no JSON")


_TERMS: Sequence[dict[str, Any]] = (
    {},
    {},
    {"policy": Policy(denied=["Bash(rm:*)", "Write"], hidden=["Read"])},
    {"policy": Policy(only=["Bash", "Edit"])},
    {"max_turns": 2, "turns_asked": 2},
    {"budget": 0.0001},
    {"read": _read_answer},
    {"keep": lambda text: "/state/spill/1.txt"},
    {"session_id": "11111111-2222-4333-8444-555555555555", "model": "asked-for"},
)

# -- the work an input may cost -----------------------------------------------------------------------------------

# Generous: they are to find what grows faster than its input, on a busy machine and under instrumentation.
IN_PIECES = 5  # one run in so many is fed in pieces as well
SECONDS, SECONDS_A_LINE, SECONDS_A_BYTE = 2.0, 4e-3, 6e-6
LINES_A_VALUE = 12  # that one event can become: the ends of what is open, a reply's, a block's and a call's lines
BYTES, BYTES_A_LINE, TIMES_LONGER = 300_000, 4_000, 80


def _agreed(run: Run, read: Vendor) -> dict[str, Any]:
    """What is agreed on; a real claude counts and answers by itself."""
    terms = _TERMS[run.knob("terms", len(_TERMS))]
    return {} if read.passthrough and not terms.keys() <= {"policy", "session_id"} else terms


def open_child(run: Run, previous: Translation | None = None) -> Translation:
    """The translation that a run asks for."""
    read = vendor(run)
    terms = Terms(
        vendor=read.name,
        fresh_id=STABLE_SESSION,
        tools=read.listed,
        retracts=read.retracts,
        login=read.login,
        gate=read.gate,
        clean_exits=read.clean_exits,
    )._replace(**_agreed(run, read))
    if previous is not None:
        return Translation(read.translator, terms, previous.pen, previous.turn)
    spoken = DIALECTS[dialect(run)]
    limit = LIMITS[run.knob("limit", len(LIMITS))]
    pen = spoken.open(import_module(spoken.module), bool(run.knob("partial", 2)), limit)
    return Translation(read.translator, terms, pen)


def run_child(run: Run) -> int:
    """Assert the invariants on what is said for a vendor's lines; gives back how many lines were fed."""
    body = run.body()
    count = body.count(b"\n") + 1
    began = time.monotonic()
    said, account = _fed(run, body, None)
    if time.monotonic() - began > SECONDS:
        _check_time(run, body, count)
    _check_work(body, count, said)
    if run.knob("cut", IN_PIECES) == 0:
        again, account_again = _fed(run, body, Random(run.knobs[KNOBS.index("cut")]))
        assert again == said, f"in pieces it is said otherwise: {_difference(said, again)}"
        assert account_again == account, f"in pieces it is counted otherwise: {account!r} is not {account_again!r}"
    return count


def _fed(run: Run, body: bytes, pieces: Random | None) -> tuple[bytes, list[object]]:
    """What is said for a body, and the accounts; whole, or in pieces of chance sizes."""
    plan = run.knob("turns", 8)
    parts = _parts(body, 3 if plan >= 4 else 1)
    translation = open_child(run)
    said, accounts = [], []
    for number, part in enumerate(parts):
        for chunk in [part] if pieces is None else _pieces(part, pieces):
            said.append(translation.feed(chunk))
        if number + 1 == len(parts):
            break
        if plan == 4:
            said.append(translation.close(Exit(code=0)))
            accounts.append(_checked_account(translation))
            translation = open_child(run, previous=translation)
        elif plan == 5 and not vendor(run).passthrough:
            said.append(translation.finish())
            accounts.append(_checked_account(translation))
            translation.begin(translation.turn.terms)
        elif plan >= 6:
            translation.interrupt()
    stderr = STDERRS[run.knob("stderr", len(STDERRS))]
    said.append(translation.close(EXITS[run.knob("exit", len(EXITS))], stderr))
    accounts.append(_checked_account(translation))
    whole = b"".join(said)
    if pieces is None:
        _check_stream(run, whole)
    return whole, accounts


def _checked_account(translation: Translation) -> object:
    check_account(translation.account)
    assert translation.turn.cause != "internal", f"a mistake of ours: {translation.turn.final_text}"
    assert "malformed_end" not in translation.account.repairs, translation.account.samples["malformed_end"]
    check_memory(translation)
    _check_questions(translation.turn.asked)
    return translation.account.report()


def _check_stream(run: Run, said: bytes) -> None:
    limit = LIMITS[run.knob("limit", len(LIMITS))]
    partial = bool(run.knob("partial", 2))
    if vendor(run).passthrough:
        check_frames(said)  # a real claude's lines stay its own, broken ones too
    else:
        DIALECTS[dialect(run)].check(said, partial, limit)


def _check_questions(asked: Sequence[Permission]) -> None:
    """A call is asked about once; whoever may not be asked is refused with a word."""
    open_questions = [one for one in asked if not one.refusal]
    for name in ("request", "call"):
        given = [getattr(one, name) for one in open_questions]
        assert len(set(given)) == len(given), f"two open questions with one {name}"


def _check_work(body: bytes, count: int, said: bytes) -> None:
    """Output is in proportion to input: in lines, and in bytes."""
    lines = said.count(b"\n")
    allowed = 100 + LINES_A_VALUE * (count + body.count(b"{"))
    assert lines <= allowed + len(body) // 1000, f"{count} lines of {len(body)} bytes became {lines} lines"
    room = BYTES + BYTES_A_LINE * lines + TIMES_LONGER * len(body)
    assert len(said) <= room, f"{len(body)} bytes became {len(said)}"


def _check_time(run: Run, body: bytes, count: int) -> None:
    """A run that took long is run again under the clock of this process: the machine may have been busy."""
    began = time.process_time()
    _fed(run, body, None)
    took = time.process_time() - began
    allowed = SECONDS + SECONDS_A_LINE * count + SECONDS_A_BYTE * len(body)
    assert took <= allowed, f"{count} lines of {len(body)} bytes took {took:.1f} s; {allowed:.1f} are generous"


def _parts(body: bytes, most: int) -> list[bytes]:
    """A body in up to so many parts of whole lines."""
    parts, start = [], 0
    for number in range(1, most):
        end = body.find(b"\n", len(body) * number // most)
        if end >= start:
            parts.append(body[start : end + 1])
            start = end + 1
    return [*parts, body[start:]]


def _pieces(body: bytes, chance: Random) -> Iterator[bytes]:
    """A body in pieces, single bytes of it too where it is short."""
    start = 0
    sizes = (1, 2, 3, 7, 64) if len(body) < 4000 else (1, 9, 300, 4096, 65_536)
    while start < len(body):
        size = chance.choice(sizes)
        yield body[start : start + size]
        start += size


def _difference(one: bytes, other: bytes) -> str:
    for left, right in itertools.zip_longest(one.split(b"\n"), other.split(b"\n"), fillvalue=b"(nothing)"):
        if left != right:
            return f"{left[:400]!r} is not {right[:400]!r}"
    return "nothing"


# -- what a frontend says -------------------------------------------------------------------------------------------

CONTROL_BYTES = 20_000
QUESTION = Permission("q", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"})


def run_control(run: Run) -> int:
    """The frontend's lines: each is answered or skipped, every request exactly once, whatever else it says."""
    numbers = itertools.count(1)
    facts = Facts(
        vendor="pi",
        session_id=STABLE_SESSION,
        mode="default",
        prompts=True,
        policy=Policy(),
        asks=bool(run.knob("terms", 2)),
        replays=bool(run.knob("limit", 2)),
        state_events=("", "visible", "host")[run.knob("exit", 3)],
        line_bytes=CONTROL_BYTES,
    )
    listen = DIALECTS[dialect(run)].listen
    control = listen(facts, lambda: f"uuid-{next(numbers)}", lambda: "2026-11-20T10:00:00.000Z")
    count = 0
    for line in run.expanded():
        if count % 8 == 3:
            control.begin("do it")
        if count % 8 == 5:
            control.ask(QUESTION._replace(request=f"q{count}", call=f"call_{count}"))
        _receive(control, line, dialect(run) == "claude")
        control.messages.clear()  # the session takes them, or does not read on
        if count % 8 == 7:
            control.end()
        count += 1
    control.closed()
    _said_to_frontend(control)
    return count


def _receive(control: Control, line: bytes, answers: bool) -> None:
    """`answers`: the dialect has requests, and each has one answer."""
    _said_to_frontend(control)
    control.receive(line)
    answered = sum(event["type"] == "control_response" for event in _said_to_frontend(control))
    try:
        event = orjson.loads(line) if answers else None
    except orjson.JSONDecodeError:
        return
    if isinstance(event, dict) and event.get("type") == "control_request" and isinstance(event.get("request"), dict):
        assert answered == 1, f"a request has {answered} answers (C5): {line[:400]!r}"


def _said_to_frontend(control: Control) -> list[dict[str, Any]]:
    said = control.take()
    assert not any(separator.encode() in said for separator in SEPARATORS)
    lines = said.split(b"\n")
    assert lines.pop() == b"", "whole lines only"
    assert all(len(line) <= CONTROL_BYTES for line in lines), "no line passes the limit"
    events = [orjson.loads(line) for line in lines]
    complaints, control.complaints = control.complaints, []
    for complaint in complaints:
        assert len(complaint) < 1000 and complaint.endswith("\n"), f"a complaint of {len(complaint)} characters"
        assert printable(complaint) == complaint, f"a terminal would obey {complaint!r}"
    return events


# -- the command line and the settings ------------------------------------------------------------------------------


def run_words(run: Run) -> int:
    """A command line is understood or refused in our words; nothing else ever comes out of it."""
    words = [line.decode("utf-8", "surrogateescape") for line in run.expanded()]
    try:
        invocation = argv.parse(words)
    except FrontendError as error:
        assert str(error)
    else:
        assert isinstance(invocation, argv.Invocation)
    return len(words)


SETTINGS = os.path.join(tempfile.gettempdir(), f"shim-fuzz-{os.getpid()}.toml")


def run_settings(run: Run) -> int:
    """A settings file is understood or refused in our words."""
    body = run.body()
    with open(SETTINGS, "wb") as file:
        file.write(body)
    try:
        settings = config.load(argv.Invocation(shim_config=SETTINGS), {})
    except FrontendError as error:
        assert str(error)
    else:
        assert settings.max_line_bytes >= config.LEAST_LINE_BYTES
        assert all(value > 0 for value in settings.timeouts.values())
    finally:
        os.unlink(SETTINGS)
    return body.count(b"\n") + 1


TARGETS: dict[str, Callable[[Run], int]] = {
    **dict.fromkeys(VENDORS, run_child),
    "control": run_control,
    "words": run_words,
    "settings": run_settings,
}
CHILDREN = tuple(VENDORS)

"""The drop-in `claude`: its doors, and the result that every failure ends in."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from shim.channels import early_signals
from shim.channels.raw_output import GONE, insist, tell
from shim.conversation.decide import Start, terminator
from shim.conversation.drivers.open_translation import fresh_identity, open_pen
from shim.core.claude import argv
from shim.core.claude.argv import Invocation
from shim.core.claude.pen import CLAUDE_VERSION, TERMINATORS
from shim.core.errors import (
    ArgumentError,
    Cause,
    FrontendError,
    ShimError,
    UnknownSessionError,
    UnrecordedError,
    VendorError,
)
from shim.core.ids import parse_uuid
from shim.core.reading.account import printable
from shim.core.turn.result import bare
from shim.core.turn.terms import Terms
from shim.core.vendor.translation import Translation
from shim.core.vendor.translator import Translator
from shim.process.environment import working_directory
from shim.process.exit_status import signal_name
from shim.state import config
from shim.state.files import write_all

if TYPE_CHECKING:
    from shim.recording.recorder import Recorder

NOT_FOUND_STATUS = 127  # with text output only; frontends that read JSON get a result and 1 (surface page)
SIGNAL_STATUS = {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGHUP: 129}
TOLD_TO_END = (143, 129)  # whoever sent that waits a moment, and then kills us


class StoppedError(ShimError):
    """A signal came before there was a child."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal_name(number)} before the turn began")
        self.number = number


class Signals:
    """Signals until the loop takes them over: without a child they end the start, with one they wait for the loop."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.started = False

    def listen(self) -> None:
        """From now on they are ours."""
        for number in SIGNAL_STATUS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._caught)
        if early_signals.heard:
            self._caught(early_signals.heard.pop(0), None)

    def listen_again(self) -> None:
        """The loop is over: what comes now is told to end sooner, and what came is done with."""
        self.started = True
        self.pending.clear()
        self.listen()

    def ended(self) -> bool:
        """Whether we were told to end; from now on a signal only says so."""
        self.started = True
        return bool(self.pending)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if not self.started:
            self.started = True  # told once is enough
            self.pending.append(number)
            raise StoppedError(number)
        self.pending.append(number)


def said(data: bytes) -> int:
    """Print what is no turn's; the exit status. Nobody who reads is no failure, a disk that is full is one."""
    try:
        write_all(1, data)
    except OSError as error:
        return int(error.errno not in GONE)
    return 0


def main(arguments: Sequence[str], installed: Mapping[str, str]) -> int:
    """Run `claude ARGUMENTS`; `installed` is what `shim install` baked in. The exit status."""
    fill_standard_files()
    chosen, baked = os.environ.get("SHIM_DIALECT"), installed.get("dialect")
    try:
        invocation = argv.parse(arguments, dialect=chosen or baked or "claude")
    except FrontendError as error:
        return _misread(error, arguments, installed, yume=(chosen or baked) == "yume")
    if invocation.version or invocation.help or invocation.subcommand:
        early_signals.forget()
    if invocation.version:
        return said(f"{CLAUDE_VERSION} (Claude Code)\n".encode())
    if invocation.help or invocation.subcommand:
        from shim.commands.subcommands import answer

        return answer(invocation, installed)
    if baked and not (chosen or invocation.shim_dialect):
        invocation = invocation._replace(shim_dialect=baked)
    return serve(
        invocation,
        lambda: Start(invocation, installed, arguments),
        record=lambda: record_refusal(invocation, installed, arguments),
    )


def _misread(error: FrontendError, arguments: Sequence[str], installed: Mapping[str, str], *, yume: bool) -> int:
    """Tell what is wrong with the arguments; who speaks Yume's dialect waits for a result whatever it is."""
    complain(error)
    flat = Invocation(output_format="stream-json", shim_dialect="yume") if yume else Invocation()
    recorder = record_refusal(flat, installed, arguments)
    try:
        if yume:
            return refuse(flat, error, error.cause, lambda: bool(early_signals.heard), "", recorder)
        if recorder is not None:
            recorder.note("refused", text=str(error), cause=error.cause)
        return 1
    finally:
        if recorder is not None:
            recorder.close(lambda: bool(early_signals.heard))


def serve(
    invocation: Invocation,
    start: Callable[[], Start],
    shown: str = "",
    *,
    record: Callable[[], "Recorder | None"] = lambda: None,
) -> int:
    """Run a conversation; whatever keeps it from beginning is told. The exit status.

    `shown` is the frontend's own name for the session, where that is no UUID; `record` records what did not come as
    far as a recording of its own.
    """
    signals = Signals()
    started: Start | None = None
    recorder: Recorder | None = None
    status = 1
    try:
        signals.listen()
        started = start()
        recorder = started.recorder
        status = started.run(signals)
    except Exception as error:
        signals.started = True
        if started is None and not isinstance(error, UnrecordedError):
            recorder = record()
        status = _failed(invocation, error, signals, shown, recorder)
    finally:
        recorded = True
        if recorder is not None:
            signals.listen_again()
            recorded = recorder.close(lambda: status in TOLD_TO_END or bool(signals.pending))
    return status or int(not recorded)


def _failed(invocation: Invocation, error: Exception, signals: Signals, shown: str, recorder: "Recorder | None") -> int:
    """Tell what kept a conversation from beginning; the exit status."""
    if isinstance(error, StoppedError):
        cause: Cause = "interrupted" if error.number == signal.SIGINT else "signal"
        refuse(invocation, error, cause, signals.ended, shown, recorder)
        return SIGNAL_STATUS[signal.Signals(error.number)]
    if not isinstance(error, ShimError):  # our own bug: a frontend is still told (threats, last row)
        error, cause = ShimError(f"the shim failed: {error!r}", hint="please report this"), "internal"
    else:
        cause = error.cause
    complain(error)
    if isinstance(error, ArgumentError) and dialect_of(invocation) != "yume":
        if recorder is not None:
            recorder.note("refused", text=str(error), cause=cause)
        return 1
    return refuse(invocation, error, cause, signals.ended, shown, recorder)


def record_refusal(invocation: Invocation, installed: Mapping[str, str], arguments: Sequence[str]) -> "Recorder | None":
    """What records a run that was refused before it came to a vendor, where one is known."""
    try:
        settings = config.load(invocation, os.environ)
    except FrontendError:  # they may be what it was refused for
        settings = config.Settings(dialect=dialect_of(invocation))
    path = config.record_path(invocation, os.environ, installed, settings)
    if not path:
        return None
    from shim.recording.open_recorder import open_recorder

    try:
        return open_recorder(
            path, "none", settings, arguments=arguments, environment=os.environ, cwd=working_directory()
        )
    except FrontendError as error:
        complain(error)
        return None


def fill_standard_files() -> None:
    """Closed standard files become the null device, for reading: the next file opened must not take their number.

    Writing there fails as it would have: a frontend that closed stdout is a frontend that has gone.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


def complain(error: ShimError) -> None:
    """A sentence and a hint, on stderr."""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    tell(printable(f"{error}{hint}\n"))


def dialect_of(invocation: Invocation) -> str:
    """The dialect of a turn that could not begin; a mistake in the settings leaves Claude's."""
    try:
        return invocation.shim_dialect or config.load(invocation, os.environ).dialect
    except FrontendError:
        return "claude"


def refuse(
    invocation: Invocation,
    error: ShimError,
    cause: Cause,
    stopped: Callable[[], bool],
    shown: str = "",
    recorder: "Recorder | None" = None,
) -> int:
    """A turn that cannot start still ends in a result that says why, where the output format has one.

    `stopped` says whether we were told to end: then it is not waited for who does not read it.
    """
    if recorder is not None:
        recorder.note("refused", text=str(error), cause=cause)
    if invocation.output_format == "text":
        return NOT_FOUND_STATUS if isinstance(error, VendorError) else 1
    fresh, identity = fresh_identity()
    terms = Terms(
        vendor=error.vendor or "none",
        fresh_id=fresh,
        session_id=invocation.session_id or parse_uuid(invocation.resume or ""),
        model=invocation.model,
        cwd=working_directory(),
        tried=error.tried,
    )
    chosen = invocation.shim_terminator or os.environ.get("SHIM_TERMINATOR", "auto")
    ending = terminator(invocation, chosen if chosen in TERMINATORS else "auto")
    dialect = dialect_of(invocation)
    pen = open_pen(dialect, identity, terminator=ending, shown=shown)
    if isinstance(error, UnknownSessionError) and dialect == "claude":
        if invocation.output_format == "json":
            return 1
        pen.adopt_session(terms.session_id or fresh)
        pen.result(bare(terms.vendor, str(error), "not_found"))
        lines = pen.take()
    else:
        cause = "not_found" if isinstance(error, UnknownSessionError) else cause
        translation = Translation(Translator, terms, pen)
        translation.turn.stopped(str(error), cause)
        lines = translation.close(None)
    if invocation.output_format == "json":
        array = b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]"
        lines = array if invocation.verbose else pen.last_result
    try:
        insist(1, lines, stopped)
    except OSError:
        return 1
    if recorder is not None:
        recorder.stream("O", lines)
    return 1

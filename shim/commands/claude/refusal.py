"""Reports why a run cannot start: a message on stderr, and a result if the output format has
results.

A run that starts normally does not import this module.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from shim.conversation.drivers.open_translation import (
    choose_result_terminator_line,
    create_output_writer,
)
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.translator import Translator
from shim.core.api_errors import TurnEndCause
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import is_claude_model
from shim.core.claude.writer import TERMINATORS
from shim.core.dialects import StreamDialect, resolve_dialect
from shim.core.errors import (
    CliArgumentError,
    FrontendError,
    ShimError,
    StartInterruptedError,
    UnknownSessionError,
    UntrustedVendorVersionError,
    VendorError,
    format_error,
)
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.reading.values import escape_control_chars, validate_uuid
from shim.core.turn.context import SessionConfig, TurnConfig, VendorInfo
from shim.core.turn.result import build_minimal_error_result
from shim.io.ids import create_session_ids
from shim.io.signals import received_signals
from shim.io.stderr import warn, write_all
from shim.process.environment import get_working_directory
from shim.state import config

if TYPE_CHECKING:
    from shim.recording.recorder import RunRecorder

# Only used for text output. A frontend that reads JSON gets a result and exit status 1.
MISSING_PROGRAM_EXIT_CODE = 127
SIGNAL_EXIT_CODES = {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGHUP: 129}


def report_argument_error(
    error: FrontendError,
    argv: Sequence[str],
    installed_options: Mapping[str, str],
    dialect: StreamDialect,
) -> int:
    """Report an error in the arguments on stderr. In a dialect that answers argument errors, also
    write a result.
    """
    print_error_to_stderr(error)
    invocation = Invocation()
    if dialect.answers_argument_errors:
        invocation = invocation._replace(output_format="stream-json", shim_dialect=dialect.name)
    recorder = open_failed_start_recorder(invocation, installed_options, argv)
    try:
        return report_turn_start_failure(
            invocation,
            error,
            error.cause,
            lambda: bool(received_signals),
            "",
            recorder,
        )
    finally:
        if recorder is not None:
            recorder.close(lambda: bool(received_signals))


def report_conversation_start_failure(
    invocation: Invocation,
    error: Exception,
    is_stopped: Callable[[], bool],
    display_id: str,
    recorder: "RunRecorder | None",
) -> int:
    """Report why a conversation cannot start. Return the exit status. `is_stopped` and `display_id`
    are described in `report_turn_start_failure`.
    """
    if isinstance(error, StartInterruptedError):
        cause: TurnEndCause = "signal"
        if error.signal_number == signal.SIGINT:
            cause = "interrupted"
        report_turn_start_failure(invocation, error, cause, is_stopped, display_id, recorder)
        return SIGNAL_EXIT_CODES[signal.Signals(error.signal_number)]
    # Internal errors of the shim are reported to the frontend too.
    if not isinstance(error, ShimError):
        error = ShimError(f"internal error: {error!r}", hint="please report this")
        cause = "internal"
    else:
        cause = error.cause
    print_error_to_stderr(error)
    return report_turn_start_failure(invocation, error, cause, is_stopped, display_id, recorder)


def open_failed_start_recorder(
    invocation: Invocation, installed_options: Mapping[str, str], argv: Sequence[str]
) -> "RunRecorder | None":
    """Return a recorder for a run that was refused before a vendor was chosen. Return None if runs
    are not recorded.
    """
    try:
        settings = config.load_shim_settings(invocation, os.environ)
    except FrontendError:  # the settings may be the cause of the refusal
        settings = config.ShimSettings(dialect=find_output_dialect_name(invocation))
    path = config.resolve_recording_path(invocation, os.environ, installed_options, settings)
    if not path:
        return None
    from shim.recording.open_recorder import open_recorder

    try:
        return open_recorder(
            path,
            "none",
            settings,
            argv=argv,
            environment=os.environ,
            cwd=get_working_directory(),
        )
    except FrontendError as error:
        print_error_to_stderr(error)
        return None


def print_error_to_stderr(error: ShimError) -> None:
    warn(escape_control_chars(f"{format_error(error)}\n"))


def find_output_dialect_name(invocation: Invocation) -> str:
    """Return the output dialect for a turn that cannot start. If the settings have an error, return
    Claude's dialect.
    """
    if invocation.shim_dialect:
        return invocation.shim_dialect
    try:
        return config.load_shim_settings(invocation, os.environ).dialect
    except FrontendError:
        return "claude"


def report_turn_start_failure(
    invocation: Invocation,
    error: ShimError,
    cause: TurnEndCause,
    is_stopped: Callable[[], bool],
    display_id: str = "",
    recorder: "RunRecorder | None" = None,
) -> int:
    """Write a result that states why a turn cannot start, if the output format has results. Return
    the exit status.

    Claude's dialect has no result for an error in the arguments. `is_stopped` returns whether this
    process must exit. If so, the function does not wait for a frontend that does not read.
    `display_id` is the frontend's own session name if the name is not a UUID.
    """
    if recorder is not None:
        recorder.record_run_event("refused", text=str(error), cause=cause)
    if invocation.output_format == "text":
        if isinstance(error, VendorError):
            return MISSING_PROGRAM_EXIT_CODE
        return 1
    dialect = resolve_dialect(find_output_dialect_name(invocation))
    if isinstance(error, CliArgumentError) and not dialect.answers_argument_errors:
        return 1
    new_session_id, uuid_prefix = create_session_ids()
    model, unusable_model = invocation.model, None
    if model is not None and is_claude_model(model) and error.vendor != "claude":
        model, unusable_model = None, model
    distrust = ""
    if isinstance(error, UntrustedVendorVersionError):
        distrust = error.distrust_reason
    turn_config = TurnConfig(
        vendor=VendorInfo(
            error.vendor or "none", is_unattended=bool(distrust), unattended_reason=distrust
        ),
        session=SessionConfig(
            new_session_id,
            invocation.session_id or validate_uuid(invocation.resume),
        ),
        model=model,
        requested_model=unusable_model,
        cwd=get_working_directory(),
        failed_attempts=error.failed_attempts,
    )
    terminator_setting = invocation.shim_terminator or os.environ.get("SHIM_TERMINATOR", "auto")
    if terminator_setting not in TERMINATORS:
        terminator_setting = "auto"
    terminator_text = choose_result_terminator_line(invocation, terminator_setting)
    writer = create_output_writer(
        dialect.name, uuid_prefix, terminator=terminator_text, display_name=display_id
    )
    if isinstance(error, UnknownSessionError):
        cause = "not_found"
    if isinstance(error, UnknownSessionError) and not dialect.is_flat:
        if invocation.output_format == "json":
            return 1
        writer.set_session_id(turn_config.session.requested_id or new_session_id)
        writer.write_result(build_minimal_error_result(turn_config.vendor.name, str(error), cause))
        lines = writer.take_bytes()
    else:
        child_stream = ChildStream(Translator, turn_config, writer)
        child_stream.turn.stop(str(error), cause)
        lines, _ = child_stream.close(None)
    if invocation.output_format == "json":
        if invocation.verbose:
            lines = b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]"
        else:
            lines = writer.last_result_line
    try:
        write_all(1, lines, is_stopped)
    except OSError:
        return 1
    if recorder is not None:
        recorder.record_stream("O", lines)
    return 1

"""The entry point of the drop-in `claude`. Every run that cannot start is reported from this
module.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from shim.conversation.startup import ConversationStartup, prepare_conversation
from shim.core.claude.argv.flags import (
    Invocation,
    check_machine_flags,
    check_resume_flags,
    parse_argv,
)
from shim.core.dialects import resolve_dialect
from shim.core.errors import FrontendError, RecordingRequiredError, ShimError
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.reading.values import is_short_session_id
from shim.io.signals import SignalRecorder, restore_default_signal_handlers
from shim.io.stderr import warn
from shim.state import config

if TYPE_CHECKING:
    from shim.bridge.attach.conversation import BackgroundConversation
    from shim.recording.recorder import RunRecorder

# Exit codes for signals after which the frontend soon kills the process.
SIGNAL_EXIT_CODES = (143, 129)


def main(argv: Sequence[str], installed_options: Mapping[str, str]) -> int:
    """Run `claude ARGUMENTS` and return the exit status. `installed_options` are the options that
    `shim install` stored in the drop-in.
    """
    reopen_closed_stdio()
    chosen_dialect = os.environ.get("SHIM_DIALECT")
    installed_dialect = installed_options.get("dialect")
    dialect = chosen_dialect or installed_dialect or "claude"
    try:
        invocation = parse_argv(argv, dialect=dialect)
        if not (invocation.version or invocation.help or invocation.subcommand):
            check_resume_flags(invocation)
            check_machine_flags(invocation)
    except FrontendError as error:
        from shim.commands.claude.refusal import report_argument_error

        return report_argument_error(
            error,
            argv,
            installed_options,
            dialect=resolve_dialect(dialect),
        )
    if invocation.version or invocation.help or invocation.subcommand:
        restore_default_signal_handlers()
        from shim.commands.claude.subcommands import run_subcommand

        return run_subcommand(invocation, installed_options)
    if (invocation.unknown_flags or invocation.glued_flags) and (
        status := _check_flags(invocation, installed_options, argv)
    ):
        return status
    invocation = expand_short_session_id(invocation)
    if invocation.background and not invocation.shim_explain:
        restore_default_signal_handlers()
        from shim.commands.claude.background import start_background_session

        return start_background_session(invocation, installed_options)
    if installed_dialect and not (chosen_dialect or invocation.shim_dialect):
        invocation = invocation._replace(shim_dialect=installed_dialect)
    if invocation.shim_explain:
        restore_default_signal_handlers()
        from shim.commands.claude.command_output import CommandOutput, print_command_output
        from shim.commands.turn.explain import explain_invocation_with_exit_status as explain

        text, status = explain(invocation, installed_options)
        return print_command_output(CommandOutput(text)) or status
    if invocation.resume and config.has_machines(invocation, os.environ):
        remote_status = _resume_on_machine(invocation, installed_options, argv)
        if remote_status is not None:
            return remote_status
    if not (invocation.prompt or invocation.print_mode) and os.isatty(0):
        from shim.commands.turn.vendor_screen import start_interactive_vendor, uses_interactive_mode

        if uses_interactive_mode(invocation):
            try:
                return start_interactive_vendor(invocation, installed_options, argv)
            except ShimError as error:
                from shim.commands.claude.refusal import print_error_to_stderr

                print_error_to_stderr(error)
                return 1
    return run_conversation(
        invocation,
        lambda: plan_local_or_background_conversation(invocation, installed_options, argv),
        installed_options,
        argv,
    )


def _resume_on_machine(
    invocation: Invocation, installed_options: Mapping[str, str], argv: Sequence[str]
) -> int | None:
    """Resume a session on another machine. Return the exit status, or None if the session is not on
    another machine.
    """
    from shim.bridge.machines.frontend import find_resumed_session, run_conversation_on_machine

    try:
        session = find_resumed_session(invocation, os.environ)
        if session is None:
            return None
        restore_default_signal_handlers()
        return run_conversation_on_machine(invocation, session, os.environ)
    except ShimError as error:
        return run_conversation(invocation, _build_raiser(error), installed_options, argv)


def _check_flags(
    invocation: Invocation, installed_options: Mapping[str, str], argv: Sequence[str]
) -> int:
    """Warn about unknown flags, and refuse to run with a misspelled permission flag. Return the
    exit status, or 0 to continue.
    """
    from shim.core.claude.argv.unknown_flags import collect_unknown_flag_warnings

    try:
        for warning in collect_unknown_flag_warnings(invocation):
            warn(warning)
    except FrontendError as error:
        return run_conversation(invocation, _build_raiser(error), installed_options, argv)
    return 0


def _build_raiser(error: ShimError) -> "Callable[[], ConversationStartup]":
    def start() -> "ConversationStartup":
        raise error

    return start


def plan_local_or_background_conversation(
    invocation: Invocation, installed_options: Mapping[str, str], argv: Sequence[str]
) -> "ConversationStartup | BackgroundConversation":
    """Prepare a conversation, either in this process or in a background session."""
    settings = config.load_shim_settings(invocation, os.environ, installed_options)
    if settings.bridge.enabled or can_resume_background_session(invocation):
        from shim.bridge.attach.conversation import plan_background_conversation

        client = plan_background_conversation(invocation, settings, installed_options, argv)
        if client is not None:
            return client
    return prepare_conversation(invocation, installed_options, argv, settings=settings)


def expand_short_session_id(invocation: Invocation) -> Invocation:
    """Replace the short id of a background session in `--resume` with its UUID. Return the
    invocation.
    """
    reference = invocation.resume
    if not reference:
        reference = ""
    if not is_short_session_id(reference) or not has_background_sessions():
        return invocation
    from shim.bridge import registry

    matches = registry.list_sessions_by_id_prefix(reference, os.environ)
    if len(matches) == 1:
        return invocation._replace(resume=matches[0].session_id)
    return invocation


def can_resume_background_session(invocation: Invocation) -> bool:
    """Return whether the resumed session may be a background session."""
    if not (invocation.resume or invocation.continue_last):
        return False
    if invocation.fork_session:
        return False
    return has_background_sessions()


def has_background_sessions() -> bool:
    """Return whether background sessions were ever used with this state folder. The check needs no
    imports.
    """
    return os.path.isdir(os.path.join(config.get_state_dir(os.environ), "bridge"))


def run_conversation(
    invocation: Invocation,
    create_runner: "Callable[[], ConversationStartup | BackgroundConversation]",
    installed_options: Mapping[str, str],
    argv: Sequence[str],
    display_id: str = "",
) -> int:
    """Run a conversation, or report why it cannot start. Return the exit status.

    `display_id` is the frontend's own session name if the name is not a UUID. `argv` is recorded if
    the run is refused before it has a recording.
    """
    signals = SignalRecorder()
    runner: ConversationStartup | BackgroundConversation | None = None
    recorder: RunRecorder | None = None
    status = 1
    try:
        signals.start_recording_signals()
        runner = create_runner()
        signals.raise_if_stopped()
        status = runner.run(signals)
    except Exception as error:
        signals.is_started = True
        from shim.commands.claude.refusal import (
            open_failed_start_recorder,
            report_conversation_start_failure,
        )

        recorder = None
        if runner is not None:
            recorder = runner.recorder
        if runner is None and not isinstance(error, RecordingRequiredError):
            recorder = open_failed_start_recorder(invocation, installed_options, argv)
        status = report_conversation_start_failure(
            invocation, error, signals.is_terminating, display_id, recorder
        )
    finally:
        is_recorded = True
        if runner is not None:
            recorder = runner.recorder
        if recorder is not None:
            signals.restart_recording_signals()
            is_recorded = recorder.close(
                lambda: status in SIGNAL_EXIT_CODES or bool(signals.pending_signals)
            )
    if status:
        return status
    return int(not is_recorded)


def reopen_closed_stdio(open_flags: int = os.O_RDONLY) -> None:
    """Open the null device for closed standard streams. Otherwise the next opened file would get
    their descriptors.

    By default, the null device is opened read-only. Writes therefore still fail, as on the closed
    stream. A frontend that closed stdout has disconnected.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, open_flags)

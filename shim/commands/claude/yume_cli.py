"""The entry point of `yume-cli`, the program that Yume starts: `yume-cli start …`, `--version`,
`auth status`.

Every failure ends with a result and the terminator on stdout. Until it receives both, Yume shows
the turn as running.
"""

import os
from collections.abc import Mapping, Sequence

from shim import __version__
from shim.commands.claude.dropin import (
    has_background_sessions,
    reopen_closed_stdio,
    run_conversation,
)
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.unknown_flags import build_misspelled_flag_error
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.reading.values import canonicalize_uuid, escape_control_chars, none_if_empty
from shim.core.yume.cli import FLAGS, MODE_FLAG, YumeInvocation, parse_yume_argv
from shim.io.signals import restore_default_signal_handlers
from shim.io.stderr import warn
from shim.state.config import load_shim_settings

if TYPE_CHECKING:
    from shim.bridge.attach.conversation import BackgroundConversation
    from shim.conversation.startup import ConversationStartup

HELP_TEXT = """yume-cli start --provider NAME --model MODEL --cwd FOLDER --session-id ID [--prompt TEXT] [--resume ID]
yume-cli auth status
yume-cli --version

Flags of start: {flags}
Without --prompt, stdin is the prompt, or frames: user, interrupt, set_permission_mode, tool_approval.
"""


def main(argv: Sequence[str], installed_options: Mapping[str, str]) -> int:
    """Run `yume-cli ARGUMENTS` and return the exit status. `installed_options` are the options that
    `shim install` stored in the drop-in.
    """
    reopen_closed_stdio()
    call = parse_yume_argv(argv)
    if call.command in ("version", "help", "auth"):
        restore_default_signal_handlers()
    if call.command in ("version", "help"):
        from shim.commands.claude.command_output import CommandOutput, print_command_output

        flags = " ".join(flag for flag in FLAGS if flag.startswith("--"))
        return print_command_output(
            CommandOutput(
                f"{__version__} (yume-cli)\n"
                if call.command == "version"
                else HELP_TEXT.format(flags=flags)
            )
        )
    if call.command == "auth":
        from shim.commands.claude.subcommands import run_subcommand

        subcommand_args = call.args or ("status",)
        invocation = Invocation(subcommand="auth", subcommand_args=subcommand_args)
        invocation = invocation._replace(shim_vendor=none_if_empty(call.vendor_name))
        return run_subcommand(invocation, installed_options)
    return _start(call, installed_options, argv)


def _start(call: YumeInvocation, installed_options: Mapping[str, str], argv: Sequence[str]) -> int:
    for note in call.warnings:
        warn(escape_control_chars(f"{call.vendor_name or 'yume-cli'}: {note}\n"))
    invocation = call.to_claude_invocation()
    from shim.conversation.yume_start import apply_mode, create_yume_startup, derive_session_uuid

    resumed_name = call.resume or call.session
    try:
        refusal_invocation = invocation._replace(
            session_id=derive_session_uuid(resumed_name) if resumed_name else None
        )
    except FrontendError:  # `start` raises the error again, so that a result reports it
        resumed_name = ""
        refusal_invocation = invocation
    display_id = ""
    if canonicalize_uuid(resumed_name) != resumed_name:
        display_id = resumed_name
    session_id = refusal_invocation.session_id

    def start() -> "ConversationStartup | BackgroundConversation":
        if call.misspelled:
            raise build_misspelled_flag_error(call.misspelled, MODE_FLAG)
        if session_id and has_background_sessions():
            from shim.bridge.attach.conversation import (
                is_background_session_running,
                plan_background_conversation,
            )

            if is_background_session_running(session_id):
                joined = apply_mode(call, invocation)._replace(resume=session_id)
                if not call.prompt:  # stdin may contain the messages
                    joined = joined._replace(input_format="stream-json")
                settings = load_shim_settings(joined, os.environ, installed_options)
                background_conversation = plan_background_conversation(
                    joined, settings, installed_options, argv, display_id
                )
                if background_conversation is not None:
                    return background_conversation
        return create_yume_startup(call, invocation, installed_options, argv)

    return run_conversation(refusal_invocation, start, installed_options, argv, display_id)

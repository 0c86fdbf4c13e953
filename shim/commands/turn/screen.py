"""A bare `claude` on a terminal: the real one opens its screen there, and programs start it in a
pty for that.

The shim has no screen. With `tui = "vendor"` in the settings the vendor's own program takes our
place.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from shim.conversation.fallback.choice import REPLAY_VENDOR, choose_vendors
from shim.conversation.fallback.vendor_list import VendorList
from shim.conversation.invocation import resolve_mode
from shim.core.adapter.vendor import Adapter
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import FLAGS
from shim.core.claude.argv.words import format_flag
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.io import early_signals
from shim.io.raw_output import warn
from shim.process.environment import (
    MAX_DEPTH,
    build_child_environment,
    get_working_directory,
    parse_depth,
    parse_extra_args,
)
from shim.process.find_program import find_command_prefix, find_program
from shim.process.spawn import DEFAULT_SIGNALS
from shim.process.spawn_error import create_spawn_error
from shim.state import config
from shim.state.own_vendors import check_vendor_names, register_profiles

# Claude's flags without which another screen would do what was not asked for: another session, or
# more than may be.
UNSKIPPABLE_FIELDS = (
    *(
        "session_id",
        "resume",
        "continue_last",
        "tools",
        "disallowed_tools",
        "restricted",
        "settings",
    ),
    *("permission_prompt_tool", "json_schema"),
)
IRRELEVANT_FIELDS = ("print_mode", "version", "help")
DEFAULT_MODE = "default"  # the permission mode


def uses_screen(invocation: Invocation) -> bool:
    """Whether the real claude would open its screen."""
    streams = invocation.streams
    plain = streams.input_format == streams.output_format == "text"
    return (
        plain and not (invocation.prompt or invocation.print_mode) and os.isatty(0) and os.isatty(1)
    )


def open_screen(
    invocation: Invocation, installed: Mapping[str, str], arguments: Sequence[str]
) -> int:
    """Become the vendor's program, or say that there is no screen. Returns the exit status.

    ShimError where the program cannot be started.
    """
    early_signals.restore_default_handlers()
    settings = config.load_config(invocation, os.environ, installed)
    if settings.tui == "vendor":
        _replace_process(*_build_command(invocation, installed, arguments, settings))
    warn(
        "claude: the shim in place of claude has no screen: use `shim run MESSAGE` or `claude -p MESSAGE`, or "
        f'set `tui = "vendor"` in {settings.path} for the screen of the vendor\n'
    )
    return 1


def _build_command(
    invocation: Invocation,
    installed: Mapping[str, str],
    arguments: Sequence[str],
    settings: config.Settings,
) -> tuple[list[str], Mapping[str, str]]:
    """The command line of the vendor's program, and its environment."""
    cwd = get_working_directory()
    register_profiles(os.environ, invocation.shim_flags.shim_config)
    check_vendor_names(settings)
    choice = choose_vendors(
        invocation, installed, os.environ, settings.vendor, session_vendor=None, cwd=cwd
    )
    listing = VendorList(
        choice.names, settings, os.environ, cwd=cwd, is_flat=False, needs_prompts=False
    )
    vendor = listing.select_first(DEFAULT_MODE)
    own, environment = (
        settings.get_vendor_settings(vendor.name),
        listing.build_environment(vendor.name),
    )
    if vendor.cli.bundled_module or vendor.name == REPLAY_VENDOR:
        raise FrontendError(
            f"{vendor.name} has no screen", hint="choose another vendor (`shim vendors`)"
        )
    if parse_depth(environment) >= MAX_DEPTH:
        raise FrontendError(
            f"the shim was started inside itself {MAX_DEPTH} times", hint="check SHIM_VENDOR"
        )
    words = (
        _remove_shim_flags(arguments)
        if vendor.passthrough
        else _check_claude_flags(invocation, vendor)
    )
    launcher = find_command_prefix(own.launcher, environment, cwd)
    program = find_program(vendor, own, environment, cwd)
    command = [*launcher, program, *own.args, *parse_extra_args(environment), *words]
    return command, build_child_environment(vendor, own, environment)


def _check_claude_flags(invocation: Invocation, vendor: Adapter) -> tuple[str, ...]:
    """Nothing: no vendor's screen knows Claude's flags. FrontendError for those that must not be
    left out.
    """
    given = [
        field
        for field in FLAGS
        if field not in (*IRRELEVANT_FIELDS, "other") and not field.startswith("shim_")
    ]
    usual = Invocation()
    given = [field for field in given if invocation.flag(field) != usual.flag(field)]
    binding = [field for field in given if field in UNSKIPPABLE_FIELDS]
    if resolve_mode(invocation) not in (DEFAULT_MODE, BYPASS_MODE):
        binding.append("permission_mode")
    names = ", ".join(format_flag(field) for field in binding or given)
    if binding:
        raise FrontendError(
            f"{vendor.name}'s own screen does not know {names}",
            hint="leave that out, or give a message with -p",
        )
    if given:
        warn(f"{vendor.name}'s own screen is not told {names}\n")
    return ()


def _remove_shim_flags(arguments: Sequence[str]) -> list[str]:
    """The words for a real claude: all but our own flags and their values."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*kept, word, *words]
        if not word.startswith("--shim-"):
            kept.append(word)
        elif "=" not in word:
            next(words, None)
    return kept


def _replace_process(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Put a program in our place, on the same terminal. ShimError where it cannot be started."""
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(command[0], command, environment)
    except (OSError, ValueError) as error:
        raise create_spawn_error(command, environment, get_working_directory(), error) from None

"""Handles a bare `claude` on a terminal, for which the real claude opens its full-screen interface.
Some programs start `claude` like this in a pseudo-terminal.

The shim has no full-screen interface. With `tui = "vendor"` in the settings, the vendor's own
program replaces this process.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from shim.conversation.plan import resolve_requested_permission_mode
from shim.conversation.vendor_list import (
    REPLAY_VENDOR,
    FallbackVendorList,
    resolve_vendor_names,
)
from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.flags import FLAG_BY_FIELD, Invocation
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE
from shim.io.signals import restore_default_signal_handlers
from shim.io.stderr import warn
from shim.process.environment import (
    MAX_DEPTH,
    build_child_environment,
    get_working_directory,
    parse_extra_args,
    parse_shim_depth,
)
from shim.process.find_program import find_program, resolve_command_prefix
from shim.process.spawn import DEFAULT_SIGNALS
from shim.process.spawn_error import create_spawn_error
from shim.state import config
from shim.state.own_profiles import check_vendor_names_in_settings, register_user_profiles

# Claude flags that must not be ignored.
# Without them, the vendor would open a different session or have more permissions.
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
DEFAULT_MODE = "default"  # the default permission mode


def uses_interactive_mode(invocation: Invocation) -> bool:
    """Return whether the real claude would open its full-screen interface for this invocation."""
    is_text = invocation.input_format == invocation.output_format == "text"
    if not is_text:
        return False
    if invocation.prompt or invocation.print_mode:
        return False
    if not os.isatty(0):
        return False
    return os.isatty(1)


def start_interactive_vendor(
    invocation: Invocation, installed_options: Mapping[str, str], argv: Sequence[str]
) -> int:
    """Replace this process with the vendor's program, or report that there is no full-screen
    interface. Return the exit status.

    Raise ShimError if the program cannot be started.
    """
    restore_default_signal_handlers()
    settings = config.load_shim_settings(invocation, os.environ, installed_options)
    if settings.tui == "vendor":
        _replace_process(*_build_command(invocation, installed_options, argv, settings))
    warn(
        "claude: the shim has no interactive screen: use `shim run MESSAGE` or `claude -p "
        f'MESSAGE`, or set `tui = "vendor"` in {settings.path} for the vendor\'s screen\n'
    )
    return 1


def _build_command(
    invocation: Invocation,
    installed_options: Mapping[str, str],
    argv: Sequence[str],
    settings: config.ShimSettings,
) -> tuple[list[str], Mapping[str, str]]:
    """Build the command line and the environment of the vendor's program."""
    cwd = get_working_directory()
    register_user_profiles(os.environ, invocation.shim_config)
    check_vendor_names_in_settings(settings)
    resolved_vendors = resolve_vendor_names(
        invocation, installed_options, os.environ, settings.vendor, session_vendor=None, cwd=cwd
    )
    vendor_list = FallbackVendorList(
        resolved_vendors.names, settings, os.environ, cwd=cwd, is_flat=False, needs_prompts=False
    )
    vendor = vendor_list.select_first_usable_adapter(DEFAULT_MODE)
    vendor_settings = settings.get_vendor_settings(vendor.name)
    environment = vendor_list.build_environment(vendor.name)
    if vendor.cli.bundled_module or vendor.name == REPLAY_VENDOR:
        raise FrontendError(
            f"{vendor.name} has no interactive screen",
            hint="choose another vendor (`shim vendors`)",
        )
    if parse_shim_depth(environment) >= MAX_DEPTH:
        raise FrontendError(f"the shim started itself {MAX_DEPTH} times", hint="check SHIM_VENDOR")
    vendor_args = (
        _remove_shim_flags(argv) if vendor.passthrough else _check_claude_flags(invocation, vendor)
    )
    command_prefix = resolve_command_prefix(vendor_settings.launcher, environment, cwd)
    program = find_program(vendor, vendor_settings, environment, cwd)
    command = [
        *command_prefix,
        program,
        *vendor_settings.args,
        *parse_extra_args(environment),
        *vendor_args,
    ]
    return command, build_child_environment(vendor, vendor_settings, environment)


def _check_claude_flags(invocation: Invocation, vendor: Adapter) -> tuple[str, ...]:
    """Raise FrontendError for Claude flags that must not be ignored. No vendor's full-screen
    interface accepts them.
    """
    defaults = Invocation()
    fields = [
        field
        for field in FLAG_BY_FIELD
        if field not in IRRELEVANT_FIELDS
        and not field.startswith("shim_")
        and getattr(invocation, field) != getattr(defaults, field)
    ]
    unskippable = [field for field in fields if field in UNSKIPPABLE_FIELDS]
    if resolve_requested_permission_mode(invocation) not in (DEFAULT_MODE, BYPASS_MODE):
        unskippable.append("permission_mode")
    names = ", ".join(FLAG_BY_FIELD[field].name for field in unskippable or fields)
    if unskippable:
        raise FrontendError(
            f"{vendor.name}'s interactive screen does not support {names}",
            hint="remove these options, or pass a message with -p",
        )
    if fields:
        warn(f"{vendor.name}'s interactive screen ignores {names}\n")
    return ()


def _remove_shim_flags(argv: Sequence[str]) -> list[str]:
    """Return the arguments for the real claude: all arguments except the shim's flags and their
    values.
    """
    claude_args: list[str] = []
    argument_iterator = iter(argv)
    for argument in argument_iterator:
        if argument == "--":
            return [*claude_args, argument, *argument_iterator]
        if not argument.startswith("--shim-"):
            claude_args.append(argument)
        elif "=" not in argument:
            next(argument_iterator, None)
    return claude_args


def _replace_process(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with a program on the same terminal. Raise ShimError if the program
    cannot be started.
    """
    for signal_number in DEFAULT_SIGNALS:
        signal.signal(signal_number, signal.SIG_DFL)
    try:
        os.execve(command[0], command, environment)
    except (OSError, ValueError) as error:
        raise create_spawn_error(command, environment, get_working_directory(), error) from None

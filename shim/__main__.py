"""The entry point of the package. Nothing is imported before the called program is known."""

import os
import sys

# The shim's variables may have this prefix, because some frontends only pass on variables whose
# names begin with CLAUDE_.
FORWARDED_PREFIX = "CLAUDE_"


def main() -> None:
    """Run `shim …`, `shim claude …`, or the installed file with its arguments."""
    for name in [name for name in os.environ if name.startswith(FORWARDED_PREFIX + "SHIM_")]:
        os.environ.setdefault(name.removeprefix(FORWARDED_PREFIX), os.environ[name])
    argv = sys.argv[1:]
    installed_options = {}
    while argv[:1] == ["--installed"] and len(argv) > 1:
        name, _, value = argv[1].partition("=")
        installed_options[name], argv = value, argv[2:]
    if argv[:1] == ["claude"]:
        sys.exit(_run_claude(argv[1:], installed_options))
    if argv[:1] == ["yume-cli"]:
        sys.exit(_run_yume_cli(argv[1:], installed_options))
    from shim.io.signals import reset_inherited_signals

    reset_inherited_signals()
    # Another machine, or a command of this one, waits for the start of these two. They need none of
    # the modules for commands.
    status = None
    if argv[:2] == ["bridge", "relay"]:
        status = _run_relay(argv[2:])
    elif argv[:2] == ["fleet", "dial"]:
        status = _dial(argv[2:])
    if status is not None:
        sys.exit(status)
    from shim.commands.cli import run_shim

    run_shim(argv)


def _run_relay(args: list[str]) -> int | None:
    """Run `shim bridge relay`, and return the exit status. Return None if the arguments need a
    message, such as the help.
    """
    from shim.bridge.machines.relay import run_relay
    from shim.core.bridge.relay import parse_access_options

    access = parse_access_options(args)
    return None if access is None else run_relay(access)


def _dial(args: list[str]) -> int | None:
    """Run `shim fleet dial`, and return the exit status. Return None if the arguments, or packages
    that are not installed, need a message.
    """
    if len(args) > 1 or (args and args[0][:1] in ("", "-")):
        return None
    try:
        from shim.fleet.dial import dial_machine
        from shim.fleet.listing import answer_listing_requests
    except ImportError:
        return None
    return dial_machine(args[0], os.environ) if args else answer_listing_requests(os.environ)


def _run_claude(argv: list[str], installed_options: dict[str, str]) -> int:
    if argv and argv[0] in ("--version", "-v"):
        # The same text as `writer.CLAUDE_VERSION`, without that module's imports, because frontends
        # ask for the version before every session.
        return _print_text("2.1.332 (Claude Code)\n")
    if argv and (argv[0][:1] != "-" or argv[0].startswith("--shim-")):
        # The arguments may name a subcommand. Frontends call subcommands often, so modules that
        # only a turn needs are not imported.
        from shim.commands.claude.subcommands import dispatch_subcommand
        from shim.io.signals import reset_inherited_signals

        reset_inherited_signals()
        status = dispatch_subcommand(argv, installed_options)
        if status is not None:
            return status
    from shim.io.signals import start_collecting_signals

    start_collecting_signals()
    import gc

    # Garbage collection during imports takes a tenth of a turn's start. The session enables it
    # again.
    gc.disable()
    from shim.commands.claude.dropin import main as dropin

    return dropin(argv, installed_options)


def _run_yume_cli(argv: list[str], installed_options: dict[str, str]) -> int:
    from shim.io.signals import start_collecting_signals

    start_collecting_signals()
    import gc

    gc.disable()
    from shim.commands.claude.yume_cli import main as yume_cli

    return yume_cli(argv, installed_options)


def _print_text(text: str) -> int:
    """Write text to stdout. Return the exit status, which is 1 if the text cannot be written, for
    example because the disk is full. A closed stdout is not an error.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # otherwise the interpreter flushes stdout at exit
        return int(not isinstance(error, BrokenPipeError))
    return 0


if __name__ == "__main__":
    main()

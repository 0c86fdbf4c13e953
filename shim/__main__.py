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
    from shim.io.early_signals import reset_inherited_signals

    reset_inherited_signals()
    if argv == ["bridge", "relay"]:
        # Another machine waits for the answer, which needs none of the modules for commands.
        from shim.bridge.machines.relay import run_relay

        sys.exit(run_relay())
    from shim.commands.cli import run_shim

    run_shim(argv)


def _run_claude(argv: list[str], installed_options: dict[str, str]) -> int:
    if argv and argv[0] in ("--version", "-v"):
        # The same text as `writer.CLAUDE_VERSION`, without that module's imports, because frontends
        # ask for the version before every session.
        return _print_text("2.1.332 (Claude Code)\n")
    if argv and (argv[0][:1] != "-" or argv[0].startswith("--shim-")):
        # The arguments may name a subcommand. Frontends call subcommands often, so modules that
        # only a turn needs are not imported.
        from shim.commands.claude.subcommands import dispatch_subcommand
        from shim.io.early_signals import reset_inherited_signals

        reset_inherited_signals()
        status = dispatch_subcommand(argv, installed_options)
        if status is not None:
            return status
    from shim.io import early_signals

    early_signals.start_collecting_signals()
    import gc

    # Garbage collection during imports takes a tenth of a turn's start. The session enables it
    # again.
    gc.disable()
    from shim.commands.claude.dropin import main as dropin

    return dropin(argv, installed_options)


def _run_yume_cli(argv: list[str], installed_options: dict[str, str]) -> int:
    from shim.io import early_signals

    early_signals.start_collecting_signals()
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

"""Registers the `shim cast` commands. The modules of a command are imported when the command runs."""

from typing import Annotated, Any

import typer

from shim.commands.cast.list_command import list_recordings
from shim.commands.cast.stats import print_stats
from shim.commands.completion.values import create_completer
from shim.commands.help.command_groups import TitledCommandGroup
from shim.commands.help.plain_help import SimplifiedHelpCommand
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_list
from shim.recording.completion import complete_recording
from shim.story.terminal.console import (
    JsonOption,
    RecordingArgument,
    check_option_value,
    print_json,
    print_line,
)
from shim.story.terminal.progress import show_progress

app = typer.Typer(
    name="cast",
    help="List, summarize, verify and redact recordings.\n\nExample: shim cast list ~/casts",
    cls=TitledCommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=SimplifiedHelpCommand)
def verify(
    casts: Annotated[
        list[str],
        typer.Argument(
            help="Recordings, or folders of recordings.",
            metavar="CAST",
            autocompletion=complete_recording,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Verify that recordings are complete and unchanged.

    Damaged lines are listed. The exit status is 1 if a recording is damaged or cut off. The
    checksums detect damage; they do not prove who wrote the file.

    Example: shim cast verify ~/casts
    """
    from shim.recording.folders import list_cast_paths, verify_cast_file

    files = list(list_cast_paths(casts))
    rows: list[dict[str, Any]] = []
    counts_by_state: dict[str, int] = {}
    with show_progress("verifying recordings", len(files), prints_output=not as_json) as advance:
        for path in files:
            report = verify_cast_file(path)
            counts_by_state[report.state] = counts_by_state.get(report.state, 0) + 1
            advance()
            if as_json:
                rows.append(report._asdict())
                continue
            print_line(f"{path}: {report.state}, {pluralize(report.lines, 'line')}")
            for finding in report.findings:
                print_line(
                    f"  {_format_line_range(finding['first'], finding['last'])}: "
                    f"{finding['severity']}: {finding['text']}"
                )
            if report.left_out:
                print_line(f"  and {report.left_out} more")
    if as_json:
        print_json(rows)
    elif len(files) > 1:
        print_line(", ".join(f"{count} {state}" for state, count in counts_by_state.items()))
    if counts_by_state.keys() - {"intact"}:
        raise typer.Exit(1)


@app.command(cls=SimplifiedHelpCommand)
def redact(
    cast: RecordingArgument,
    pattern: Annotated[
        list[str] | None,
        typer.Option(help="Also redact matches of this regular expression (Python syntax)."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Also redact this text wherever it occurs.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Replace the recording.")] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Write to this file, which must not exist."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Accept a recording that is damaged or cut off.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Redact secrets in a recording.

    Text that looks like a secret is redacted and counted, and so is text that your own patterns and
    strings match. JSON strings, plain lines and base64 are searched, also for secrets that are
    split over lines (your own: up to 512 characters). A pattern may take at most 5 seconds for one
    text. The new file has its own checksums.

    Example: shim cast redact run.cast --pattern 'ACME-[0-9]{6}' --text 'project moonlight' -o
    clean.cast
    """
    from shim.core.secrets.redactor import describe_redactions
    from shim.recording.folders import redact_cast

    if in_place == (output is not None):
        raise typer.BadParameter("pass either --in-place or -o FILE")
    result = redact_cast(cast, output, as_list(pattern), as_list(text), force=force)
    if as_json:
        print_json(result._asdict())
    else:
        print_line(
            f"{output or cast}: {describe_redactions(dict(result.counts)) or 'no secrets found'}"
        )
        if result.skipped:
            print_line(f"  left out: {pluralize(result.skipped, 'line')} that cannot be read")
        if result.lost:
            print_line(
                "  more secrets are split over lines than one pass can redact: run the command "
                "again on the new recording"
            )
    if result.lost:
        raise typer.Exit(1)


@app.command(cls=SimplifiedHelpCommand)
def fixture(
    cast: RecordingArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="The folder of fixtures; the case is written to VENDOR/NAME in it."
        ),
    ],
    child: Annotated[
        int | None, typer.Option(help="Use the child with this number, if there are several.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option(help="Use the child that was started for this turn.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="The name of the case; by default the name of the recording.")
    ] = "",
    redact: Annotated[
        str | None,
        typer.Option(
            help="casts: redact secrets first; none: keep every byte.",
            autocompletion=create_completer(("casts", "none")),
        ),
    ] = None,
) -> None:
    """Extract a test case from a recording.

    The case contains the output of one child, how the child was started and how it exited, and the
    shim's translation. A recording made with `redact = "none"` needs --redact.

    Example: shim cast fixture run.cast --to fixtures --name 0.87.1-long-reply
    """
    from shim.commands.cast.fixture import extract_fixture
    from shim.core.secrets.redactor import describe_redactions

    check_option_value(("casts", "none"), redact, "--redact")
    result = extract_fixture(
        cast, to, redact=redact, child_number=child, turn_number=turn, name=name
    )
    redaction_text = describe_redactions(dict(result.redacted_counts))
    print_line(f"wrote {result.folder}" + (f"; {redaction_text}" if redaction_text else ""))
    if result.has_golden:
        print_line(
            "next: complete `scenario` and `pins` in case.toml, and check claude.ndjson, "
            "which has the current translation"
        )
    else:
        print_line(
            "next: complete `scenario` and `pins` in case.toml. No claude.ndjson was "
            "written, because the vendor is unknown"
        )


app.command("list", cls=SimplifiedHelpCommand)(list_recordings)
app.command("stats", cls=SimplifiedHelpCommand)(print_stats)


def _format_line_range(first_line: int, last_line: int) -> str:
    if not last_line:
        return "file"
    if first_line == last_line:
        return f"line {first_line}"
    return f"lines {first_line} to {last_line}"

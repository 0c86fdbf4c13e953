"""`shim cast …`: what is done with recordings that are kept. What a command needs is imported when it is run."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from shim.commands.cast.stats import stats_of
from shim.commands.cast.tables import list_casts
from shim.core.reading.account import printable

app = typer.Typer(
    name="cast",
    help="Recordings: check them, blank more, cut fixtures out, list them, add them up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def verify(
    casts: Annotated[list[str], typer.Argument(help="Casts, and folders of casts.", metavar="CAST")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Prove that casts are as they were written, or say between which lines they are not.

    Exit 1 when one is damaged or cut off. It proves damage, not who wrote the file.

    Example: shim cast verify ~/casts
    """
    from shim.recording.folders import cast_paths, verify_cast

    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    damaged = False
    for path in cast_paths(casts):
        checked = verify_cast(path)
        damaged = damaged or checked.state != "intact"
        if as_json:
            rows.append(checked._asdict())
            continue
        _say(console, f"{path}: {checked.state}, {checked.lines} lines")
        for found in checked.findings:
            _say(console, f"  {_where(found['first'], found['last'])}: {found['severity']}: {found['text']}")
        if checked.left_out:
            _say(console, f"  and {checked.left_out} more")
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    if damaged:
        raise typer.Exit(1)


@app.command()
def redact(
    cast: Annotated[str, typer.Argument(metavar="CAST", help="The recording.")],
    pattern: Annotated[
        list[str] | None, typer.Option(help="A regular expression (of Python); what it matches is blanked too.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Words that are blanked wherever they stand.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="The recording itself becomes the new one.")] = False,
    output: Annotated[str | None, typer.Option("-o", "--output", help="The new file, which must not exist.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what is damaged, or cut off.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Blank what looks like a secret in a recording, and what you say is one; count what was blanked.

    Strings of JSON, plain lines and base64 are looked through, also where a secret is split over lines: one of your own
    up to 512 characters. An expression may take 5 seconds for one text. The checkpoints are those of the new bytes.

    Example: shim cast redact run.cast --pattern 'ACME-[0-9]{6}' --text 'project moonlight' -o clean.cast
    """
    from shim.core.secrets.redactor import summary
    from shim.recording.folders import redact_cast

    if in_place == (output is not None):
        raise typer.BadParameter("one of --in-place and -o FILE says where the new recording goes")
    done = redact_cast(cast, output, pattern or [], text or [], force=force)
    if as_json:
        sys.stdout.write(json.dumps(done._asdict(), indent=2) + "\n")
    else:
        console = Console(highlight=False)
        _say(console, f"{output or cast}: {summary(dict(done.counts)) or 'nothing was found'}")
        if done.skipped:
            _say(console, f"  {done.skipped} lines that no reader takes were left out")
        if done.lost:
            _say(console, "  more is split over lines than was kept in mind: do it once more with the new recording")
    if done.lost:
        raise typer.Exit(1)


@app.command()
def fixture(
    cast: Annotated[str, typer.Argument(metavar="CAST", help="The recording.")],
    to: Annotated[str, typer.Option("--to", help="The folder of the fixtures; the case is VENDOR/NAME in it.")],
    child: Annotated[int | None, typer.Option(help="Which child, where there are several.")] = None,
    turn: Annotated[int | None, typer.Option(help="The child that was started for this turn.")] = None,
    name: Annotated[str, typer.Option(help="The case; else it is called as the recording is.")] = "",
    redact: Annotated[str | None, typer.Option(help="casts or none: whether secrets are blanked first.")] = None,
) -> None:
    """Cut a case folder out: what a child printed, how it was started and ended, what the shim says for it.

    A recording that was made with `redact = "none"` is cut only when --redact says how.

    Example: shim cast fixture run.cast --to fixtures --name 0.87.1-long-reply
    """
    from shim.commands.cast.fixture import cut_fixture
    from shim.core.secrets.redactor import summary

    if redact not in (None, "casts", "none"):
        raise typer.BadParameter(f"{redact!r} is none of casts, none", param_hint="--redact")
    made = cut_fixture(cast, to, redact=redact, child=child, turn=turn, name=name)
    console = Console(highlight=False)
    counted = summary(dict(made.redacted))
    _say(console, f"wrote {made.folder}" + (f"; {counted}" if counted else ""))
    if made.golden:
        _say(console, "fill in scenario and pins in case.toml, and read claude.ndjson: it is what the shim says now")
    else:
        _say(
            console, "fill in scenario and pins in case.toml; there is no golden, because its vendor is not known here"
        )


app.command("list")(list_casts)
app.command("stats")(stats_of)


def _where(first: int, last: int) -> str:
    if not last:
        return "file"
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _say(console: Console, text: str) -> None:
    """One line, with nothing in it that a terminal obeys or rich takes for markup."""
    console.print(Text(printable(text).replace("\n", "\\n")), soft_wrap=True)

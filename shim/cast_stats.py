"""`shim cast stats`: recordings added up, for each vendor and each of its tools."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shim.cast_tables import dollars, seconds, table_console

if TYPE_CHECKING:
    from shim.summary import Statistic

BAR = 24  # columns of the longest bar
TOOLS_SHOWN = 20  # of a vendor, in a terminal; --json and --to html have them all


def stats_of(
    casts: Annotated[list[str] | None, typer.Argument(help="Casts, and folders of casts.", metavar="[CAST]...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    to: Annotated[str | None, typer.Option("--to", help="html: a page, on stdout.")] = None,
) -> None:
    """Add recordings up: turns, calls, failures, time, tokens, cost. Without CAST, those of the folder of `record`.

    Example: shim cast stats ~/casts --to html > stats.html
    """
    if to not in (None, "html"):
        raise typer.BadParameter(f"{to!r} is not html", param_hint="--to")
    if to and as_json:
        raise typer.BadParameter("one of them", param_hint="--json, --to")
    if to and sys.stdout.isatty():
        raise typer.BadParameter("a page is nothing for a terminal: `> stats.html`", param_hint="--to")
    from shim.summaries import usual_folder

    together, vendors = added_up(casts or [usual_folder(os.environ)])
    if as_json:
        vendor_reports = {name: statistic.report() for name, statistic in vendors.items()}
        sys.stdout.write(json.dumps({"all": together.report(), "vendors": vendor_reports}, indent=2) + "\n")
    elif to:
        from shim.stats_page import page

        sys.stdout.write(page(together, vendors))
    else:
        _draw(table_console(), together, vendors)


def added_up(paths: list[str]) -> "tuple[Statistic, dict[str, Statistic]]":
    """The statistic of all recordings, and of each vendor's, by name. One recording is read after the other."""
    from shim.summaries import runs_of
    from shim.summary import Statistic, named

    together, vendors = Statistic(), dict[str, Statistic]()
    for run in runs_of(paths):
        together.add(run)
        if run.state != "unreadable":
            vendors.setdefault(named(vendors, run.vendor or "unknown"), Statistic()).add(run)
    return together, dict(sorted(vendors.items()))


def _draw(console: Console, together: "Statistic", vendors: "dict[str, Statistic]") -> None:
    longest = max((statistic.turns.total for statistic in vendors.values()), default=0.0)
    table = _table("vendor", "runs", "turns", "calls", "failed", "denied", "tokens in", "out", "cost", "errors")
    for name, statistic in [*vendors.items(), *([("all", together)] if len(vendors) > 1 else [])]:
        calls, tokens = statistic.calls, statistic.tokens
        given = sum(number for kind, number in tokens.items() if kind != "output_tokens")
        times = statistic.turns
        table.add_row(
            Text(name, style="bold"),
            *_numbers(statistic.runs, times.count, calls.calls, calls.failed, calls.denied, given),
            *_numbers(tokens.get("output_tokens", 0)),
            Text(dollars(statistic.cost)),
            *_numbers(sum(statistic.causes.values())),
            *(Text(seconds(number)) for number in (times.total, times.at(0.5), times.at(0.95))),
            _bar(console, times.total if name in vendors else 0.0, longest),
        )
    console.print(table)
    for name, statistic in vendors.items():
        _draw_tools(console, name, statistic)
    unreadable = together.states.get("unreadable", 0)
    for what, counts in (("errors", together.causes), ("repairs", together.repairs)):
        if counts:
            console.print()
            told = ", ".join(f"{name} {number}" for name, number in sorted(counts.items(), key=lambda each: -each[1]))
            console.print(Text(f"{what}: {told}"), soft_wrap=True)
    cut, damaged = together.states.get("cut off", 0), together.states.get("damaged", 0)
    if cut or damaged or unreadable:
        console.print()
        said = [f"{number} {state}" for state, number in together.states.items() if state != "whole"]
        console.print(Text(f"of {together.runs} recordings {', '.join(said)}: `shim cast list` says which"))


def _draw_tools(console: Console, vendor: str, statistic: "Statistic") -> None:
    from shim.summary import by_time

    tools = by_time(statistic.tools)
    if not tools:
        return
    console.print()
    table = _table(f"tools of {vendor}", "calls", "failed", "denied", "no answer")
    longest = max(calls.times.total for _, calls in tools)
    for name, calls in tools[:TOOLS_SHOWN]:
        times = calls.times
        table.add_row(
            Text(name),
            *_numbers(calls.calls, calls.failed, calls.denied, calls.unanswered),
            *(Text(seconds(number)) for number in (times.total, times.at(0.5), times.at(0.95))),
            _bar(console, times.total, longest),
        )
    console.print(table)
    if len(tools) > TOOLS_SHOWN:
        console.print(Text(f"and {len(tools) - TOOLS_SHOWN} more tools: --json has them all", style="dim"))


def _table(first: str, *names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(Text(first), no_wrap=True, overflow="ellipsis")
    for name in (*names, "time", "median", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop")
    return table


def _numbers(*numbers: int) -> list[Text]:
    return [Text(str(number) if number else "·", style="" if number else "dim") for number in numbers]


def _bar(console: Console, share: float, longest: float) -> Text:
    """How much of the longest; in a pipe the numbers are enough."""
    if not console.is_terminal or longest <= 0:
        return Text("")
    eighths = round(8 * BAR * share / longest)
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan")

"""The page of `shim cast stats --to html`: one file without scripts, which loads nothing.

Names of vendors and tools are shown as text, never as markup (threats: script or HTML in exports).
"""

import os
from collections.abc import Mapping

from markupsafe import Markup

from shim.commands.cast.summary import TOKEN_COLUMNS, Statistic, sort_by_time
from shim.story.export.html import compute_csp_hash, read_asset, render_template
from shim.story.figures import (
    count_cached_tokens,
    count_input_tokens,
    count_output_tokens,
    format_calls,
    format_cost,
    format_duration,
)

TEMPLATE_PATH = os.path.join(os.path.dirname(__file__), "stats.html")
STYLE_FILES = ("look.css", "stats.css")


def render_page(together: Statistic, vendors: Mapping[str, Statistic]) -> str:
    """The page, from the statistic of all recordings and those of the vendors by name."""
    style = b"\n".join(map(read_asset, STYLE_FILES))
    odd = [f"{number} {state}" for state, number in together.states.items() if state != "whole"]
    return render_template(
        TEMPLATE_PATH,
        style=Markup(style.decode()),
        rules=f"default-src 'none'; style-src '{compute_csp_hash(style)}'; base-uri 'none'; form-action 'none'",
        together=together,
        vendors=vendors,
        rows=[*vendors.items(), *([("all", together)] if len(vendors) > 1 else [])],
        recordings=f"{together.runs:,} recordings" + (f"; {', '.join(odd)}" if odd else ""),
        totals=_build_totals(together),
        kinds_of_tokens=[(name, kind) for kind, name in TOKEN_COLUMNS.items()],
        counts=(
            ("Errors by cause", sort_by_count(together.causes)),
            ("Repairs", sort_by_count(together.repairs)),
        ),
        by_time=sort_by_time,
        dollars=format_cost,
        duration=format_duration,
    )


def _build_totals(together: Statistic) -> list[tuple[str, str, str]]:
    """The sums above the tables: a name, a number, and what belongs to it."""
    made, read = together.calls, count_cached_tokens(together.tokens)
    failed = sum(together.causes.values())
    _, _, wrong = format_calls(made.calls, made.failed, made.denied).partition(" ")
    cached = f", {read:,} cached" if read else ""
    return [
        ("Time of the turns", format_duration(together.turns.total), ""),
        ("Turns", f"{together.turns.count:,}", f"{failed:,} failed" if failed else ""),
        ("Tool calls", f"{made.calls:,}", wrong.strip("()")),
        (
            "Tokens",
            f"{count_input_tokens(together.tokens):,} in",
            f"{count_output_tokens(together.tokens):,} out{cached}",
        ),
        ("Cost", format_cost(together.cost) or "–", ""),
    ]


def sort_by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts, the largest first."""
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))

"""Renders the page of `shim cast stats --to html`, a single file without scripts that loads
nothing.

Names of vendors and tools are escaped.
"""

import os
from collections.abc import Mapping

from markupsafe import Markup

from shim.commands.cast.run_summary import (
    TOKEN_COLUMNS,
    RecordedRunStatistics,
    sort_tools_by_total_time,
)
from shim.story.export.html import compute_csp_hash, read_page_asset, render_template
from shim.story.formatting import (
    count_cached_tokens,
    count_input_tokens,
    count_output_tokens,
    format_call_counts,
    format_cost,
    format_duration,
)

TEMPLATE_PATH = os.path.join(os.path.dirname(__file__), "stats.html")
STYLE_FILES = ("look.css", "stats.css")


def render_stats_page(
    total: RecordedRunStatistics, by_vendor: Mapping[str, RecordedRunStatistics]
) -> str:
    """Render the page from the statistics of all recordings and of each vendor by name."""
    style = b"\n".join(map(read_page_asset, STYLE_FILES))
    state_texts = [
        f"{number} {state}" for state, number in total.states.items() if state != "whole"
    ]
    return render_template(
        TEMPLATE_PATH,
        style=Markup(style.decode()),
        rules=f"default-src 'none'; style-src '{compute_csp_hash(style)}'; base-uri 'none'; form-action 'none'",
        together=total,
        vendors=by_vendor,
        rows=[*by_vendor.items(), *([("all", total)] if len(by_vendor) > 1 else [])],
        recordings=f"{total.runs:,} recordings"
        + (f"; {', '.join(state_texts)}" if state_texts else ""),
        totals=_build_totals(total),
        kinds_of_tokens=[(name, kind) for kind, name in TOKEN_COLUMNS.items()],
        counts=(
            ("Errors by cause", sort_counts_descending(total.causes)),
            ("Repairs", sort_counts_descending(total.repairs)),
        ),
        by_time=sort_tools_by_total_time,
        dollars=format_cost,
        duration=format_duration,
    )


def _build_totals(total: RecordedRunStatistics) -> list[tuple[str, str, str]]:
    """Build the totals above the tables, each with a name, a number and a remark."""
    call_counts = total.calls
    cached_tokens = count_cached_tokens(total.tokens)
    failed_turns = sum(total.causes.values())
    _, _, failures_text = format_call_counts(
        call_counts.calls, call_counts.failed, call_counts.denied
    ).partition(" ")
    cached_text = ""
    if cached_tokens:
        cached_text = f", {cached_tokens:,} cached"
    return [
        ("Time of the turns", format_duration(total.turns.total), ""),
        ("Turns", f"{total.turns.count:,}", f"{failed_turns:,} failed" if failed_turns else ""),
        ("Tool calls", f"{call_counts.calls:,}", failures_text.strip("()")),
        (
            "Tokens",
            f"{count_input_tokens(total.tokens):,} in",
            f"{count_output_tokens(total.tokens):,} out{cached_text}",
        ),
        ("Cost", format_cost(total.cost) or "–", ""),
    ]


def sort_counts_descending(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts in descending order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

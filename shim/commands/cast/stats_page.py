"""The page of `shim cast stats --to html`: one file without scripts, which loads nothing.

Names of vendors and tools are shown as text, never as markup (threats: script or HTML in exports).
"""

import os
from collections.abc import Mapping

from shim.commands.cast.summary import Statistic, by_time
from shim.story.export.html import render
from shim.story.figures import dollars, duration, tokens_in, tokens_out

TEMPLATE = os.path.join(os.path.dirname(__file__), "stats.html")


def page(together: Statistic, vendors: Mapping[str, Statistic]) -> str:
    odd = [f"{number} {state}" for state, number in together.states.items() if state != "whole"]
    return render(
        TEMPLATE,
        together=together,
        vendors=vendors,
        recordings=f"{together.runs} recordings" + (f"; {', '.join(odd)}" if odd else ""),
        counts=(("Errors by cause", by_number(together.causes)), ("Repairs", by_number(together.repairs))),
        by_time=by_time,
        dollars=dollars,
        duration=duration,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
    )


def by_number(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))

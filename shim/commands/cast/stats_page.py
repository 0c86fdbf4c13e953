"""The page of `shim cast stats --to html`: one file without a script, that asks no network for anything.

Every word in it went through `text`: what a vendor called its tools is shown, and nothing of it is markup
(threats: script or HTML in exports).
"""

from collections.abc import Iterable, Mapping
from html import escape

from shim.commands.cast.summary import Statistic, Times, by_time
from shim.core.reading.account import printable
from shim.story.figures import dollars, duration, tokens_in, tokens_out

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3b82f6; --bad: #dc2626; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; white-space: nowrap; }
th { font-weight: 500; opacity: .7; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
td.chart { width: 30%; min-width: 8rem; }
svg { display: block; width: 100%; height: .9rem; }
.took { fill: var(--bar); } .bad { fill: var(--bad); }
.bad-text { color: var(--bad); } .none { opacity: .35; }
"""


def page(together: Statistic, vendors: Mapping[str, Statistic]) -> str:
    """The whole page."""
    parts = [
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n",
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
        '<meta name=viewport content="width=device-width, initial-scale=1">\n',
        f"<title>Recordings</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Recordings</h1>\n",
        _states(together),
        "<h2>Vendors</h2>\n",
        _vendors(together, vendors),
    ]
    for name, statistic in vendors.items():
        if statistic.tools:
            parts += [f"<h2>Tools of {text(name)}</h2>\n", _tools(statistic)]
    for title, counts in (("Errors by cause", together.causes), ("Repairs", together.repairs)):
        if counts:
            parts += [f"<h2>{title}</h2>\n", _counts(counts)]
    return "".join([*parts, "</body>\n</html>\n"])


def text(value: object) -> str:
    """Anybody's words, as text of the page."""
    return escape(printable(value), quote=True)


def _states(together: Statistic) -> str:
    odd = [f"{number} {text(state)}" for state, number in together.states.items() if state != "whole"]
    told = f"; {', '.join(odd)}" if odd else ""
    return f"<p>{together.runs} recordings{told}.</p>\n"


def _vendors(together: Statistic, vendors: Mapping[str, Statistic]) -> str:
    heads = ("vendor", "runs", "turns", "calls", "failed", "denied", "tokens in", "tokens out", "cost", "errors")
    longest = max((statistic.turns.total for statistic in vendors.values()), default=0.0)
    rows = []
    for name, statistic in [*vendors.items(), *([("all", together)] if len(vendors) > 1 else [])]:
        calls = statistic.calls
        cells = [
            text(name),
            *map(_number, (statistic.runs, statistic.turns.count, calls.calls)),
            *(_number(number, bad=True) for number in (calls.failed, calls.denied)),
            *map(_number, (tokens_in(statistic.tokens), tokens_out(statistic.tokens))),
            dollars(statistic.cost) or _number(0),
            _number(sum(statistic.causes.values()), bad=True),
            *_times(statistic.turns),
        ]
        share = statistic.turns.total / longest if longest and name in vendors else 0.0
        rows.append((cells, _chart(share)))
    return _table((*heads, "time", "median", "95 %"), rows)


def _tools(statistic: Statistic) -> str:
    tools = by_time(statistic.tools)
    longest = max(calls.times.total for _, calls in tools)
    rows = []
    for name, calls in tools:
        counts = [_number(calls.calls)]
        counts += [_number(number, bad=True) for number in (calls.failed, calls.denied, calls.unanswered)]
        share = calls.times.total / longest if longest else 0.0
        bad = (calls.failed + calls.denied) / calls.calls if calls.calls else 0.0
        rows.append(([text(name), *counts, *_times(calls.times)], _chart(share, bad)))
    return _table(("tool", "calls", "failed", "denied", "no answer", "time", "median", "95 %"), rows)


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    largest = ordered[0][1] or 1
    return _table(("", "times"), [([text(name), str(number)], _chart(number / largest)) for name, number in ordered])


def _table(heads: Iterable[str], rows: Iterable[tuple[list[str], str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in (*heads, ""))
    body = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}<td class=chart>{chart}</td></tr>\n"
        for cells, chart in rows
    )
    return f"<div class=wide><table>\n<tr>{head}</tr>\n{body}</table></div>\n"


def _chart(share: float, bad: float = 0.0) -> str:
    """A bar for a share of the longest; the part of it that failed stands out."""
    width = 100 * min(max(share, 0.0), 1.0)
    failed = width * min(max(bad, 0.0), 1.0)
    bar = f'<rect class=took width="{width:.2f}%" height="100%"/>'
    return (
        f"<svg aria-hidden=true>{bar}"
        + (f'<rect class=bad width="{failed:.2f}%" height="100%"/>' if failed else "")
        + "</svg>"
    )


def _times(times: Times) -> list[str]:
    numbers = (times.total, times.at(0.5), times.at(0.95))
    return [duration(number, fine=True) if number else _number(0) for number in numbers]


def _number(number: int, *, bad: bool = False) -> str:
    if not number:
        return "<span class=none>·</span>"
    return f'<span class="bad-text">{number}</span>' if bad else f"{number:,}"

"""A session as one page: a file that needs no network, no server and nothing but a browser.

The page has four parts that are put together here: the frame with its rules for the browser, the style, the script,
and the session as JSON, which the script draws with text nodes only. The browser is told to run exactly this script
and to apply exactly this style (by their hashes), and to load nothing.
"""

import base64
import hashlib
import html
import os
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from shim import __version__
from shim.core.reading.account import printable
from shim.story.export.gathered import gather
from shim.story.export.sheets import Cut, Exported, Sheet, spans_of
from shim.story.story import Story

ASSETS = os.path.join(os.path.dirname(__file__), "assets")
SCRIPTS = ("elements.js", "markdown.js", "steps.js", "search.js", "replay.js", "page.js")
TIMELINE_SPANS = 1000  # of the picture: a screen has hardly more columns

# What would end the element that the data stands in, or begin another, or is a line's end in old scripts.
ESCAPED = tuple((character.encode(), b"\\u%04x" % ord(character)) for character in "<>&\u2028\u2029")


def export(path: str, write: Callable[[bytes], None], *, redact: bool) -> None:
    """Write a cast as an HTML page. CastError when it cannot be read."""
    exported, story, about, notes = gather(path, redact=redact)
    data = {"about": {**about, "exporter": __version__}, "notes": notes, **_session(exported, story)}
    write(page(exported.title or "A session", data))


def _session(exported: Exported, story: Story) -> dict[str, Any]:
    totals = story.totals
    return {
        "title": exported.title,
        "totals": {
            "turns": totals.turns,
            "calls": totals.calls,
            "failed": totals.failed_calls,
            "denied": totals.denied_calls,
            "errors": totals.errors,
            "cost": totals.cost,
            "duration": round(1000 * totals.duration),
            "tokens": totals.tokens,
            "spent": {name: round(1000 * seconds) for name, seconds in totals.seconds.items()},
            "repairs": {exported.fact(name): count for name, count in totals.repairs.items()},
        },
        "spans": [
            (span.spent, round(1000 * span.begin), round(1000 * span.end), span.step)
            for span in spans_of(story, TIMELINE_SPANS)
        ],
        "steps": [_step(sheet) for sheet in exported.sheets],
    }


def _step(sheet: Sheet) -> dict[str, Any]:
    """A sheet without what is empty; a text that was cut is a list of its head, how much was left out, and its tail."""
    step = {name: _value(getattr(sheet, name)) for name in Sheet.__slots__}
    return {name: value for name, value in step.items() if value or name == "at"}


def _value(value: Any) -> Any:
    if isinstance(value, Cut):
        return list(value) if value.left else value.head
    if isinstance(value, list):
        return [[name, _value(other)] for name, other in value]
    return value


def page(title: str, data: Mapping[str, Any]) -> bytes:
    """The whole file."""
    style, script = _asset("page.css"), b"\n".join(_asset(name) for name in SCRIPTS)
    rules = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    told = orjson.dumps(data)
    for character, escape in ESCAPED:
        told = told.replace(character, escape)
    parts = {
        b"{{rules}}": html.escape(rules).encode(),
        b"{{title}}": html.escape(printable(title)).encode(),
        b"{{style}}": style,
        b"{{data}}": told,
        b"{{script}}": script,
    }
    said, rest = [], _asset("page.html")
    for name, value in parts.items():  # in the order of the frame, and never in what was put into it
        before, _, rest = rest.partition(name)
        said += [before, value]
    return b"".join([*said, rest])


def _asset(name: str) -> bytes:
    with open(os.path.join(ASSETS, name), "rb") as file:
        return file.read()


def _hash(content: bytes) -> str:
    """As a content security policy names a style or a script: by all that stands between its tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()

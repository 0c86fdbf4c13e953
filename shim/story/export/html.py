"""A session as one page: a file that needs no network, no server and nothing but a browser.

A template has the frame, the rules for the browser, the style, the script, and the session as JSON.
The script draws the session with text nodes only; Markdown is parsed here, and is a tree of
elements there. The rules allow exactly this script and this style, by their hashes, and loading
nothing.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shim import __version__
from shim.core.reading.account import escape_control_chars
from shim.story.export.gathered import gather
from shim.story.export.sheets import Cut, Exported, Sheet
from shim.story.markdown_tree import build_tree
from shim.story.story import Story

ASSETS = os.path.join(os.path.dirname(__file__), "assets")
STYLES = ("look.css", "steps.css", "page.css")
SCRIPTS = (
    "elements.js",
    "steps.js",
    "items.js",
    "search.js",
    "replay.js",
    "timeline.js",
    "outline.js",
    "page.js",
)
TIMELINE_COLUMNS = 368  # of two points each, where the page is as wide as it gets
MARKDOWN = frozenset(("text", "thinking", "result"))  # the kinds of steps whose text is a model's
TREE_BYTES = 2_000_000  # of all trees as JSON; later texts are drawn as they were written

# Characters that would end the element of the data or begin another, or that end a line in old
# scripts.
ESCAPED = tuple(
    (character.encode(), b"\\u%04x" % ord(character)) for character in "<>&\u2028\u2029"
)


def export(path: str, write: Callable[[bytes], None], *, redact: bool) -> None:
    """Write a cast as an HTML page. CastError if it cannot be read."""
    exported, story, about, notes = gather(path, redact=redact)
    data = {
        "about": {**about, "exporter": __version__},
        "notes": notes,
        **_session(exported, story),
    }
    write(page(exported.title or "A session", data))


def _session(exported: Exported, story: Story) -> dict[str, Any]:
    totals = story.totals
    return {
        "title": exported.title,
        "totals": {
            **totals_of(story),
            "spent": {name: round(1000 * seconds) for name, seconds in totals.seconds.items()},
            "repairs": {exported.fact(name): count for name, count in totals.repairs.items()},
        },
        "timeline": [
            [round(1000 * share) for share in column]
            for column in story.timeline.compute_columns(TIMELINE_COLUMNS)
        ],
        "steps": list(_steps(exported.sheets)),
    }


def totals_of(story: Story) -> dict[str, Any]:
    """The sums of a session, for a page."""
    totals = story.totals
    return {
        "turns": totals.turns,
        "calls": totals.calls,
        "failed": totals.failed_calls,
        "denied": totals.denied_calls,
        "errors": totals.errors,
        "cost": totals.cost_usd,
        "duration": round(1000 * totals.duration_s),
        "tokens": totals.tokens,
    }


def _steps(sheets: Iterable[Sheet]) -> Iterator[dict[str, Any]]:
    room = TREE_BYTES
    for sheet in sheets:
        step, size = drawn(sheet, room)
        room -= size
        yield step


def drawn(sheet: Sheet, room: int) -> tuple[dict[str, Any], int]:
    """A sheet as the page takes it, without empty fields, and the bytes that its tree took of
    `room`.

    A cut text is a list: its head, the number of characters left out, its tail. A model's text is a
    tree instead; where there is no room, as it was written.
    """
    step = {name: _value(getattr(sheet, name)) for name in Sheet.__slots__}
    size = 0
    if sheet.kind in MARKDOWN and sheet.text:
        del step["text"]
        text = sheet.text.whole()
        trees = build_tree(text) if room > 0 else []
        size = len(orjson.dumps(trees))
        if not trees or size > room:
            trees, size = [["div", {"class": "said"}, text]], 0
        step["trees"] = trees
    return {name: value for name, value in step.items() if value or name == "at"}, size


def _value(value: Any) -> Any:
    if isinstance(value, Cut):
        return list(value) if value.left else value.head
    if isinstance(value, list):
        return [[name, _value(other)] for name, other in value]
    return value


def page(title: str, data: Mapping[str, Any]) -> bytes:
    style, script = (b"\n".join(map(asset, names)) for names in (STYLES, SCRIPTS))
    rules = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    told = orjson.dumps(data)
    for character, escape in ESCAPED:
        told = told.replace(character, escape)
    made = render(
        os.path.join(ASSETS, "page.html"),
        rules=rules,
        title=title,
        style=Markup(style.decode()),
        data=Markup(told.decode()),
        script=Markup(script.decode()),
    )
    return made.encode()


def render(path: str, **parts: object) -> str:
    """A page from the template at `path`. Values are made printable and escaped, unless they are
    Markup.
    """
    folder, name = os.path.split(path)
    return _get_environment(folder).get_template(name).render(**parts) + "\n"


@cache
def _get_environment(folder: str) -> Environment:
    """Return the Jinja environment of a folder, which caches the compiled templates."""
    loader = FileSystemLoader(folder)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_printable
    )


def _printable(value: object) -> str:
    return value if isinstance(value, Markup) else escape_control_chars(value)


def asset(name: str) -> bytes:
    with open(os.path.join(ASSETS, name), "rb") as file:
        return file.read()


def digest(content: bytes) -> str:
    """The hash of a style's or a script's content, as a content security policy has it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()

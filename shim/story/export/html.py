"""Implements `shim export --to html`, which writes a session as one HTML page that needs no network
and no server.

A template contains the page's frame, content security policy, style and script, and the session as
JSON. The script only creates text nodes from the session. Markdown is parsed here and passed to the
script as a tree of elements. The policy contains the hashes of this script and this style, and
allows no others. The page cannot load anything.
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
from shim.core.reading.values import escape_control_chars
from shim.story.export.load import load_recording
from shim.story.export.view_model import SessionExport, SessionStepView, TruncatedText
from shim.story.markdown import build_markdown_tree
from shim.story.model import SessionStepTracker

ASSETS = os.path.join(os.path.dirname(__file__), "assets")
STYLE_FILES = ("look.css", "steps.css", "page.css")
SCRIPT_FILES = (
    "elements.js",
    "steps.js",
    "items.js",
    "search.js",
    "replay.js",
    "timeline.js",
    "outline.js",
    "page.js",
)
TIMELINE_COLUMNS = 368  # two pixels per column at the page's maximum width
# Step kinds whose text comes from a model.
MARKDOWN_KINDS = frozenset(("text", "thinking", "result"))
# The limit for all trees together, as JSON. Texts after this limit are not parsed.
MAX_TREE_BYTES = 2_000_000

# Characters that could end the JSON's script element or start another element, and characters that
# end a line in old versions of JavaScript.
SCRIPT_ESCAPES = tuple(
    (character.encode(), b"\\u%04x" % ord(character)) for character in "<>&\u2028\u2029"
)


def write_recording_export(path: str, write: Callable[[bytes], None], *, redact: bool) -> None:
    """Write a recording as an HTML page. Raise RecordingError if the recording cannot be read."""
    session_export, story, source, notes = load_recording(path, redact=redact)
    data = {
        "about": {**source, "exporter": __version__},
        "notes": notes,
        **_build_session(session_export, story),
    }
    write(render_html_page(session_export.title or "A session", data))


def _build_session(session_export: SessionExport, story: SessionStepTracker) -> dict[str, Any]:
    totals = story.totals
    return {
        "title": session_export.title,
        "totals": {
            **build_session_totals_json(story),
            "spent": {name: round(1000 * seconds) for name, seconds in totals.seconds.items()},
            "repairs": {
                session_export.format_field_value(name): count
                for name, count in totals.repairs.items()
            },
        },
        "timeline": [
            [round(1000 * share) for share in column]
            for column in story.timeline.compute_activity_shares_by_column(TIMELINE_COLUMNS)
        ],
        "steps": list(_build_steps(session_export.steps)),
    }


def build_session_totals_json(story: SessionStepTracker) -> dict[str, Any]:
    """Build the JSON of a session's totals for the page."""
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


def _build_steps(step_views: Iterable[SessionStepView]) -> Iterator[dict[str, Any]]:
    remaining_bytes = MAX_TREE_BYTES
    for step_view in step_views:
        step, tree_bytes = build_step_json(step_view, remaining_bytes)
        remaining_bytes -= tree_bytes
        yield step


def build_step_json(step_view: SessionStepView, max_tree_bytes: int) -> tuple[dict[str, Any], int]:
    """Build the JSON of a step for the page, without empty fields. Return the JSON and the number
    of bytes that its Markdown tree takes of `max_tree_bytes`.

    A shortened text is a list: its head, the number of omitted characters, and its tail. A model's
    text is a tree of elements, or plain text if the tree does not fit.
    """
    step = {name: _encode_value(getattr(step_view, name)) for name in SessionStepView.__slots__}
    tree_bytes = 0
    if step_view.kind in MARKDOWN_KINDS and step_view.text:
        del step["text"]
        text = step_view.text.format_text()
        trees = []
        if max_tree_bytes > 0:
            trees = build_markdown_tree(text)
        tree_bytes = len(orjson.dumps(trees))
        if not trees or tree_bytes > max_tree_bytes:
            trees = [["div", {"class": "said"}, text]]
            tree_bytes = 0
        step["trees"] = trees
    return {name: value for name, value in step.items() if value or name == "at"}, tree_bytes


def _encode_value(value: Any) -> Any:
    if isinstance(value, TruncatedText):
        if value.omitted_chars:
            return list(value)
        return value.head
    if isinstance(value, list):
        return [[name, _encode_value(inner)] for name, inner in value]
    return value


def render_html_page(title: str, data: Mapping[str, Any]) -> bytes:
    style, script = (
        b"\n".join(map(read_page_asset, names)) for names in (STYLE_FILES, SCRIPT_FILES)
    )
    policy = (
        f"default-src 'none'; script-src '{compute_csp_hash(script)}'; "
        f"style-src '{compute_csp_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    json_data = orjson.dumps(data)
    for character, escape in SCRIPT_ESCAPES:
        json_data = json_data.replace(character, escape)
    html = render_template(
        os.path.join(ASSETS, "page.html"),
        rules=policy,
        title=title,
        style=Markup(style.decode()),
        data=Markup(json_data.decode()),
        script=Markup(script.decode()),
    )
    return html.encode()


def render_template(path: str, **parts: object) -> str:
    """Render a page from the template at `path`. All values are escaped, except values of the type
    Markup.
    """
    folder, name = os.path.split(path)
    return _get_environment(folder).get_template(name).render(**parts) + "\n"


@cache
def _get_environment(folder: str) -> Environment:
    """Return the Jinja environment for a folder. The environment caches compiled templates."""
    loader = FileSystemLoader(folder)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_make_printable
    )


def _make_printable(value: object) -> str:
    if isinstance(value, Markup):
        return value
    return escape_control_chars(value)


def read_page_asset(name: str) -> bytes:
    with open(os.path.join(ASSETS, name), "rb") as file:
        return file.read()


def compute_csp_hash(content: bytes) -> str:
    """Return the hash of a style or script for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()

"""`shim cast stats`: the sum of recordings, as a table, as JSON and as a page without scripts."""

import json
import re
from html.parser import HTMLParser

import pytest
from export_helpers import (
    build_assistant_line,
    build_init_line,
    build_result_line,
    build_session,
    build_tool_result_line,
)
from story_builder import build_tool_use

from tests.commands.cast.test_cast_list import COLORS, _terminal, build_header, casts  # noqa: F401 - a fixture
from tests.program.test_threats import ESCAPES, visible

DENIED = {"permission_denials": [{"tool_name": "Bash", "tool_use_id": "d", "tool_input": {}}]}
RUN = (
    (0.0, build_init_line()),
    (1.0, build_assistant_line("m1", build_tool_use("a"), build_tool_use("b", "Read"))),
    (1.5, build_tool_result_line("b", failed=True)),
    (3.0, build_tool_result_line("a")),
    (3.5, build_assistant_line("m2", build_tool_use("d"))),
    (4.5, build_tool_result_line("d", "not allowed", failed=True)),
    (
        5.0,
        build_result_line(
            total_cost_usd=0.5, usage={"input_tokens": 30, "output_tokens": 7}, **DENIED
        ),
    ),
)
FAILED = (
    (0.0, build_init_line()),
    (1.0, build_assistant_line("m1", build_tool_use("a"))),
    (2.0, build_result_line(is_error=True, shim={"cause": "auth", "repairs": {"json": 3}})),
)
MARKUP = '<script>alert(1)</script> <img src=x onerror=alert(1)> " onload="x" & </table>'


@pytest.fixture
def folder(casts):  # noqa: F811
    return casts(
        one=build_session(*RUN),
        two=build_session(*FAILED),
        three=build_session(*RUN, vendor="qwen"),
        cut=build_session(*RUN[:3], end=False),
        none=b"nothing\n",
    )


def read_stats(shim, *args):
    status, stdout, complaint = shim("cast", "stats", *args, "--json")
    assert (status, complaint) == (0, "")
    return json.loads(stdout)


def test_runs_are_summed_per_vendor_and_tool(shim, folder):
    report = read_stats(shim, folder)
    assert report["all"]["runs"] == 5
    assert report["all"]["states"] == {"whole": 3, "cut off": 1, "unreadable": 1}
    pi = report["vendors"]["pi"]
    assert (pi["runs"], pi["turns"]["count"], pi["turns"]["total_s"]) == (3, 2, 7.0)
    assert (pi["cost_usd"], pi["tokens"]["output_tokens"]) == (0.5, 7)
    assert (pi["errors"], pi["repairs"]) == ({"auth": 1}, {"json": 3})
    bash, read = pi["tools"]["Bash"], pi["tools"]["Read"]
    assert (bash["calls"], bash["failed"], bash["denied"], bash["unanswered"]) == (4, 0, 1, 2)
    assert (bash["total_s"], bash["median_s"], bash["p95_s"]) == (3.0, 2.0, 2.0)
    assert (read["calls"], read["failed"], read["total_s"]) == (2, 2, 1.0)
    assert list(report["vendors"]) == ["pi", "qwen"]


def test_piped_output_contains_numbers_without_bars(shim, folder):
    status, stdout, complaint = shim("cast", "stats", folder)
    lines = stdout.decode().splitlines()
    assert (status, complaint) == (0, "")
    assert lines[1].split()[:7] == ["pi", "3", "2", "6", "2", "1", "1"]
    assert ["pi", "30", "·", "·", "7", "$0.5000"] in [line.split() for line in lines]
    assert lines[3].split()[0] == "all"
    assert (
        "tools of pi" in stdout.decode()
        and "█" not in stdout.decode()
        and "\x1b" not in stdout.decode()
    )
    assert "errors: auth 1" in stdout.decode() and "repairs: json 3" in stdout.decode()
    assert (
        "1 cut off, 1 unreadable, of 5 recordings: `shim cast list` shows the state of each"
        in stdout.decode()
    )


@pytest.mark.parametrize("form", [[], ["--json"], ["--to", "html"]])
def test_unreadable_recordings_are_counted(shim, casts, form):  # noqa: F811
    status, stdout, complaint = shim("cast", "stats", casts(none=b"nothing\n", empty=b""), *form)
    assert (status, complaint) == (0, "")
    assert "2 unreadable" in stdout.decode() or json.loads(stdout)["all"]["states"] == {
        "unreadable": 2
    }


def test_terminal_output_contains_bars(shim, folder, monkeypatch):
    monkeypatch.setattr("shim.story.terminal.console.Console", _terminal())
    bars = [
        COLORS.sub("", line).count("█")
        for line in shim("cast", "stats", folder)[1].decode().splitlines()
    ]
    assert max(bars) == 24 and bars[1] == 24 and 0 < bars[2] < 24


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_numbers_are_not_truncated_in_a_terminal(shim, casts, monkeypatch, columns):  # noqa: F811
    folder = casts(one=build_session(*RUN, vendor="a-vendor-with-quite-a-long-name-of-its-own"))
    terminal = _terminal()
    monkeypatch.setattr(
        "shim.story.terminal.console.Console",
        lambda **options: terminal(**options | {"width": columns}),
    )
    lines = [
        COLORS.sub("", line) for line in shim("cast", "stats", folder)[1].decode().splitlines()
    ]
    assert all(len(line) <= columns for line in lines)
    assert lines[1].split()[1:12] == ["1", "1", "3", "1", "1", "·", "5.0", "s", "5.0", "s", "5.0"]
    assert sum("…" in line for line in lines) <= 3, "only the name is cut"


def test_column_that_does_not_fit_the_terminal_is_omitted(shim, casts, monkeypatch):  # noqa: F811
    long = [*RUN[:-1], (40_000.0, RUN[-1][1])]
    terminal = _terminal()
    monkeypatch.setattr(
        "shim.story.terminal.console.Console", lambda **options: terminal(**options | {"width": 60})
    )
    lines = [
        COLORS.sub("", line)
        for line in shim("cast", "stats", casts(one=build_session(*long)))[1].decode().splitlines()
    ]
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].split()[-1] == "errors" and lines[1].split() == [
        "pi",
        "1",
        "1",
        "3",
        "1",
        "1",
        "·",
    ]


def test_html_page_contains_all_statistics_and_no_scripts(shim, folder):
    status, stdout, complaint = shim("cast", "stats", folder, "--to", "html")
    page = stdout.decode()
    assert (status, complaint) == (0, "")
    _check_page(page)
    for phrase in (
        "5 recordings; 1 cut off, 1 unreadable.",
        "Tools of pi",
        "Tools of qwen",
        "Errors by cause",
        "auth",
    ):
        assert phrase in page


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


ELEMENTS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "div",
    "table",
    "tr",
    "th",
    "td",
    "svg",
}
ELEMENTS |= {"rect", "header", "main", "dl", "dt", "dd", "small"}
ATTRIBUTES = {
    "lang",
    "charset",
    "http-equiv",
    "content",
    "name",
    "class",
    "aria-hidden",
    "width",
    "height",
}
ATTRIBUTES |= {"data-ready", "data-head"}


def _check_page(page):
    parsed = Page()
    parsed.feed(page)
    assert {tag for tag, _ in parsed.elements} <= ELEMENTS
    assert {name for _, attributes in parsed.elements for name in attributes} <= ATTRIBUTES
    (policy,) = (attrs["content"] for _, attrs in parsed.elements if "http-equiv" in attrs)
    assert "default-src 'none'" in policy and "script" not in policy
    assert not re.search(r"https?:|url\(|@import", page), "nothing is asked of a network"
    for tag, attrs in parsed.elements:
        if tag == "rect":
            assert re.fullmatch(r"[0-9.]+%", attrs["width"])
    return parsed


def test_markup_and_escapes_in_a_recording_are_escaped(shim, casts, monkeypatch):  # noqa: F811
    hostile_text = f"{MARKUP} {ESCAPES} [red]x[/red]"
    folder = casts(
        one=build_session(
            (0.0, build_init_line()),
            (1.0, build_assistant_line("m1", build_tool_use("a", hostile_text))),
            (2.0, build_tool_result_line("a")),
            (
                3.0,
                build_result_line(
                    is_error=True, shim={"cause": hostile_text, "repairs": {hostile_text: 2}}
                ),
            ),
            **build_header("hi", vendor=hostile_text),
        )
    )
    page = shim("cast", "stats", folder, "--to", "html")[1].decode()
    parsed = _check_page(page)
    visible(page)
    script_texts = [text for text in parsed.texts if "<script>alert(1)</script>" in text]
    assert len(script_texts) == 5, "vendor, heading, tool, cause and repair"
    plain = shim("cast", "stats", folder)[1].decode()
    visible(plain)
    assert "<script>" in plain
    monkeypatch.setattr("shim.story.terminal.console.Console", _terminal())
    visible(COLORS.sub("", shim("cast", "stats", folder)[1].decode()))


@pytest.mark.parametrize("args", [("--to", "pdf"), ("--to", "html", "--json")])
def test_unsupported_output_options_exit_with_status_2(shim, folder, args):
    status, stdout, complaint = shim("cast", "stats", folder, *args)
    assert (status, stdout) == (2, b"") and "hint: " in complaint


def test_missing_recording_argument_is_an_error(shim):
    status, stdout, complaint = shim("cast", "stats")
    assert (status, stdout) == (1, b"") and "no recording was named" in complaint


@pytest.mark.parametrize("command", ["list", "stats"])
def test_help_has_an_example(shim, command):
    status, stdout, _ = shim("cast", command, "--help")
    assert status == 0 and f"Example: shim cast {command}" in stdout.decode()

"""The Markdown export: a golden file that a person has reviewed, and texts that must not change the
page that they are pasted into.
"""

import json
import re

import pytest
import sweeps
from cast_builder import build_case_recording
from fake_secrets import FIRST_SECRETS, SECRETS
from fixture_cases import FIXTURES, list_fixture_cases
from markdown_it import MarkdownIt
from session_builder import (
    SessionBuilder,
    build_full_session,
    build_long_session,
    export_full_session,
)
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.story.export.markdown import (
    MAX_BODY_CHARS,
    OMITTED_NOTE,
    escape_markdown,
    format_code_fence,
    sanitize_markdown,
    write_recording_export,
)
from tests.story.export.test_export_html import ESCAPES, hostile

GOLDEN = FIXTURES / "exports" / "everything.md"

# Text of a model → its sanitized form.
UNWANTED = {
    "<img src=x onerror=alert(1)>": "&#60;img src=x onerror=alert(1)>",
    "</details><script>": "&#60;/details>&#60;script>",
    "<!-- hidden": "&#60;!-- hidden",
    "&#64;octocat &lt;b>": "&#38;#&#8203;64;octocat &#38;lt;b>",
    "![a](https://e.example/pixel.png)": "&#33;[a](https://e.example/pixel.png)",
    "[a](javascript:alert(1))": "[a]&#40;javascript:alert(1))",
    "[a]( data:text/html,x)": "[a]&#40; data:text/html,x)",
    "[a](<javascript:x>)": "[a]&#40;&#60;javascript:x>)",
    "[a]: javascript:alert(1)": "[a]&#58; javascript:alert(1)",
    "thanks @octocat and me@example.org": "thanks @&#8203;octocat and me@&#8203;example.org",
    "fixes #12, o/r#3, GH-4": "fixes #&#8203;12, o/r#&#8203;3, GH&#8203;-4",
    "closes https://github.com/o/r/issues/1": "closes https://redirect.github.com/o/r/issues/1",
    "www.github.com/o/r/pull/2": "www.&#8203;github.com/o/r/pull/2",
    r"\<b> \@octocat \\ \a \`x": "&#60;b> &#64;&#8203;octocat &#92; &#92;a &#96;x",
    "an open ` tick and ``` three": "an open &#96; tick and &#96;&#96;&#96; three",
}
# Texts of a model that are not changed.
SAFE_MARKDOWN = [
    '# A *title*\n\n1. one\n   - **two** `x = "<b>" @me #1`\n\n| a | b |\n| --- | --- |\n| 1 | ``a`b`` |',
    "[the guide](https://example.org/a_b?c=1#d)",
    "> quoted\n\n---\n\n~~gone~~ a > b",
]


@pytest.fixture
def export_markdown(tmp_path):
    """Export a cast as Markdown."""

    def call(cast: bytes, *, redact: bool = True) -> str:
        path = tmp_path / "run.cast"
        path.write_bytes(cast)
        chunks: list[bytes] = []
        write_recording_export(str(path), chunks.append, redact=redact)
        return b"".join(chunks).decode()

    return call


def parse_markdown(text):
    """Parse Markdown like a web page does. Return its blocks and their inline elements."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    return blocks, [child for block in blocks for child in block.children or ()]


def test_full_session_matches_the_golden_file():
    assert export_full_session() == GOLDEN.read_bytes()


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_every_fixture_exports_markdown(export_markdown, case):
    assert export_markdown(build_case_recording(case)).startswith("# ")


@loop_over_rows(("text", "expected"), UNWANTED.items())
def test_unsafe_markdown_is_escaped(text, expected):
    assert sanitize_markdown(text) == expected


@pytest.mark.parametrize("text", SAFE_MARKDOWN)
def test_safe_markdown_is_unchanged(text):
    assert sanitize_markdown(text) == text


OURS = re.compile(r"</?(details|summary|b|code|sub)( open)?>")


@pytest.mark.parametrize(
    "text",
    [
        *UNWANTED,
        "```",
        "~~~~\n```\n</details>",
        "- a\n  ```\n b",
        "> ```\n",
        "a\n\n</details>\n\n",
        ESCAPES,
    ],
)
def test_hostile_text_produces_no_html_no_image_and_no_open_fence(export_markdown, text):
    output = export_markdown(hostile(text))
    blocks, inner = parse_markdown(output)
    for token in (*blocks, *inner):
        assert token.type != "image"
        if token.type.startswith("html"):
            assert "<" not in OURS.sub("", token.content), token.content
        if token.type == "link_open":
            assert str(token.attrs["href"]).startswith("https://")
    assert blocks[-1].type == "table_close", "the end stands inside of something"


@pytest.mark.parametrize(
    "text", ["@octocat", "#12", "GH-7", "closes https://github.com/o/r/issues/1"]
)
def test_mentions_and_issue_references_are_disabled(export_markdown, text):
    for token in parse_markdown(export_markdown(hostile(text)))[1]:
        if token.type == "text":
            assert not re.search(r"@\w|#\d|GH-\d|://(www\.)?github\.com", token.content), (
                token.content
            )


@loop_over_rows("text", ["```", "````\n```", "a", "~~~", "``````` x"])
def test_fence_is_longer_than_any_fence_in_its_text(text):
    (token,) = parse_markdown(format_code_fence(text))[0]
    assert (token.type, token.content) == ("fence", f"{text}\n")


@loop_over_rows(
    "text", ["*a* _b_ `c` [d](https://e.example)", "<b>", "a|b", "&amp;", "$x$", "\\*", "a\n\nb"]
)
def test_escaped_text_is_a_single_line_without_markup(text):
    _, inline, _ = MarkdownIt("commonmark").parse(escape_markdown(text))[:3]
    visible_text = "".join(child.content for child in inline.children)
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    assert visible_text.replace("\u200b", "") == " ".join(text.split())


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS if sweeps.full else FIRST_SECRETS)
def test_secrets_are_redacted_in_the_description_unless_disabled(
    export_markdown, kind, before, secret, suffix
):
    cast = hostile(f"x {before}{secret}{suffix} y")
    output = export_markdown(cast)
    for form in (secret, json.dumps(secret)[1:-1]):
        assert form not in output
    assert "[REDACTED:" in output
    assert (secret if "\n" not in secret else secret.split("\n")[1]) in export_markdown(
        cast, redact=False
    )


@pytest.mark.parametrize(
    "character", ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u200f"]
)
def test_control_characters_are_not_in_the_output(export_markdown, character):
    assert character not in export_markdown(hostile(f"a{character}b"))


def test_long_session_fits_the_limit_and_notes_omitted_parts(export_markdown):
    output = export_markdown(build_long_session().build_recording())
    assert len(output) <= MAX_BODY_CHARS
    assert OMITTED_NOTE in output
    assert output.endswith("|\n")


def test_truncated_recording_has_a_note(export_markdown):
    recording = build_full_session().build_recording()
    assert "> **Note:** The recording was cut off" in export_markdown(
        recording[: len(recording) // 2]
    )


def test_nested_subagent_is_a_nested_quote(export_markdown):
    script = SessionBuilder().add_prompt("x").add_init()
    outer = script.add_call("Task", {"prompt": "a"})
    inner = script.add_call("Task", {"prompt": "b"}, outer)
    script.add_text("deep\n\n```\ncode\n```", inner)
    script.add_tool_result(inner, "done", outer).add_tool_result(outer, "done")
    output = export_markdown(script.add_result("x").build_recording())
    assert "> > deep\n> >\n> > ```\n> > code\n> > ```\n" in output

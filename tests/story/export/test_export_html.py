"""The contents of an exported HTML page. tests/e2e tests the page in a browser."""

import base64
import hashlib
import json
import os
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
import sweeps
from cast_builder import build_case_recording
from fake_secrets import FIRST_SECRETS, SECRETS
from fixture_cases import list_fixture_cases
from session_builder import SessionBuilder, build_full_session, build_long_session
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.story.events import SessionStep, SessionStepChange
from shim.story.export.html import (
    ASSETS,
    SCRIPT_FILES,
    STYLE_FILES,
    TIMELINE_COLUMNS,
    write_recording_export,
)
from shim.story.export.view_model import MAX_TEXT_CHARS, MIN_TEXT_CHARS, SessionExport

ESCAPES = "\x1b]52;c;ZXZpbA==\x07 \x1b[31mred\x1b[0m \x9b2J \u202egnp.exe \x7f"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]><img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) <a href='javascript:alert(1)'>x</a>",
    "![p](https://evil.example/pixel.png) <link rel=stylesheet href=//evil.example>",
    "{{script}} {{style}} {{data}} {{rules}}",
    "a\u2028b\u2029c &amp; &lt;",
    ESCAPES,
]


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and the text of its scripts, styles and
    title.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._open = ""
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in self.inside else ""
        if self._open:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside[self._open][-1] += data

    @property
    def session(self) -> dict[str, Any]:
        session_data: dict[str, Any] = json.loads(self.inside["script"][0])
        return session_data

    def steps(self, kind: str) -> list[dict[str, Any]]:
        return [step for step in self.session["steps"] if step["kind"] == kind]


@pytest.fixture
def export_page(tmp_path):
    """Export a cast as a page."""

    def call(cast: bytes, *, redact: bool = True) -> Page:
        path = tmp_path / "run.cast"
        path.write_bytes(cast)
        chunks: list[bytes] = []
        write_recording_export(str(path), chunks.append, redact=redact)
        return Page(b"".join(chunks))

    return call


def hostile(text: str) -> bytes:
    """Build a recording with `text` in every place that a vendor controls."""
    script = SessionBuilder().add_prompt(text).add_init(model=text, cwd=text)
    script.add_message({"type": "thinking", "thinking": text}, {"type": "text", "text": text})
    call = script.add_call(text, {"command": text, text: text, "deep": {text: [text]}})
    script.add_tool_result(call, text, failed=True)
    edit = script.add_call(
        "Edit", {"file_path": text, "old_string": text, "new_string": f"{text}."}
    )
    script.add_permission_request(
        edit, text, {"command": text}, 1.0, {"behavior": text, "message": text}
    )
    script.add_tool_result(edit, text, tool_use_result={"originalFile": text})
    script.add_line(
        "assistant",
        error="x",
        message={"id": "e", "model": "<synthetic>", "content": [{"type": "text", "text": text}]},
    )
    script.add_note(text, sample=text).add_line("system", subtype=text, text=text)
    return script.add_result(
        text, is_error=True, errors=[text], shim={"repairs": {text: 1}, "vendor": text}
    ).build_recording(vendor=text, vendor_version=text, cwd=text, shim=text, started=text)


# -- a single file with a single script ------------------------------------------------------------


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_csp_allows_only_the_embedded_script_and_style(export_page):
    page = export_page(build_full_session().build_recording())
    _, script = page.inside["script"]
    (style,) = page.inside["style"]
    (rules,) = [
        attributes["content"] for tag, attributes in page.elements if attributes.get("http-equiv")
    ]
    assert dict(rule.strip().split(" ", 1) for rule in str(rules).split(";")) == {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert [attributes for tag, attributes in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]


def test_page_loads_no_external_resources(export_page):
    page = export_page(build_full_session().build_recording())
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "form", "base"), tag
        for name in ("src", "href", "action", "data"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:,")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (
            tag,
            attributes,
        )
    style, script = page.inside["style"][0], page.inside["script"][1]
    assert "url(" not in style and "@import" not in style
    for token in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttp",
        "new Function",
    ):
        assert token not in script


def test_assets_contain_no_closing_tags_or_comments():
    for name in (*SCRIPT_FILES, *STYLE_FILES):
        with open(os.path.join(ASSETS, name), encoding="utf-8", newline="") as file:
            content = file.read()
        assert "</" not in content and "<!--" not in content and "\r" not in content, name


# -- text of a vendor is data ----------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_not_change_the_page_structure(export_page, text):
    calm, page = export_page(hostile("calm")), export_page(hostile(text))
    assert page.elements == calm.elements
    assert page.inside["style"] == calm.inside["style"]
    assert page.inside["script"][1:] == calm.inside["script"][1:]


@pytest.mark.parametrize("text", HOSTILE)
def test_embedded_json_escapes_html_characters_of_the_text(export_page, text):
    page = export_page(hostile(text))
    raw = page.inside["script"][0]
    assert not set("<>&\u2028\u2029") & set(raw)
    (prompt,) = page.steps("prompt")
    prompt_text = prompt["text"]
    assert (
        prompt_text.replace("\\x1b", "\x1b")
        .replace("\\x07", "\x07")
        .replace("\\x9b", "\x9b")
        .replace("\\u202e", "\u202e")
        .replace("\\x7f", "\x7f")
        .replace("\\u2028", "\u2028")
        .replace("\\u2029", "\u2029")
        == text
    )


@pytest.mark.parametrize(
    "character", ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u200f"]
)
def test_control_characters_are_not_in_the_page(export_page, character):
    page = export_page(hostile(f"a{character}b"))
    assert character not in page.data.decode()
    page_text = json.dumps(page.session, ensure_ascii=False)
    assert character not in page_text and character not in json.loads(json.dumps(page_text))


def test_markup_in_the_prompt_is_text_in_the_title(export_page):
    page = export_page(
        SessionBuilder()
        .add_prompt("</title><script>alert(1)</script>")
        .add_init()
        .add_result("x")
        .build_recording()
    )
    assert page.inside["title"] == ["</title><script>alert(1)</script>"]
    assert [tag for tag, _ in page.elements].count("script") == 2


# -- secrets ---------------------------------------------------------------------------------------


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS if sweeps.full else FIRST_SECRETS)
def test_secrets_are_redacted_in_the_page_unless_disabled(
    export_page, kind, before, secret, suffix
):
    cast = hostile(f"x {before}{secret}{suffix} y")
    page_text = export_page(cast).data.decode()
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3]):
        assert form not in page_text
    assert "[REDACTED:" in page_text
    unredacted_page = export_page(cast, redact=False)
    assert secret in unredacted_page.steps("prompt")[0]["text"]


def test_streamed_secret_is_redacted_completely(export_page):
    secret = next(secret for kind, _, secret, _ in SECRETS if kind == "api-key")
    script = SessionBuilder().add_prompt("x").add_init()
    script._add_stream_event(type="message_start", message={"id": "m"})
    for at in range(0, len(secret), 7):
        script._add_stream_event(
            type="content_block_delta", delta={"type": "text_delta", "text": secret[at : at + 7]}
        )
    script._add_stream_event(type="content_block_stop")
    page = export_page(script.add_result("x").build_recording())
    assert page.steps("text")[0]["trees"] == [["p", "[REDACTED:api-key]"]]
    assert "1 secret was redacted: 1 api-key." in page.session["notes"]


# -- the shown steps -------------------------------------------------------------------------------


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_every_fixture_exports_a_page(export_page, case):
    page = export_page(build_case_recording(case))
    steps = page.session["steps"]
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["at"] <= later["at"] for step, later in pairwise(steps))


def test_page_contains_every_kind_of_step(export_page):
    page = export_page(build_full_session().build_recording())
    kinds = {step["kind"] for step in page.session["steps"]}
    assert kinds == {
        "prompt",
        "start",
        "thinking",
        "text",
        "call",
        "question",
        "answer",
        "note",
        "error",
        "result",
    }
    outcomes = {(call["name"], call["outcome"]) for call in page.steps("call")}
    assert {("Read", "ok"), ("Bash", "failed"), ("Bash", "denied"), ("Write", "ok")} <= outcomes
    (edit,) = [call for call in page.steps("call") if call["name"] == "Edit"]
    assert edit["diff"].split("\n") == [
        "@@ -5,2 +5,3 @@",
        "+    authors = {author.id: author for author in db.authors(posts)}",
        "     for post in posts:",
        "-        post.author = db.author(post.author_id)",
        "+        post.author = authors[post.author_id]",
    ]
    assert [name for name, _ in edit["fields"]] == ["file_path"]
    assert page.session["totals"]["repairs"] == {"glued_line": 1}
    assert page.session["title"] == "Make the list of posts faster."


def test_subagent_steps_are_nested_under_their_call(export_page):
    page = export_page(build_full_session().build_recording())
    (task,) = [call for call in page.steps("call") if call["name"] == "Task"]
    nested = [step for step in page.session["steps"] if step.get("depth")]
    assert {step["above"] for step in nested} == {task["number"]}
    assert len(nested) == 3


def test_streamed_text_contains_its_growth(export_page):
    page = export_page(build_full_session().build_recording())
    growth = page.steps("text")[0]["growth"]
    assert growth == sorted(growth) and growth[-1][1] == 1000
    assert growth[-1][0] <= page.steps("text")[0]["until"] - page.steps("text")[0]["at"]


def test_truncated_recording_is_exported_with_a_note(export_page):
    recording = build_full_session().build_recording()
    for size in range(len(recording) // 7, len(recording), len(recording) // 7):
        page = export_page(recording[:size])
        assert page.session["notes"][0].startswith("The recording was cut off")
        assert page.session["steps"]
    assert export_page(recording).session["notes"] == []


# -- limits ----------------------------------------------------------------------------------------


def test_long_output_is_cut_in_the_middle_with_a_count(export_page):
    script = SessionBuilder().add_prompt("x").add_init()
    call = script.add_call("Bash", {"command": "yes"})
    script.add_tool_result(call, "begin" + "y" * 100_000 + "end")
    page = export_page(script.add_result("x").build_recording())
    (step,) = page.steps("call")
    head, omitted_count, tail = step["output"]
    assert head.startswith("begin") and tail.endswith("end")
    assert (len(head) + len(tail), omitted_count) == (MAX_TEXT_CHARS, 100_008 - MAX_TEXT_CHARS)
    assert page.session["notes"] == [
        "Texts are shortened to 20,000 characters; each shortened text states how many were omitted."
    ]


def test_markdown_above_the_size_limit_is_displayed_as_source(export_page, monkeypatch):
    monkeypatch.setattr("shim.story.export.html.MAX_TREE_BYTES", 50)
    page = export_page(
        SessionBuilder()
        .add_prompt("x")
        .add_init()
        .add_text("- a\n" * 100)
        .add_text("*b*")
        .add_result("y")
        .build_recording()
    )
    trees = [step["trees"] for step in page.steps("text")]
    assert trees == [[["div", {"class": "said"}, "- a\n" * 100]], [["p", ["em", "b"]]]]


def test_a_session_of_2000_events_is_a_page_of_less_than_5_mb(export_page):
    page = export_page(build_long_session().build_recording())
    assert len(page.data) < 5_000_000
    assert len(page.session["timeline"]) == TIMELINE_COLUMNS
    assert len(page.steps("call")) == 500


def test_large_session_shortens_outputs_and_preserves_all_calls(export_page):
    script = SessionBuilder().add_prompt("x").add_init()
    for number in range(3000):
        call = script.add_call("Bash", {"command": f"{number}"})
        script.advance_time(0.1).add_tool_result(call, f"{number} " * 1000)
    page = export_page(script.add_result("x").build_recording())
    assert len(page.data) < 5_500_000
    outputs = [step["output"] for step in page.steps("call")]
    assert len(outputs) == 3000
    assert all(
        MIN_TEXT_CHARS <= len(head) + len(tail) <= MAX_TEXT_CHARS for head, _, tail in outputs
    )
    assert all(
        len(head) + omitted_count + len(tail) == 1000 * (len(str(number)) + 1)
        for number, (head, omitted_count, tail) in enumerate(outputs)
    )


def test_every_turn_has_prompt_and_result_if_calls_exceed_the_limit(export_page, monkeypatch):
    small = partial(SessionExport, max_chars=20_000)
    monkeypatch.setattr("shim.story.export.load.SessionExport", small)
    script = SessionBuilder()
    for turn in range(5):
        script.add_prompt(f"turn {turn}").add_init()
        for number in range(60):
            script.advance_time(0.1).add_tool_result(
                script.add_call("Bash", {"command": f"{number}"}), "done"
            )
        script.add_result("x")
    page = export_page(script.build_recording())
    assert len(page.steps("call")) < 300
    assert len(page.steps("prompt")) == len(page.steps("result")) == 5


def test_permission_prompt_contains_all_input_fields():
    more = {f"key {number}": "x" for number in range(200)} | {"last": "EVIL"}
    edit = {
        "file_path": "a",
        "old_string": "x",
        "new_string": "EVIL",
        "edits": [{"old_string": "a", "new_string": "b"}],
    }
    for name, tool_input in (("Edit", edit), ("Bash", more)):
        exported, step = (
            SessionExport(),
            SessionStep(1, "question", 0.0, name=name, input=tool_input),
        )
        exported.add_step_change(0, SessionStepChange("begin", step))
        exported.add_step_change(0, SessionStepChange("end", step))
        assert any("EVIL" in value.head for _, value in exported.steps[0].fields)

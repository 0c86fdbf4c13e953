"""Why another vendor may answer, and how that is told; in what every vendor here was recorded to print."""

import json

import pytest
from box import START, ndjson
from support import Stage, fixture_cases, translate_case
from sweeps import over

from shim.conversation.drivers.open_translation import open_translation
from shim.core.claude.pen import ClaudePen
from shim.core.errors import REASON_CHARACTERS, listed, read_tried, tried
from shim.core.turn.result import Exit
from shim.core.turn.terms import Terms
from shim.core.vendor.translation import Translation
from shim.core.vendor.translator import Translator
from shim.core.yume.pen import YumePen


def unanswered(case):
    """What the translation of a case says of who may answer in its place, and whether anything was said in it."""
    translation = open_translation(case.vendor, partial=False, stable=True)
    translation.feed(case.data)
    why = translation.unanswered(case.exit, case.stderr)
    return why, translation.turn.spoken


REFUSED = [
    case
    for case in fixture_cases()
    if not case.passthrough and translate_case(case, False)[1].turn.cause in ("auth", "rate_limit")
]


@over(REFUSED)
def test_whoever_is_not_let_in_before_it_said_a_word_may_be_answered_for(case):
    cause = translate_case(case, False)[1].turn.cause
    why, spoken = unanswered(case)
    assert (why is None) is spoken
    assert why is None or (why.vendor, why.cause) == (case.vendor, cause)


WHOLE = [case for case in fixture_cases() if not case.passthrough and not translate_case(case, False)[1].turn.is_error]


@over(WHOLE)
def test_nobody_answers_for_a_vendor_that_did(case):
    assert unanswered(case)[0] is None


@pytest.mark.parametrize(
    ("child_exit", "said", "cause"),
    [
        (Exit(code=1), b"", "exit_code"),
        (Exit(code=0), b"", "truncated"),
        (Exit(signal="SIGSEGV"), b"", "signal"),
        (Exit(code=0), b"usage: demo\n", "protocol"),
        (Exit(code=1), ndjson(START | {"session": "s"}).encode(), None),
        (None, b"", None),
    ],
)
def test_who_dies_before_its_stream_begins_could_not_start(child_exit, said, cause):
    translation = open_translation("demo", partial=False, stable=True)
    translation.feed(said)
    why = translation.unanswered(child_exit, "")
    assert (why and why.cause) == cause


def test_the_words_are_one_line_that_no_terminal_obeys():
    it = tried("qwen", "auth", "one\n two\x1b[31m" + "x" * 1000)
    assert len(it.reason) == REASON_CHARACTERS and it.reason.startswith("one two") and it.reason.endswith("…")
    assert "\x1b" not in it.reason
    assert json.loads(json.dumps(it.fact())) == it._asdict()


def test_a_list_names_each_and_why():
    assert listed([tried("a", "auth", "x"), tried("b", "not_found", "y")]) == (
        "\na did not answer either (auth): x\nb did not answer either (not_found): y"
    )
    assert listed([]) == ""


def test_a_recording_may_say_anything_of_it():
    assert read_tried(tried("qwen", "auth", "x").fact()) == tried("qwen", "auth", "x")
    assert read_tried({"cause": ["a"], "vendor": "q" * 99}) == tried("q" * 32, "vendor_error", "None")


def test_what_another_vendor_said_of_itself_is_not_the_next_ones():
    stage = Stage()
    stage.turn.started(session_id="s", model="m1", tools=["Read"], vendor_version="1")
    stage.finish()
    then = stage.turn.next(Terms(vendor="another", fresh_id="f"))
    assert (then.facts, then.model) == ({}, "")
    assert stage.turn.next(stage.turn.terms).facts["model"] == "m1"


# -- the pens hold back what may be another's -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ClaudePen, lambda identity: YumePen(identity, history=ClaudePen(identity))])
def test_what_a_pen_holds_is_said_when_it_is_released_or_never(make):
    pen = make("00000000-0000-4000-8000-")
    terms = Terms(vendor="demo", fresh_id="00000000-0000-4000-8000-000000000000")
    for dropped in (True, False):
        pen.hold()
        translation = Translation(Translator, terms, pen)
        translation.turn.started(session_id="s", model=f"model-{dropped}")
        translation.turn.say("words")
        assert pen.take() == b"" and (pen.history is None or pen.history.take() == b"")
        if dropped:
            pen.drop()
    pen.release()
    said = pen.take()
    kept = said if pen.history is None else pen.history.take()
    for lines in (said, kept):
        assert b"model-False" in lines and b"model-True" not in lines and lines.count(b'"init"') == 1
    assert b"words" in said


def test_the_end_of_a_turn_is_held_by_nobody():
    translation = open_translation("demo", partial=False, stable=True)
    translation.pen.hold()
    translation.feed(ndjson(START | {"session": "s"}).encode())
    assert b'"init"' in translation.close(None)

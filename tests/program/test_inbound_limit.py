"""`max_inbound_bytes`: a longer line is skipped and reported, whichever program prints it."""

import json
import subprocess

import pytest
from bench_inbound_limit import LINES
from box import ASK, CONVERSE, END, START, build_text_event, format_ndjson
from stream_invariants import check_turns

from shim.conversation.drivers import open_translation
from tests.conversation.test_conversation import user
from tests.conversation.test_passthrough_loop import INIT, ODD, RESULT
from tests.conversation.test_persistent_driver import HELLO, result, says
from tests.conversation.test_persistent_driver import INIT as QWEN

LIMIT = 20_000
LONG = build_text_event("x" * 3 * LIMIT)


@pytest.fixture
def limited_box(box):
    box.write_settings(f"max_inbound_bytes = {LIMIT}")
    return box


def long_line(done):
    """Return how many long lines the repair report has."""
    return done.result["shim"]["repairs"].get("line_too_long")


def test_line_of_the_child_above_the_limit_is_skipped_and_the_turn_succeeds(limited_box):
    fake = limited_box.create_fake(
        [
            "out",
            format_ndjson(START, build_text_event("One. "), LONG, build_text_event("Two."), END),
        ]
    )
    done = limited_box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=fake)
    assert (done.status, done.result["result"], long_line(done)) == (0, "One. Two.", 1)


def test_line_of_the_child_below_the_limit_is_not_skipped(limited_box):
    long_text = "x" * (LIMIT - 100)
    fake = limited_box.create_fake(["out", format_ndjson(START, build_text_event(long_text), END)])
    done = limited_box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=fake)
    assert (done.result["result"], long_line(done)) == (long_text, None)


def test_diagnostics_contain_the_head_of_a_skipped_line(limited_box, shim, monkeypatch):
    monkeypatch.setattr(open_translation, "MAX_LINE_BYTES", LIMIT)  # `translate` reads no settings.
    path = limited_box.path / "stream"
    path.write_text(
        format_ndjson(START, build_text_event("Hello."), END) + "x" * 3 * LIMIT, encoding="utf-8"
    )
    _, _, complaint = shim("translate", "demo", str(path), "--account")
    assert json.loads(complaint)["repairs"] == {"line_too_long": {"count": 1, "first": "x" * 200}}


def test_skipped_lines_of_a_persistent_child_are_reported_with_their_turn(limited_box):
    long = says("x" * 3 * LIMIT)
    child = limited_box.create_fake(
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(QWEN, long, says("One."), result("One."))],
        ["hear", "two"],
        ["out", format_ndjson(QWEN, says("Two."), result("Two."))],
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with limited_box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        done = running.end_input()
    first, second = [line for line in done.lines if line["type"] == "result"]
    assert (first["shim"]["repairs"], second["shim"]["repairs"]) == ({"line_too_long": 1}, {})


def test_claude_line_above_the_limit_is_skipped(limited_box):
    long = ODD.replace("caf", "x" * 3 * LIMIT)
    child = limited_box.create_fake(
        ["hear", "one"], ["out", format_ndjson(INIT) + long + ODD + format_ndjson(RESULT)]
    )
    environment = {"SHIM_VENDOR": "claude", "SHIM_BIN": child}
    with limited_box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("one"))
        done = running.end_input()
    assert done.stdout.decode() == format_ndjson(INIT) + ODD + format_ndjson(RESULT)


def test_stdin_line_above_the_limit_is_skipped_with_a_warning(limited_box):
    child = limited_box.create_fake(
        HELLO, ["hear", "two"], ["out", format_ndjson(QWEN, says("Two."), result("Two."))]
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with limited_box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("x" * 3 * LIMIT), user("two"))
        done = running.end_input()
    assert done.result["result"] == "Two."
    assert "skipped 1 lines of stdin that were too long (max_inbound_bytes)" in done.stderr


def test_prompt_above_the_limit_is_refused(limited_box):
    done = limited_box.run_claude("-p", *ASK[2:], stdin=b"word " * LIMIT, SHIM_VENDOR="demo")
    assert (done.status, done.cause) == (1, "refused")
    assert f"larger than {LIMIT} bytes" in done.stderr and "max_inbound_bytes" in done.stderr


@pytest.mark.parametrize("name", LINES)
def test_large_line_of_a_vendor_is_complete_in_short_output_lines(box, name):
    """The test runs with 1 MB what `bench_inbound_limit.py` measures with 200 MB."""
    path = box.path / "stream"
    with path.open("wb") as file:
        file.writelines(LINES[name](1))
    fake = box.write_program("fake", f"exec cat {path}\n")
    done = box.run_claude(*ASK, SHIM_VENDOR=name.partition("-")[0], SHIM_BIN=fake)
    check_turns(done.stdout + b'{"type":"message_stop"}\n' * (done.terminator is None), False)
    assert max(map(len, done.stdout.split(b"\n"))) <= 100_000
    if name == "qwen-tool":
        (line,) = [line for line in done.lines if line["type"] == "user"]
        assert "the full text is in" in line["message"]["content"][0]["content"]
    else:
        blocks = [
            line["message"]["content"][0] for line in done.lines if line["type"] == "assistant"
        ]
        assert sum(len(block.get("text", "")) for block in blocks) == 1_000_000


def test_text_of_five_megabytes_is_complete(box):
    """Torture: pi-huge-20mb-line."""
    path = box.path / "stream"
    with path.open("wb") as file:
        file.writelines(LINES["pi"](5))
    done = box.run_claude(
        *ASK, SHIM_VENDOR="pi", SHIM_BIN=box.write_program("fake", f"exec cat {path}\n")
    )
    blocks = [line["message"]["content"][0] for line in done.lines if line["type"] == "assistant"]
    assert sum(len(block["text"]) for block in blocks) == 5_000_000
    assert (done.status, done.result["shim"]["repairs"]) == (0, {})

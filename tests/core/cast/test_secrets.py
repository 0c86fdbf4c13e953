"""Recordings contain no secret, neither in one string nor across strings, lines and chunks."""

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cast_builder import HEADER, read_cast, stream_of
from fake_secrets import INNOCENT, SECRETS, generate_secret
from fixture_cases import Case, list_fixture_cases
from hypothesis import example, given
from hypothesis import strategies as st
from sweeps import choose_small_cases, loop_over_cases, loop_over_rows

from shim.core.cast.encoder import MAX_RECORD_BYTES, RecordingEncoder
from shim.core.cast.secrets import MAX_JSON_PATHS, MAX_TEXT_JOINERS, RecordingRedactor
from shim.core.cast.text_joiner import find_secret_spans
from shim.recording.rewrite import redact_split_secrets

SECRET = f"sk-ant-api03-{generate_secret(80)}"


def record_streams(
    folder: Path, chunks: Iterable[tuple[str, bytes]]
) -> tuple[bytes, RecordingRedactor]:
    """Return the final bytes of a recording, and the redactor."""
    cleaner = RecordingRedactor()
    encoder = RecordingEncoder(cleaner.redact_record)
    lines = [
        encoder.encode_header(HEADER),
        *(encoder.encode_stream_chunk(letter, 0.0, data) for letter, data in chunks),
        encoder.encode_recording_end(0.0),
    ]
    cleaner.close()
    path = folder / "one.cast"
    path.write_bytes(b"".join(lines))
    if cleaner.edits:
        redact_split_secrets(str(path), cleaner.edits, os.stat(path), lambda: False)
    return path.read_bytes(), cleaner


def texts(cast: bytes, letter: str = "o") -> list[str]:
    """Return the texts of a stream's deltas."""
    _, records = read_cast(cast)
    return [
        json.loads(line)["event"]["delta"]["text"]
        for line in stream_of(records, letter).splitlines()
    ]


def delta(text: str) -> bytes:
    """Return a line as a vendor streams it."""
    event = {
        "type": "stream_event",
        "uuid": "u",
        "event": {"index": 0, "delta": {"type": "text_delta", "text": text}},
    }
    return json.dumps(event).encode() + b"\n"


def cuts(secret: str) -> list[int]:
    """Return the positions at which a secret is split: at its ends and in its middle."""
    size = len(secret)
    return sorted({1, 2, size // 3, size // 2, size - 2, size - 1} - {0, -1, size})


@loop_over_rows(("kind", "before", "secret", "after"), SECRETS)
def test_secret_in_a_json_string_is_redacted(tmp_path, kind, before, secret, after):
    cast, cleaner = record_streams(tmp_path, [("o", delta(f"so: {before}{secret}{after} end"))])
    (text,) = texts(cast)
    assert secret not in text and text.startswith("so: ") and text.endswith(" end")
    assert cleaner.secret_counts == {kind: 1} and not cleaner.edits


@loop_over_rows(("kind", "before", "secret", "after"), SECRETS)
def test_secret_in_a_plain_line_is_redacted(tmp_path, kind, before, secret, after):
    cast, _ = record_streams(tmp_path, [("e", f"so: {before}{secret}{after} end\n".encode())])
    stderr = stream_of(read_cast(cast)[1], "e")
    assert (
        secret.encode() not in stderr and stderr.startswith(b"so: ") and stderr.endswith(b" end\n")
    )


@loop_over_rows(("kind", "before", "secret", "after"), SECRETS)
def test_secret_split_over_deltas_is_redacted(tmp_path, kind, before, secret, after):
    full_text = f"so: {before}{secret}{after} end"
    for cut in cuts(secret):
        at = len(f"so: {before}") + cut
        cast, _ = record_streams(
            tmp_path,
            [("o", delta(full_text[:at])), ("o", delta(full_text[at:])), ("o", delta(" more"))],
        )
        first, two, three = texts(cast)
        assert secret not in first + two + three, (kind, cut)
        assert first.startswith("so: ") and two.endswith("end") and three == " more"
        assert secret[:cut] not in first or cut < 3, (kind, cut, first)


@loop_over_rows(("kind", "before", "secret", "after"), SECRETS)
def test_secret_streamed_by_character_is_redacted(tmp_path, kind, before, secret, after):
    full_text = f"so: {before}{secret}{after} end"
    cast, _ = record_streams(tmp_path, [("o", delta(character)) for character in full_text])
    pieces = texts(cast)
    assert len(pieces) == len(full_text) and secret not in "".join(pieces)
    assert "".join(pieces).startswith("so: ") and "".join(pieces).endswith(" end")


def test_split_secret_marks_the_header_as_swept_and_changes_nothing_else(tmp_path):
    lines = [
        ("o", delta("as")),
        ("O", b"ours\n"),
        ("o", delta(f" is {SECRET[:20]}")),
        ("o", delta(f"{SECRET[20:]}!")),
    ]
    cast, cleaner = record_streams(tmp_path, [*lines, *[("o", delta("on"))] * 100])
    reader, _ = read_cast(cast)
    assert reader.header is not None and reader.header.swept and reader.has_end
    assert texts(cast)[:4] == ["as", " is [REDACTED:anthropic-key]", "!", "on"]
    assert cleaner.secret_counts == {"anthropic-key": 1}
    assert os.stat(tmp_path / "one.cast").st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["one.cast"]


def test_secret_that_continues_in_the_next_string_is_redacted(tmp_path):
    cast, _ = record_streams(
        tmp_path, [("o", delta("api_key=abc123de")), ("o", delta("f456g789 rest"))]
    )
    assert texts(cast) == ["api_key=[REDACTED:assigned-secret]", " rest"]


def test_empty_texts_are_recorded_unchanged():
    cleaner = RecordingRedactor()
    lines = (b'{"text":"so"}', b'{"id":""}', b'{"text":""}', b'{"text":"a token=b"}')
    assert [cleaner.redact_record("o", line) for line in lines] == list(lines)


def test_secret_after_a_letter_of_another_string_is_redacted(tmp_path):
    cast, _ = record_streams(tmp_path, [("o", delta("Hello")), ("o", delta(SECRET))])
    assert texts(cast) == ["Hello", "[REDACTED:anthropic-key]"]


def test_growing_text_contains_no_prefix_of_its_secret(tmp_path):
    key = f"AIza{generate_secret(35)}"
    grown = [f"the key is {key}"[:size] for size in range(11, 12 + len(key))] + [
        f"the key is {key} and more"
    ]
    cast, _ = record_streams(tmp_path, [("o", delta(text)) for text in grown])
    assert not [output_text for output_text in texts(cast) if key[:20] in output_text]
    assert texts(cast)[-1] == "the key is [REDACTED:google-key] and more"


def test_private_key_over_stderr_lines_is_redacted(tmp_path):
    (key,) = {secret for kind, _, secret, _ in SECRETS if kind == "private-key" and "RSA" in secret}
    chunks = [("e", line.encode()) for line in f"begin\n{key}\nend\n".splitlines(keepends=True)]
    cast, _ = record_streams(tmp_path, chunks)
    stderr = stream_of(read_cast(cast)[1], "e")
    assert stderr.startswith(b"begin\n[REDACTED:private-key]\n") and stderr.endswith(b"\nend\n")
    assert not any(line.encode() in stderr for line in key.splitlines())


@pytest.mark.parametrize("json_line", [True, False])
def test_secret_across_two_chunks_of_a_line_is_redacted(tmp_path, json_line):
    line = b"x" * (MAX_RECORD_BYTES - 20) + f" {SECRET} ".encode() + b"y" * 100
    line = b'{"text":"' + line + b'"}' if json_line else line
    cast, _ = record_streams(tmp_path, [("o", line + b"\n")])
    stdout = stream_of(read_cast(cast)[1], "o")
    assert stdout == line.replace(SECRET.encode(), b"[REDACTED:anthropic-key]") + b"\n"


def test_secret_between_invalid_utf8_bytes_is_redacted(tmp_path):
    cast, _ = record_streams(tmp_path, [("o", b"\xff\xfe " + SECRET.encode() + b" \x80\n")])
    assert stream_of(read_cast(cast)[1], "o") == b"\xff\xfe [REDACTED:anthropic-key] \x80\n"


def test_secret_under_a_duplicate_key_is_redacted(tmp_path):
    cast, _ = record_streams(tmp_path, [("o", b'{"text":"%s","text":"x"}\n' % SECRET.encode())])
    assert SECRET.encode() not in cast


def test_escaped_secret_is_redacted(tmp_path):
    escaped = "".join(f"\\u{ord(character):04x}" for character in SECRET)
    cast, _ = record_streams(tmp_path, [("o", f'{{"text":"{escaped}"}}\n'.encode())])
    assert stream_of(read_cast(cast)[1], "o") == b'{"text":"[REDACTED:anthropic-key]"}\n'


def test_value_of_a_password_key_is_redacted(tmp_path):
    cast, _ = record_streams(tmp_path, [("o", b'{"input":{"password":"hunter2hunter2"}}\n')])
    assert b"hunter2" not in cast


def test_long_integer_beside_a_secret_is_unchanged(tmp_path):
    cast, _ = record_streams(
        tmp_path, [("o", b'{"n":123456789012345678901234567890,"t":"%s"}\n' % SECRET.encode())]
    )
    assert b"123456789012345678901234567890" in cast


@loop_over_rows("text", INNOCENT)
def test_text_without_secrets_is_recorded_unchanged(tmp_path, text):
    line = delta(text)
    cast, cleaner = record_streams(tmp_path, [("o", line), ("e", f"{text}\n".encode())])
    _, records = read_cast(cast)
    assert (stream_of(records, "o"), stream_of(records, "e")) == (line, f"{text}\n".encode())
    assert not cleaner.secret_counts and not cleaner.edits


@loop_over_cases(list_fixture_cases(), quick=choose_small_cases)
def test_fixtures_without_secrets_are_recorded_unchanged(tmp_path: Path, case: Case) -> None:
    cast, cleaner = record_streams(tmp_path, [("o", case.data)])
    if not cleaner.secret_counts:
        assert stream_of(read_cast(cast)[1], "o") == case.data


@given(
    st.lists(
        st.sampled_from(
            [SECRET[:9], SECRET[9:30], SECRET[30:], " ", "a", "", "password=", "hunter2x"]
        )
    )
)
@example(
    ["password=", SECRET[9:30], "password=", " ", SECRET[9:30], *(2 * [SECRET[:9], SECRET[9:30]])]
)
def test_joined_text_contains_no_secret_for_any_split(parts: list[str]) -> None:
    """A placeholder replaces a word. The text that was joined to the word was not secret and stays
    after the placeholder.
    """
    cleaner = RecordingRedactor()
    cleaned_texts: list[Any] = [
        json.loads(cleaner.redact_record("o", delta(part).strip()))["event"]["delta"]["text"]
        for part in parts
    ]
    cleaner.close()
    for record, edits in cleaner.edits.items():
        (cleaned_texts[record],) = (text for _, text in edits)
    assert not find_secret_spans(re.sub(r"\[REDACTED:[a-z-]+\]", "x", "".join(cleaned_texts)))
    assert not find_secret_spans("".join(parts)) or "".join(cleaned_texts) != "".join(parts)


def test_streams_are_separate_and_json_paths_are_bounded(tmp_path):
    head, tail = SECRET[:20], SECRET[20:]
    cast, cleaner = record_streams(
        tmp_path, [("o", delta(head)), ("O", delta("x")), ("o", delta(tail))]
    )
    assert tail.encode() not in cast
    cleaner = RecordingRedactor()
    for number in range(2 * MAX_JSON_PATHS):
        cleaner.redact_record("o", json.dumps({f"k{number}": f"text {head}"}).encode())
    assert len(cleaner._joiners) <= MAX_TEXT_JOINERS and cleaner._path_count <= MAX_JSON_PATHS


def test_redaction_work_is_linear_in_the_number_of_secrets():
    """The test counts calls, not seconds: four times the secrets cause at most about eight times
    the work.
    """

    def work(secrets):
        calls = 0

        def count_call(*_):
            nonlocal calls
            calls += 1

        cleaner = RecordingRedactor()
        data = b"https://user:hunter22@host/ " * secrets
        sys.setprofile(count_call)
        try:
            clean = cleaner.redact_record("o", data)
        finally:
            sys.setprofile(None)
        assert (
            clean.count(b"[REDACTED:url-password]")
            == cleaner.secret_counts["url-password"]
            == secrets
        )
        return calls

    assert work(1200) < 8 * work(300)


def test_deeply_nested_line_is_redacted(tmp_path):
    line = b'{"a":' * 900 + f'"{SECRET}"'.encode() + b"}" * 900
    cast, _ = record_streams(tmp_path, [("o", line + b"\n")])
    assert SECRET.encode() not in cast

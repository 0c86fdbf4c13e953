"""Recordings that are rewritten without their secrets: the times stay the same, and a failure
changes nothing.
"""

import os
import re

import pytest
from cast_builder import build_recording, read_cast, stream_of
from fake_secrets import generate_secret

from shim.core.cast.encoder import MAX_RECORD_BYTES, RecordingHashChain
from shim.core.cast.format import RecordingError
from shim.core.cast.secrets import RecordingRedactor
from shim.recording.rewrite import (
    CastRewriteStoppedError,
    redact_split_secrets,
    rewrite_cast_without_secrets,
)

SECRET = f"sk-ant-api03-{generate_secret(80)}"
MARK = b"[REDACTED:anthropic-key]"
MOMENTS = [
    (
        0.0,
        "s",
        {
            "child": 1,
            "turn": 1,
            "argv": ["qwen", "--api-key", "k", SECRET],
            "cwd": "/home/user/project",
        },
    ),
    (0.25, "o", b'{"text":"in %s here"}\n' % SECRET.encode()),
    (0.5, "e", b"a line with %s" % SECRET[:30].encode()),
    (0.75, "e", b"%s in two pieces\n" % SECRET[30:].encode()),
    (1.0, "o", b'{"text":"it is %s"}\n' % SECRET[:30].encode()),
    (1.5, "o", b'{"text":"%s, or so"}\n' % SECRET[30:].encode()),
    (1.5, "n", {"kind": "timeout", "text": SECRET}),
    (2.0, "O", b"\xff %s\n" % SECRET.encode()),
    (2.0, "x", {"child": 1, "code": 0, "signal": None}),
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "one.cast"
    path.write_bytes(build_recording(MOMENTS, argv=["-p", f"use {SECRET}"]))
    return path


def build_pattern_finder(pattern):
    """Return a function that finds the matches of the user's own pattern."""
    return lambda text: [
        (hit.start(), hit.end(), "[REDACTED:own]") for hit in re.finditer(pattern, text)
    ]


def test_rewrite_redacts_an_unredacted_recording(source):
    done = rewrite_cast_without_secrets(str(source))
    data = source.read_bytes()
    reader, records = read_cast(data)
    assert (
        SECRET.encode() not in data
        and SECRET[:40].encode() not in data
        and SECRET[30:].encode() not in data
    )
    assert stream_of(records, "o") == (
        b'{"text":"in %s here"}\n{"text":"it is %s"}\n{"text":", or so"}\n' % (MARK, MARK)
    )
    assert stream_of(records, "e") == b"a line with %s in two pieces\n" % MARK
    assert stream_of(records, "O") == b"\xff %s\n" % MARK
    assert [record.time_s for record in records] == [
        record_event[0] for record_event in MOMENTS if record_event[0] != 0.5
    ]
    assert (
        reader.has_end
        and reader.header is not None
        and reader.header.swept
        and reader.header.redact == "casts"
    )
    assert records[0].fields["argv"] == ["qwen", "--api-key", "[REDACTED:argument]", MARK.decode()]
    assert done.counts["anthropic-key"] == 5 and not done.lost
    assert os.stat(source).st_mode & 0o777 == 0o600 and os.listdir(source.parent) == ["one.cast"]


def test_custom_pattern_is_redacted_within_and_across_strings(source):
    rewrite_cast_without_secrets(
        str(source), custom_search=build_pattern_finder("here|or so|two pie[a-z]+|proj.ct")
    )
    _, records = read_cast(source.read_bytes())
    assert b"[REDACTED:own]" in stream_of(records, "o") and b"here" not in stream_of(records, "o")
    assert b"pieces" not in stream_of(records, "e")
    assert records[0].fields["cwd"] == "/home/user/[REDACTED:own]"
    source.unlink()
    parts = [
        (0.1 * number, "o", b'{"text":"%s"}\n' % part)
        for number, part in enumerate((b"my Pro", b"ject", b"X."))
    ]
    source.write_bytes(build_recording(parts))
    rewrite_cast_without_secrets(str(source), custom_search=build_pattern_finder("ProjectX"))
    assert stream_of(read_cast(source.read_bytes())[1], "o") == (
        b'{"text":"my [REDACTED:own]"}\n{"text":""}\n{"text":"."}\n'
    )


def test_rewrite_to_a_new_file_never_overwrites_a_file(source, tmp_path):
    before, target = source.read_bytes(), tmp_path / "two.cast"
    rewrite_cast_without_secrets(str(source), str(target))
    assert source.read_bytes() == before and MARK in target.read_bytes()
    with pytest.raises(RecordingError, match="cannot be created"):
        rewrite_cast_without_secrets(str(source), str(target))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match="cannot be created"):
        rewrite_cast_without_secrets(str(source), str(link))


def test_invalid_recording_is_not_changed(tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(b'{"type":"system"}\n')
    with pytest.raises(RecordingError, match="not a recording"):
        rewrite_cast_without_secrets(str(path))
    assert path.read_bytes() == b'{"type":"system"}\n' and os.listdir(tmp_path) == ["one.txt"]
    for wrong in (str(tmp_path), str(tmp_path / "nothing"), os.devnull):
        with pytest.raises(RecordingError):
            rewrite_cast_without_secrets(wrong)


def test_unknown_lines_are_preserved_without_their_secrets(source):
    odd = f'# {SECRET}\n[0.1,"q","{SECRET}"]\n[broken {SECRET}\n\n{{"a":"{SECRET}"}}\n'
    source.write_bytes(build_recording(MOMENTS, end=False) + odd.encode())
    rewrite_cast_without_secrets(str(source))
    data = source.read_bytes()
    assert SECRET.encode() not in data
    assert data.endswith(
        b'# %s\n[0.1,"q","%s"]\n[broken %s\n{"a":"%s"}\n' % (MARK, MARK, MARK, MARK)
    )
    assert not read_cast(data)[0].has_end


def test_stopped_redaction_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "one.cast"
    path.write_bytes(build_recording((0.0, "o", b"{}\n") for _ in range(3000)))
    before = path.read_bytes()
    with pytest.raises(CastRewriteStoppedError):
        redact_split_secrets(str(path), {1: [(0, "x")]}, os.stat(path), lambda: True)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["one.cast"]


def test_redaction_refuses_a_replaced_file(tmp_path):
    path, other = tmp_path / "one.cast", tmp_path / "other"
    path.write_bytes(build_recording(MOMENTS))
    other.write_bytes(build_recording(MOMENTS))
    status = os.stat(path)
    os.replace(other, path)
    with pytest.raises(RecordingError, match="another file"):
        redact_split_secrets(str(path), {1: [(0, "x")]}, status, lambda: False)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(RecordingError, match="cannot be read"):
        redact_split_secrets(str(path), {1: [(0, "x")]}, status, lambda: False)


def test_second_rewrite_changes_nothing(source):
    rewrite_cast_without_secrets(str(source))
    once = source.read_bytes()
    rewrite_cast_without_secrets(str(source))
    assert source.read_bytes() == once


def test_pattern_without_a_match_leaves_lines_unchanged():
    cleaner = RecordingRedactor(build_pattern_finder("never there"))
    for number in range(500):
        line = b'{"text":"word %d"}' % number
        assert cleaner.redact_record("o", line) is line
    cleaner.close()
    assert not cleaner.edits


def test_rewrite_of_long_lines_uses_bounded_memory(source, monkeypatch):
    line = b"x" * (MAX_RECORD_BYTES - 1) + b"\n"
    source.write_bytes(build_recording([(0.0, "o", line * 8)]))
    sizes = []
    add = RecordingHashChain.encode_lines_with_checkpoints

    def add_measured(chain, lines):
        sizes.append(sum(map(len, lines)))
        return add(chain, lines)

    monkeypatch.setattr(RecordingHashChain, "encode_lines_with_checkpoints", add_measured)
    rewrite_cast_without_secrets(str(source))
    assert max(sizes) < 3 * MAX_RECORD_BYTES and sum(sizes) > 8 * MAX_RECORD_BYTES

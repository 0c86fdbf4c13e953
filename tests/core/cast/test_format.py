"""The recording format: decoded data equals the encoded data, for any bytes and any split."""

import json

import pytest
from cast_builder import build_case_recording, build_recording, read_cast, stream_of
from fixture_cases import Case, list_fixture_cases
from hypothesis import given
from hypothesis import strategies as st
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.cast.encoder import CHECKPOINT_LINES, MAX_RECORD_BYTES, RecordingEncoder
from shim.core.cast.format import MAX_DELAY_S, RecordingError


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_fixture_bytes_round_trip(case: Case) -> None:
    _, records = read_cast(build_case_recording(case))
    assert stream_of(records, "o") == case.data


@given(st.lists(st.tuples(st.sampled_from("iIoOe"), st.binary(max_size=40))))
def test_arbitrary_stream_bytes_round_trip(chunks: list[tuple[str, bytes]]) -> None:
    reader, records = read_cast(
        build_recording(
            (number * 0.00003, letter, data) for number, (letter, data) in enumerate(chunks)
        )
    )
    assert reader.has_end and not reader.skipped_lines
    for letter in "iIoOe":
        assert stream_of(records, letter) == b"".join(
            data for chunk_letter, data in chunks if chunk_letter == letter
        )


def test_long_line_is_split_between_characters() -> None:
    line = "ü".encode() * MAX_RECORD_BYTES + b"\n"
    lines = build_recording([(0.0, "o", line)]).splitlines()
    assert [json.loads(piece)[1] for piece in lines[1:-1]] == ["o-", "o"]
    assert stream_of(read_cast(build_recording([(0.0, "o", line)]))[1], "o") == line


@pytest.mark.parametrize(
    "data", [b"x" * MAX_RECORD_BYTES, b"x" * (MAX_RECORD_BYTES - 1) + "é".encode()[:1]]
)
def test_chunk_ending_at_a_piece_boundary_is_recorded(data: bytes) -> None:
    encoder = RecordingEncoder()
    lines = (
        encoder.encode_header({})
        + encoder.encode_stream_chunk("o", 0.0, data)
        + encoder.encode_stream_chunk("o", 0.1, b"y\n")
        + encoder.encode_recording_end(0.2)
    )
    assert stream_of(read_cast(lines)[1], "o") == data + b"y\n"


def test_non_utf8_data_is_encoded_as_base64() -> None:
    lines = build_recording([(0.0, "o", b"\xff\n\xfe")]).splitlines()
    assert [json.loads(line)[1] for line in lines[1:-1]] == ["ob", "o-b"]


@loop_over_rows(
    "odd", [b"a \x7f b", b"\xff", b'","', b'\\","\\', b"\x00\x1b", "\ud7ff\u2028ü".encode()]
)
def test_ambiguous_line_round_trips(odd: bytes) -> None:
    data = b"before\n" + odd + b"\n\n" + odd * 3 + b"\nbehind\n"
    for chunk in (1, 2, len(data)):
        moments = [(0.0, "o", data[at : at + chunk]) for at in range(0, len(data), chunk)]
        reader, records = read_cast(build_recording(moments))
        assert stream_of(records, "o") == data and len(records) == 5 and reader.has_end


def test_checkpoints_are_at_most_64_lines_apart() -> None:
    lines = build_recording([(0.0, "o", b"{}\n" * 1000)]).splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith(b'["h"')]
    assert (
        max(later - earlier for earlier, later in zip([-1, *at], at, strict=False))
        <= CHECKPOINT_LINES + 1
    )


def test_times_add_up_without_drift() -> None:
    _, records = read_cast(
        build_recording((number / 30000, "o", b"x\n") for number in range(30001))
    )
    assert records[-1].time_s == pytest.approx(1.0, abs=0.0002)


def test_file_without_a_header_raises_recording_error() -> None:
    with pytest.raises(RecordingError, match="not a recording"):
        read_cast(b'{"type":"system"}\n')


def test_later_version_raises_recording_error() -> None:
    with pytest.raises(RecordingError, match="version 2"):
        read_cast(b'{"shimcast":2}\n')


def test_reader_skips_unknown_and_malformed_lines() -> None:
    odd = b'# a comment\n[0.1,"q","?"]\n[broken\n[0.1,"o","b"]\n[0.1,"o","cu'
    data = build_recording([(0.0, "o", b"a\n")], end=False) + odd
    reader, records = read_cast(data)
    assert stream_of(records, "o") == b"a\nb\n"
    assert reader.skipped_lines == 2 and not reader.has_end


@loop_over_rows("delay", ['"nan"', '"inf"', "1e308", "-1e308", "-1"])
def test_extreme_delays_are_clamped(delay: str) -> None:
    data = (
        build_recording([(0.5, "o", b"a\n")], end=False)
        + f'[{delay},"o","b"]\n'.encode() * 2
        + b'[0.25,"o","c"]\n'
    )
    _, records = read_cast(data)
    times = [record.time_s for record in records]
    assert stream_of(records, "o") == b"a\nb\nb\nc\n"
    assert times == sorted(times) and times[-1] - times[-2] == 0.25 and times[-1] < 3 * MAX_DELAY_S


def test_encoder_without_an_end_leaves_complete_lines() -> None:
    encoder = RecordingEncoder()
    data = encoder.encode_header({}) + encoder.encode_stream_chunk("o", 0.1, b'{"a":1}\n{"b"')
    _, records = read_cast(data)
    assert stream_of(records, "o") == b'{"a":1}\n'

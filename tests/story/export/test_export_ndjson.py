"""`shim export --to ndjson`: the stream of the frontend, byte for byte, or without its secrets."""

import orjson
import pytest
from cast_builder import (
    HEADER,
    build_case_recording,
    build_recording,
    list_record_events,
    read_cast,
    split_lines,
    stream_of,
)
from export_helpers import (
    SECRETS,
    build_delta_line,
    build_session_with_secret,
    encode_events,
    export_recording,
)
from fixture_cases import Case, find_case, list_fixture_cases
from stream_lines import parse_lines
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.cast.format import RecordingError
from shim.story.export.ndjson import write_recording_export

TEXT = ["-p", "--output-format", "text", "say hello"]


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_frontend_stream_is_exported_byte_for_byte(case: Case, tmp_path) -> None:
    cast = build_case_recording(case)
    assert export_recording(write_recording_export, tmp_path, cast) == stream_of(
        read_cast(cast)[1], "O"
    )


def test_invalid_utf8_and_split_lines_are_exported_unchanged(tmp_path):
    odd = b'{"type":"\xff\xfe"}\n\x00\n' + b"x" * (1 << 21) + b"\nno end"
    assert (
        export_recording(write_recording_export, tmp_path, build_recording([(0.0, "O", odd)]))
        == odd
    )


def test_lines_without_secrets_are_exported_unchanged(tmp_path):
    line = b'{ "type": "assistant",  "message": {"id": "m", "content": []} }\n'
    assert export_recording(
        write_recording_export,
        tmp_path,
        build_recording([(0.0, "O", line + b"\nnot JSON\n")]),
        redact=True,
    ) == (line + b"\nnot JSON\n")


def test_recording_with_text_output_is_exported_as_claude_stream(tmp_path):
    moments = [
        record_event
        for record_event in list_record_events(find_case("pi/1.5.2-bash"))
        if record_event[1] != "O"
    ]
    output = export_recording(
        write_recording_export,
        tmp_path,
        build_recording([*moments, (9.0, "O", b"Done with bash.\n")], argv=TEXT),
    )
    types = [line["type"] for line in parse_lines(output)]
    assert types[0] == "system" and types[-1] == "result" and "assistant" in types
    assert b"Done with bash." in output


def test_recording_with_yume_output_is_exported_as_claude_stream(tmp_path):
    output = export_recording(
        write_recording_export,
        tmp_path,
        build_case_recording(find_case("pi/1.5.2-bash"), dialect="yume"),
    )
    assert parse_lines(output)[-1]["type"] == "result"


def test_unknown_vendor_is_an_error_only_if_translation_is_needed(tmp_path):
    with pytest.raises(
        RecordingError, match="did not receive Claude's stream; unknown vendor 'nobody'"
    ):
        export_recording(
            write_recording_export, tmp_path, build_recording([], vendor="nobody", argv=TEXT)
        )
    assert (
        export_recording(
            write_recording_export,
            tmp_path,
            build_recording([(0.0, "O", b"{}\n")], vendor="nobody"),
        )
        == b"{}\n"
    )


def test_file_that_is_not_a_recording_is_an_error(tmp_path):
    with pytest.raises(RecordingError, match="not a recording"):
        export_recording(write_recording_export, tmp_path, b"something\n")


@loop_over_rows("secret", SECRETS)
def test_secrets_are_redacted_only_if_requested(secret, tmp_path):
    cast = build_session_with_secret(secret)
    assert secret.encode() in export_recording(write_recording_export, tmp_path, cast)
    output = export_recording(write_recording_export, tmp_path, cast, redact=True)
    assert secret.encode() not in output
    deltas = [line for line in split_lines(output) if b"content_block_delta" in line]
    streamed_text = "".join(orjson.loads(line)["event"]["delta"]["text"] for line in deltas)
    assert (
        secret not in streamed_text
        and streamed_text.startswith("in two ")
        and streamed_text.endswith(" pieces")
    )


def test_secret_prefix_at_the_end_of_a_block_is_exported(tmp_path):
    stop = {"type": "stream_event", "event": {"type": "content_block_stop", "index": 0}}
    cast = build_recording(
        [(0.0, "O", encode_events(build_delta_line("a tail: ghp_"), stop))], **HEADER
    )
    assert b"ghp_" in export_recording(write_recording_export, tmp_path, cast, redact=True)

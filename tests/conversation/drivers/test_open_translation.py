"""The functions around the child's stream that `shim translate` shares with the tests: exits, ids,
writing.
"""

import os
import threading

import pytest

from shim.conversation.drivers.open_translation import (
    STABLE_ID_PREFIX,
    STABLE_SESSION_ID,
    create_session_ids,
    create_standalone_child_stream,
    translate_stream,
)
from shim.core.errors import FrontendError
from shim.core.reading.values import canonicalize_uuid
from shim.core.turn.outcome import ChildExit
from shim.process.exit_status import format_signal_name, parse_exit_status
from shim.state.files import write_all


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ChildExit(code=0)),
        ("130", ChildExit(code=130)),
        ("SIGTERM", ChildExit(signal="SIGTERM")),
        ("TERM", ChildExit(signal="SIGTERM")),
        ("sigkill", ChildExit(signal="SIGKILL")),
        ("-15", ChildExit(signal="SIGTERM")),
        ("-9", ChildExit(signal="SIGKILL")),
    ],
)
def test_exit_status_parses_codes_and_signal_names(text, expected):
    assert parse_exit_status(text) == expected


@pytest.mark.parametrize("text", ["", "x", "SIG", "SIGNOTHING", "1.5", "1 2", "--1"])
def test_invalid_exit_status_raises_value_error(text):
    with pytest.raises(ValueError, match=r"neither an exit code nor|invalid literal"):
        parse_exit_status(text)


def test_unnamed_signal_is_formatted_as_its_number():
    assert format_signal_name(15) == "SIGTERM"
    assert format_signal_name(64 + 100) == "signal 164"


def test_session_ids_are_unique_uuids():
    session, uuid_prefix = create_session_ids()
    other_session, other_uuid_prefix = create_session_ids()
    assert canonicalize_uuid(session) == session
    assert canonicalize_uuid(uuid_prefix + "0" * 12)
    assert session != other_session and uuid_prefix != other_uuid_prefix


def test_stable_ids_are_uuids():
    assert canonicalize_uuid(STABLE_SESSION_ID) == STABLE_SESSION_ID
    assert canonicalize_uuid(STABLE_ID_PREFIX + "0" * 12)


@pytest.mark.parametrize("name", ["nobody", "", "../qwen", "Qwen", "qwen\n"])
def test_unknown_vendor_raises_frontend_error(name):
    with pytest.raises(FrontendError, match="unknown vendor"):
        create_standalone_child_stream(name)


def test_output_contains_the_session_id_of_the_caller():
    translation = create_standalone_child_stream("demo", session_id=STABLE_SESSION_ID[:-1] + "7")
    assert (STABLE_SESSION_ID[:-1] + "7").encode() in translation.close(ChildExit(code=0))[0]


def test_translate_stream_reads_and_writes_descriptors():
    source, feed = os.pipe()
    drain, sink = os.pipe()
    os.write(feed, b'{"type":"text","text":"hi"}\n{"type":"end"}\n')
    os.close(feed)
    translate_stream(
        create_standalone_child_stream("demo", stable_ids=True), source, sink, ChildExit(code=0), ""
    )
    os.close(sink)
    output = os.read(drain, 65536)
    assert output.endswith(b'{"type":"message_stop"}\n')
    assert b'"result":"hi"' in output
    os.close(source)
    os.close(drain)


def test_write_all_writes_more_than_a_pipe_buffer():
    drain, sink = os.pipe()
    data = os.urandom(300_000)
    writer = threading.Thread(target=lambda: (write_all(sink, data), os.close(sink)))
    writer.start()
    read = b""
    while chunk := os.read(drain, 65536):
        read += chunk
    writer.join()
    os.close(drain)
    assert read == data

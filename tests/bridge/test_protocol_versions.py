"""Two versions of the frames: an old host with a client of today, and the other way round.

A host of another version is today's host with a startup file that changes its frames.
"""

import subprocess
import sys

import pytest
from box import END, START, STREAM, build_text_event, format_ndjson
from session_hosts import TIMEOUT_S, read_until_result, wait_for_frame

from shim.bridge.client import send_frames_and_collect_answers
from shim.core.bridge.frames import OPTIONAL_KINDS, PROTOCOL_VERSION
from shim.process.install import ENTRY_CODE

# It lacks the optional frame kinds and the later keys of its welcome.
OLD_HOST = """
from shim.core.bridge import frames
frames.OPTIONAL_KINDS = ()
encode_frame = frames.encode_frame
frames.encode_frame = lambda kind, **fields: encode_frame(
    kind, **{key: fields[key] for key in fields if key not in ("initialize", "pid")}
)
from shim.core.bridge import handlers
for kind in ("request", "reply", "deaf"):
    del handlers.HANDLERS[kind]
"""

# It speaks a later protocol: more keys in every frame, more kinds, and lines of an unknown kind.
NEW_HOST = """
from shim.core.bridge import frames
frames.PROTOCOL_VERSION, frames.OPTIONAL_KINDS = 2, (*frames.OPTIONAL_KINDS, "later")
encode_frame = frames.encode_frame
frames.encode_frame = lambda kind, **fields: (
    encode_frame("later", a=1) + encode_frame(kind, **{"odd": [None, {}], **fields}) if kind != "welcome"
    else encode_frame(kind, **{"odd": [None, {}], **fields})
)
"""


@pytest.fixture(autouse=True)
def quick(hosts, tmp_path):
    """Return hosts whose vendor answers at once."""
    (tmp_path / "said").write_text(
        format_ndjson(START | {"session": "s-1"}, build_text_event("Hello."), END), encoding="utf-8"
    )
    (tmp_path / "vendor").write_text(f"#!/bin/sh\nexec cat {tmp_path}/said\n", encoding="utf-8")
    (tmp_path / "vendor").chmod(0o700)
    hosts.environment["SHIM_BIN"] = str(tmp_path / "vendor")


@pytest.fixture(params=[OLD_HOST, NEW_HOST], ids=["old", "new"])
def other(request, hosts, tmp_path):
    """Return hosts of another version."""
    (tmp_path / "version").mkdir()
    only = 'import sys\nif any("bridge.host" in word for word in sys.orig_argv):\n'
    indented = "".join(f"    {line}\n" for line in request.param.splitlines())
    (tmp_path / "version" / "sitecustomize.py").write_text(only + indented, encoding="utf-8")
    hosts.environment["PYTHONPATH"] = str(tmp_path / "version")
    return hosts


def test_host_of_another_version_serves_current_clients(other):
    session = other.start_session("hi")
    other.wait_until(
        session, lambda now: now.metadata["status"] == "idle" and now.metadata["state"] == "done"
    )
    argv = [
        sys.executable,
        "-P",
        "-c",
        ENTRY_CODE,
        "claude",
        "-p",
        "again",
        "--resume",
        session.session_id,
        *STREAM,
    ]
    done = subprocess.run(
        argv,
        env=other.environment,
        cwd=other.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0 and b'"type":"result","subtype":"success"' in done.stdout, done
    assert other.load_session(session).is_running
    with other.connect(session, partial=False, replay=False) as connection:
        new = connection.welcome["protocol"] != PROTOCOL_VERSION
        assert ("later" in connection.welcome["knows"]) == new and (
            "differs" in connection.welcome
        ) == new
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        connection.send_frame_blocking({"kind": "deaf", "id": "d"})
        assert read_until_result(connection)[-1]["subtype"] == "success"
    received = send_frames_and_collect_answers(
        session.session_id,
        [{"kind": "take"}, {"kind": "request", "request": {"subtype": "mcp_status"}}],
        other.environment,
    )
    assert ({"accepted", "response"} <= {came["kind"] for came in received}) == new
    assert (
        send_frames_and_collect_answers(session.session_id, [{"kind": "end"}], other.environment)[
            -1
        ]["kind"]
        == "bye"
    )


@pytest.mark.parametrize(("protocol", "knows"), [(1, []), (2, [*OPTIONAL_KINDS, "later"])])
def test_current_host_serves_a_client_of_another_version(hosts, protocol, knows):
    session = hosts.start_session()
    with hosts.connect(session, protocol=protocol, knows=knows, odd={"key": 1}) as connection:
        assert ("differs" in connection.welcome) == (protocol != PROTOCOL_VERSION)
        wait_for_frame(connection, "synced")
        connection.send_frame_blocking({"kind": "later", "odd": 1})
        connection.send_frame_blocking({"kind": "take", "id": "t", "odd": 1})
        connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}, "odd": [1]}
        )
        came = [frame["kind"] for frame in _until_done(connection)]
    assert ("accepted" in came) == bool(knows) and "refused" not in came


def _until_done(connection):
    for came in connection.read_frames(TIMEOUT_S):
        yield came
        if came["kind"] == "line" and came["line"]["type"] == "result":
            return
    raise AssertionError("no result came")

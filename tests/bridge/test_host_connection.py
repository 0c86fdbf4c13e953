"""Clients that a running host cannot accept: the host is never reported as dead, and no error
suggests a new start.
"""

import os
import sys
import threading
from functools import partial

import anyio
import pytest
from box import TIMEOUT_S

from shim.bridge import client as links
from shim.bridge import launch, lock, registry, sockets
from shim.bridge.client import (
    HostNotAnsweringError,
    HostUnavailableError,
    connect_to_session,
    connect_to_session_blocking,
    send_frames_and_collect_answers,
)
from shim.core.bridge.frames import encode_frame

pytestmark = pytest.mark.anyio

SESSION = "0123abcd-0000-4000-8000-000000000001"
MESSAGE = {"kind": "message", "message": {"role": "user", "content": "hi"}}


@pytest.fixture
def hosted_session(hosts):
    """Return a session whose host is forked. In the event loop of a test the host would be started,
    which takes longer.
    """
    return hosts.start_session()


@pytest.fixture
def halted_session(hosted_session, hosts, monkeypatch):
    """Yield a session whose host is suspended by SIGSTOP."""
    with hosts.halt_host(hosted_session):
        monkeypatch.setattr(links, "ANSWER_TIMEOUT_S", 0.2)
        yield hosts.load_session(hosted_session)


async def collect_errors(session, environment):
    """Return the errors of the blocking connection, of a query, and of the async connection."""
    errors = []
    with anyio.fail_after(TIMEOUT_S):
        for operation in (
            connect_to_session_blocking,
            partial(send_frames_and_collect_answers, frames=[{"kind": "interrupt"}]),
        ):
            with pytest.raises(HostNotAnsweringError) as caught:
                operation(session.session_id, environment=environment)
            errors.append(caught.value)
        with pytest.raises(HostNotAnsweringError) as caught:
            await connect_to_session(session.session_id, environment)
    return [*errors, caught.value]


async def test_error_for_a_suspended_host_suggests_sigcont_and_not_respawn(halted_session, hosts):
    for error in await collect_errors(halted_session, hosts.environment):
        assert f"does not respond (pid {halted_session.metadata['pid']})" in str(error)
        assert (
            f"kill -CONT {halted_session.metadata['pid']}" in error.hint
            and "respawn" not in error.hint
        )


async def test_full_host_is_reported_with_its_client_limit(hosted_session, hosts, monkeypatch):
    hosts.connect(hosted_session).close()
    with sockets.open_host_listener(str(hosts.cwd)) as full, anyio.fail_after(TIMEOUT_S):
        monkeypatch.setattr(
            sockets,
            "connect_to_host",
            partial(_full, full, sockets.connect_to_host, str(hosts.cwd)),
        )
        for error in await collect_errors(hosts.load_session(hosted_session), hosts.environment):
            assert "is full: 256 clients are already connected" in str(error)
            assert (
                "respawn" not in error.hint
                and f"claude stop {hosted_session.short_id}" in error.hint
            )


async def test_event_loop_runs_while_a_connection_waits_for_the_backlog(hosts, monkeypatch):
    has_run = threading.Event()

    def wait_for_backlog(folder):
        assert has_run.wait(TIMEOUT_S)
        raise BlockingIOError

    async def set_event():
        has_run.set()

    monkeypatch.setattr(sockets, "connect_to_host", wait_for_backlog)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_event)
        with pytest.raises(HostNotAnsweringError):
            await connect_to_session(SESSION, hosts.environment)


def test_exiting_host_is_unavailable_with_its_failure_reason(hosts):
    """The host has stored its end in its metadata and closed its socket, but its process exits a
    moment later.
    """
    folder = registry.create_session_folder(SESSION, hosts.environment)
    registry.write_metadata(
        folder, {"state": "failed", "detail": "there is no qwen", "status": None, "pid": None}
    )
    host_lock = lock.acquire_session_host_lock(folder)
    with (
        os.fdopen(host_lock),
        pytest.raises(HostUnavailableError, match="there is no qwen") as error_info,
    ):
        connect_to_session_blocking(SESSION, hosts.environment)
    assert "respawn" in error_info.value.hint


# A host that notices a client's disconnect later than the other clients do.
HEARS_LATE = """
import anyio
from shim.bridge.host import unix_server
read_chunk = unix_server.read_chunk
async def read_late(peer):
    chunk = await read_chunk(peer)
    await anyio.sleep(0 if chunk else 0.1)
    return chunk
unix_server.read_chunk = read_late
"""
RUNS = "import sys; from shim.bridge.host.__main__ import main; sys.exit(main(sys.argv[1:]))"


async def test_next_client_becomes_controller_if_the_host_reads_eof_late(hosts, monkeypatch):
    monkeypatch.setattr(
        launch, "build_host_command", lambda: [sys.executable, "-P", "-c", HEARS_LATE + RUNS]
    )
    session = hosts.start_session()
    for _ in range(2):
        assert (
            send_frames_and_collect_answers(session.session_id, [MESSAGE], hosts.environment)[-1][
                "kind"
            ]
            != "refused"
        )
        async with await connect_to_session(session.session_id, hosts.environment) as connection:
            assert connection.welcome["driver"] == connection.welcome["client"]


def _full(listening, connect_to, folder, _):
    """Return a connection to a host that accepts no client."""
    made = connect_to(folder)
    theirs, _ = listening.accept()
    theirs.sendall(encode_frame("bye", reason="256 clients are already connected"))
    theirs.close()
    return made


async def test_send_to_a_suspended_host_raises_when_the_socket_buffer_is_full(
    hosted_session, hosts, monkeypatch
):
    with hosts.connect(hosted_session) as connection, hosts.halt_host(hosted_session):
        monkeypatch.setattr(links, "ANSWER_TIMEOUT_S", 0.2)
        with anyio.fail_after(TIMEOUT_S), pytest.raises(HostNotAnsweringError):
            while True:  # until the socket has no more space
                connection.send_frame_blocking(
                    {
                        "kind": "message",
                        "id": "m",
                        "message": {"role": "user", "content": "x" * 65536},
                    }
                )

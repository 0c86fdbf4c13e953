"""How a host runs the commands of its hub."""

import socket

import anyio
import pytest
from box import TIMEOUT_S

from shim.bridge.host.runner import BYE_TIMEOUT_S, ClientConnection, SessionHubRunner
from shim.bridge.log import RecordedSessionLog
from shim.core.bridge import subscribers
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.log import LogHistory
from shim.core.bridge.status import BackgroundSessionInfo

pytestmark = pytest.mark.anyio

U = "11111111-2222-4333-8444-555555555555"
HELLO = b'{"kind":"hello","protocol":1,"client":"a","role":"watch"}'


class Host:
    """A runner with a log. It records its requests."""

    def __init__(self, folder):
        self.metadata_updates, self.sent_lines = [], []
        self.log = RecordedSessionLog(str(folder / "log"), 1)
        self.hub = SessionHub(
            BackgroundSessionInfo(U),
            LogHistory(generation=1),
            create_id=lambda: U,
            now_ms=lambda: 0,
            clock=lambda: 0.0,
        )
        self.runner = SessionHubRunner(
            self.hub,
            self.log,
            send_line=self.sent_lines.append,
            update_metadata=self.metadata_updates.append,
            end_session=lambda: None,
            reload_settings=lambda: "settings",
        )

    def client(self, number):
        """Return the client's end of a socket after hello."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.settimeout(10)
        self.runner.add_client(ClientConnection(number, theirs))
        self.runner.on_client_frame(number, HELLO)
        return ours


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.log.close()
    for connection in made.runner.connections.values():
        connection.peer.close()


def test_intermediate_states_are_not_written_to_metadata(host):
    """A session that starts with a prompt never reports that it waits for one."""
    host.hub.send_initialize()
    host.hub.send_first_message({"role": "user", "content": "hi"}, U)
    host.runner.run_hub_commands()
    assert [each["state"] for each in host.metadata_updates] == ["working"]


async def test_blocked_output_is_written_when_the_client_reads(host):
    line = b'{"type":"system","text":"%b"}' % (b"x" * 100_000)
    with host.client(1) as ours:
        ours.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host.runner.serve_client, host.runner.connections[1])
            host.runner.on_conversation_lines(line + b"\n")
            received = b""
            with anyio.fail_after(TIMEOUT_S):
                while line not in received:
                    await anyio.wait_readable(ours)
                    received += ours.recv(1000)
            tasks.cancel_scope.cancel()


async def test_bye_frame_is_sent_after_buffered_output_if_the_log_fails(host, monkeypatch):
    with host.client(1) as ours:
        ours.setblocking(False)
        async with anyio.create_task_group() as tasks:
            connection = host.runner.connections[1]
            tasks.start_soon(host.runner.serve_client, connection)
            host.runner.on_conversation_lines(b'{"type":"system","text":"%b"}\n' % (b"x" * 100_000))

            def full(records):
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(host.log, "append", full)
            host.runner.on_conversation_lines(b'{"type":"system","text":"lost"}\n')
            assert "No space left" in host.runner.failure_reason
            received = b""
            with anyio.fail_after(TIMEOUT_S):
                while not connection.disconnect_event.is_set():
                    with anyio.move_on_after(0.01):
                        await anyio.wait_readable(ours)
                        received += ours.recv(1000)
            received += ours.recv(100_000)
            tasks.cancel_scope.cancel()
        assert (
            b'"lost"' not in received
            and b'{"kind":"bye","reason":"the session\'s log cannot' in received.splitlines()[-1]
        )
        assert host.runner.failure_event.is_set()


async def test_client_that_does_not_read_the_bye_frame_is_closed(host, monkeypatch):
    with host.client(1):
        connection = host.runner.connections[1]
        host.runner.on_conversation_lines(b'{"type":"system","text":"%b"}\n' % (b"x" * 500_000))
        host.hub.close("over")
        host.runner.run_hub_commands()
        host.runner.close_unresponsive_clients()
        assert connection.close_deadline and not connection.disconnect_event.is_set()
        connection.close_deadline -= 2 * BYE_TIMEOUT_S
        host.runner.close_unresponsive_clients()
        assert connection.disconnect_event.is_set()


def test_log_read_error_ends_the_session(host, monkeypatch):
    def fail_read(after, most, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(subscribers, "MAX_RECENT_BYTES", 0)  # every earlier line is read
    host.runner.on_conversation_lines(b'{"type":"system"}\n')
    monkeypatch.setattr(host.log, "read", fail_read)
    with host.client(1) as ours:
        assert b"the session's log cannot be read: Input/output error" in ours.recv(100_000)
    assert host.runner.has_failed

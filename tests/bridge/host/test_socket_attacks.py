"""Attacks of another user's process, or of a hostile client, on the socket of a session. None
succeeds.
"""

import os
import socket
import threading
from contextlib import suppress

import anyio
import anyio.to_thread
import pytest
import sweeps
from session_hosts import TIMEOUT_S, read_until_result, wait_for_frame

from shim.bridge import sockets
from shim.bridge.client import connect_to_session
from shim.bridge.host import runner, unix_server

NOBODY = 65534
HELLO = b'{"kind":"hello","protocol":1,"client":"x","role":"drive"}\n'


def raw(session):
    return raw_at(session.folder)


def raw_at(folder):
    connection = sockets.connect_to_host(folder)
    connection.settimeout(TIMEOUT_S)
    return connection


def read_all(connection):
    """Return everything up to the end."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:  # it was closed before it had read everything
        pass
    return data


def as_nobody(do):
    """Run `do` in a process of another user. Return its result of at most 255 bytes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, do())
        except OSError as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        output = file.read()
    os.waitpid(pid, 0)
    return output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_process_of_another_user_cannot_connect(hosts):
    session = hosts.start_session()
    with hosts.connect(session) as connection:
        wait_for_frame(connection, "synced")

    def talk():
        with socket.socket(socket.AF_UNIX) as client_socket:
            client_socket.settimeout(TIMEOUT_S)
            os.chdir(session.folder)  # the path is too long for a socket
            client_socket.connect(sockets.SOCKET_FILE)
            client_socket.sendall(HELLO)
            return b"heard: " + read_all(client_socket)[:200]

    assert as_nobody(talk).startswith(b"PermissionError")
    path, opened = session.folder, []
    while path != "/":  # even if all folders and the socket are open to every user
        opened.append((path, os.stat(path).st_mode))
        os.chmod(path, opened[-1][1] & 0o7777 | 0o055)
        path = os.path.dirname(path)
    try:
        os.chmod(os.path.join(session.folder, sockets.SOCKET_FILE), 0o666)
        output = as_nobody(talk)
        assert output == b"heard: " or output.startswith(
            (b"BrokenPipeError", b"ConnectionResetError")
        ), output
    finally:
        for path, mode in opened:
            os.chmod(path, mode & 0o7777)


def test_connection_without_a_valid_hello_is_refused(hosts):
    session = hosts.start_session()
    with raw(session) as connection:
        connection.sendall(b"x" * (unix_server.MAX_HELLO_BYTES + 1))
        assert b"no hello" in read_all(connection)
    with raw(session) as connection:
        connection.sendall(b"not json\n")
        assert b"refused" in read_all(connection)
    with raw(session) as connection:
        connection.sendall(
            b'{"kind":"message","id":"1","message":{"role":"user","content":"hi"}}\n'
        )
        assert b"hello must be the first frame" in read_all(connection)
    with hosts.connect(session) as connection:
        assert wait_for_frame(connection, "synced")["number"] == 0


@pytest.mark.anyio
async def test_silent_client_is_disconnected_after_the_hello_timeout(host_runtime, monkeypatch):
    monkeypatch.setattr(unix_server, "HELLO_TIMEOUT_S", 0.05)
    async with host_runtime.serve_clients(lambda: None):
        with raw_at(host_runtime._folder) as connection:
            assert b"no hello frame of at most" in await anyio.to_thread.run_sync(
                read_all, connection
            )


def test_connections_over_the_limit_are_refused(hosts):
    session = hosts.start_session()
    links = [raw(session) for _ in range(unix_server.MAX_CONNECTIONS)]
    with raw(session) as connection:
        assert unix_server.FULL_REASON.encode() in read_all(connection)
    links.pop().close()
    hosts.wait_until(session, lambda now: _let_in(session))
    for connection in links:
        connection.close()


def _let_in(session):
    # A full host may have closed the connection before the client sends anything.
    with raw(session) as connection, suppress(BrokenPipeError):
        connection.sendall(HELLO)
        return b"welcome" in connection.recv(100)
    return False


def test_connection_flood_leaks_no_file_descriptors(hosts):
    """The test opens four hundred, or more in `make full`."""
    session = hosts.start_session()
    pid = hosts.wait_until(session, lambda now: now.metadata["pid"] is not None).metadata["pid"]
    with hosts.connect(session) as other_connection:
        wait_for_frame(other_connection, "synced")
        before = len(os.listdir(f"/proc/{pid}/fd"))

        def flood():
            for _ in range(2500 if sweeps.full else 100):
                # A full host may already have closed the connection.
                with raw(session) as connection, suppress(ConnectionError):
                    connection.send(b"{")

        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        other_connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        assert read_until_result(other_connection)[-1]["subtype"] == "success"
        hosts.wait_until(session, lambda now: len(os.listdir(f"/proc/{pid}/fd")) <= before + 2)


def test_oversized_frame_disconnects_only_its_client(hosts):
    folder = hosts.cwd.parent / ".config" / "shim"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("max_inbound_bytes = 20000\n")
    hosts.environment["XDG_CONFIG_HOME"] = str(folder.parent)
    session = hosts.start_session()
    with hosts.connect(session) as other_connection, raw(session) as connection:
        connection.sendall(HELLO)
        connection.sendall(b'{"kind":"message","x":"' + b"x" * 20_000 + b'"}\n')
        data = b""
        while b"a frame can have at most 20000 bytes" not in data:
            data += connection.recv(65536)
        assert wait_for_frame(other_connection, "synced")


def test_session_survives_malformed_frames(hosts):
    session = hosts.start_session()
    with hosts.connect(session) as other_connection:
        for junk in (
            b"\x00\n",
            b"[]\n",
            b"{}\n" * 200,
            b'{"kind":"answer","question":[]}\n' * 200,
            b"\xff" * 100 + b"\n",
        ):
            with raw(session) as connection:
                connection.sendall(HELLO + junk)
                connection.shutdown(socket.SHUT_WR)
                read_all(connection)
        other_connection.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        assert read_until_result(other_connection)[-1]["subtype"] == "success"


def test_client_that_never_reads_uses_bounded_memory(hosts):
    session = hosts.start_session()
    with hosts.connect(session) as other_connection, raw(session) as connection:
        connection.sendall(HELLO)
        connection.settimeout(2)
        frame = b'{"kind":"nonsense","id":"%d","x":"' + b"x" * 1000 + b'"}\n'
        try:
            for number in range(20_000):
                connection.sendall(frame % number)
        except (TimeoutError, OSError):
            pass
        pid = hosts.load_session(session).metadata["pid"]
        with open(f"/proc/{pid}/statm") as file:
            assert int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") < 150 * 1024 * 1024
        assert wait_for_frame(other_connection, "synced")


@pytest.mark.anyio
async def test_internal_error_in_a_frame_handler_disconnects_only_its_client(
    host_runtime, hosts, monkeypatch
):
    hear = runner.on_client_frame

    def fail(hub, client, line):
        if b"fail" in line:
            raise RuntimeError("a mistake")
        hear(hub, client, line)

    monkeypatch.setattr(runner, "on_client_frame", fail)
    async with (
        host_runtime.serve_clients(lambda: None),
        await connect_to_session(
            os.path.basename(host_runtime._folder), hosts.environment
        ) as other_connection,
    ):
        with raw_at(host_runtime._folder) as connection:
            connection.sendall(HELLO + b'{"kind":"fail"}\n')
            assert b"please report this" in await anyio.to_thread.run_sync(read_all, connection)
        await other_connection.send_frame(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        with anyio.fail_after(TIMEOUT_S):
            while (await anext(other_connection))["kind"] != "accepted":
                pass

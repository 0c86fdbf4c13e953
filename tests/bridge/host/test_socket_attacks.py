"""What another user's process, or a client that means harm, can do at the socket of a session:
nothing.
"""

import os
import socket
import threading
from contextlib import suppress

import anyio
import anyio.to_thread
import pytest
import sweeps
from hosting import PATIENCE, read_until_result, wait_for_frame

from shim.bridge import sockets
from shim.bridge.host import door
from shim.bridge.link import connect_to_session

NOBODY = 65534
HELLO = b'{"kind":"hello","protocol":1,"client":"x","role":"drive"}\n'


def raw(one):
    return raw_at(one.folder)


def raw_at(folder):
    link = sockets.connect_to_host(folder)
    link.settimeout(PATIENCE)
    return link


def read_all(link):
    """All that comes up to the end."""
    said = b""
    try:
        while chunk := link.recv(65536):
            said += chunk
    except ConnectionResetError:  # it was closed before it had read all
        pass
    return said


def as_nobody(do):
    """What `do` gives, as a process of another user: at most 255 bytes."""
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
        said = file.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_not_heard(hosts):
    one = hosts.start_session()
    with hosts.connect(one) as link:
        wait_for_frame(link, "synced")

    def talk():
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(PATIENCE)
            os.chdir(one.folder)  # whose path is too long for a socket
            link.connect(sockets.SOCKET_FILE)
            link.sendall(HELLO)
            return b"heard: " + read_all(link)[:200]

    assert as_nobody(talk).startswith(b"PermissionError")
    path, opened = one.folder, []
    while path != "/":  # even where all folders and the socket are open to everybody
        opened.append((path, os.stat(path).st_mode))
        os.chmod(path, opened[-1][1] & 0o7777 | 0o055)
        path = os.path.dirname(path)
    try:
        os.chmod(os.path.join(one.folder, sockets.SOCKET_FILE), 0o666)
        said = as_nobody(talk)
        assert said == b"heard: " or said.startswith(
            (b"BrokenPipeError", b"ConnectionResetError")
        ), said
    finally:
        for path, mode in opened:
            os.chmod(path, mode & 0o7777)


def test_who_says_no_hello_has_no_place(hosts):
    one = hosts.start_session()
    with raw(one) as link:
        link.sendall(b"x" * (door.MAX_HELLO_BYTES + 1))
        assert b"no hello" in read_all(link)
    with raw(one) as link:
        link.sendall(b"not json\n")
        assert b"refused" in read_all(link)
    with raw(one) as link:
        link.sendall(b'{"kind":"message","id":"1","message":{"role":"user","content":"hi"}}\n')
        assert b"hello is the first frame" in read_all(link)
    with hosts.connect(one) as link:
        assert wait_for_frame(link, "synced")["number"] == 0


@pytest.mark.anyio
async def test_a_silent_client_loses_its_place(host_runtime, monkeypatch):
    monkeypatch.setattr(door, "HELLO_TIMEOUT_S", 0.05)
    async with host_runtime.serve_clients():
        with raw_at(host_runtime._folder) as link:
            assert b"no hello of at most" in await anyio.to_thread.run_sync(read_all, link)


def test_only_so_many_may_come_in(hosts):
    one = hosts.start_session()
    links = [raw(one) for _ in range(door.MAX_CONNECTIONS)]
    with raw(one) as link:
        assert door.FULL_REASON.encode() in read_all(link)
    links.pop().close()
    hosts.wait_until(one, lambda now: _let_in(one))
    for link in links:
        link.close()


def _let_in(one):
    # where it is full it may have closed before we say a word
    with raw(one) as link, suppress(BrokenPipeError):
        link.sendall(HELLO)
        return b"welcome" in link.recv(100)
    return False


def test_ten_thousand_connections_leave_nothing(hosts):
    """Four hundred of them, unless in `make full`."""
    one = hosts.start_session()
    pid = hosts.wait_until(one, lambda now: now.metadata["pid"] is not None).metadata["pid"]
    with hosts.connect(one) as stays:
        wait_for_frame(stays, "synced")
        before = len(os.listdir(f"/proc/{pid}/fd"))

        def flood():
            for _ in range(2500 if sweeps.full else 100):
                # where it is full it may have closed already
                with raw(one) as link, suppress(ConnectionError):
                    link.send(b"{")

        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stays.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        assert read_until_result(stays)[-1]["subtype"] == "success"
        hosts.wait_until(one, lambda now: len(os.listdir(f"/proc/{pid}/fd")) <= before + 2)


def test_a_frame_that_is_too_large_ends_its_client_alone(hosts):
    folder = hosts.cwd.parent / ".config" / "shim"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("max_inbound_bytes = 20000\n")
    hosts.environment["XDG_CONFIG_HOME"] = str(folder.parent)
    one = hosts.start_session()
    with hosts.connect(one) as stays, raw(one) as link:
        link.sendall(HELLO)
        link.sendall(b'{"kind":"message","x":"' + b"x" * 20_000 + b'"}\n')
        said = b""
        while b"a frame has at most 20000 bytes" not in said:
            said += link.recv(65536)
        assert wait_for_frame(stays, "synced")


def test_whatever_bytes_come_in_the_session_goes_on(hosts):
    one = hosts.start_session()
    with hosts.connect(one) as stays:
        for junk in (
            b"\x00\n",
            b"[]\n",
            b"{}\n" * 200,
            b'{"kind":"answer","question":[]}\n' * 200,
            b"\xff" * 100 + b"\n",
        ):
            with raw(one) as link:
                link.sendall(HELLO + junk)
                link.shutdown(socket.SHUT_WR)
                read_all(link)
        stays.send_frame_blocking(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        assert read_until_result(stays)[-1]["subtype"] == "success"


def test_a_client_that_only_writes_costs_a_bounded_amount(hosts):
    one = hosts.start_session()
    with hosts.connect(one) as stays, raw(one) as link:
        link.sendall(HELLO)
        link.settimeout(2)
        frame = b'{"kind":"nonsense","id":"%d","x":"' + b"x" * 1000 + b'"}\n'
        try:
            for number in range(20_000):
                link.sendall(frame % number)
        except (TimeoutError, OSError):
            pass
        pid = hosts.load_session(one).metadata["pid"]
        with open(f"/proc/{pid}/statm") as file:
            assert int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") < 150 * 1024 * 1024
        assert wait_for_frame(stays, "synced")


@pytest.mark.anyio
async def test_a_mistake_of_ours_over_a_frame_costs_its_client_alone(
    host_runtime, hosts, monkeypatch
):
    hub = host_runtime.runner.hub
    hear = hub.on_client_frame

    def fail(client, line):
        if b"fail" in line:
            raise RuntimeError("a mistake")
        hear(client, line)

    monkeypatch.setattr(hub, "on_client_frame", fail)
    async with (
        host_runtime.serve_clients(),
        await connect_to_session(
            os.path.basename(host_runtime._folder), hosts.environment
        ) as stays,
    ):
        with raw_at(host_runtime._folder) as link:
            link.sendall(HELLO + b'{"kind":"fail"}\n')
            assert b"please report this" in await anyio.to_thread.run_sync(read_all, link)
        await stays.send_frame(
            {"kind": "message", "id": "m", "message": {"role": "user", "content": "hi"}}
        )
        with anyio.fail_after(PATIENCE):
            while (await anext(stays))["kind"] != "accepted":
                pass

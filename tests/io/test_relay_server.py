"""The socket to the MCP servers of the frontend's process, with real relay processes and a
simulated frontend.
"""

import errno
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar

import anyio
import pytest
from box import TIMEOUT_S

from shim.core.claude.permissions import PermissionDecision
from shim.core.claude.sdk_servers import SdkMcpServerRegistry
from shim.io.mcp import relay_server as module
from shim.io.mcp.relay import SOCKET_VARIABLE, TICKET_VARIABLE
from shim.io.mcp.relay_server import RELAY_ARGS, McpRelayServer
from shim.io.unix import connections
from shim.io.unix.socket_folder import (
    FOLDER_PREFIX,
    MIN_STALE_AGE_S,
    SOCKET_NAME,
    create_socket_folder,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeFrontend:
    """A frontend that answers each request with the result of `says`. It does not answer if the
    result is None.
    """

    def __init__(self, says, seconds=30.0):
        self.servers = SdkMcpServerRegistry(100_000)
        self.servers.register_servers(("calc",))
        self.messages = []
        self.says = says
        self.decided_calls = []
        self.server = McpRelayServer(self.servers, self.flush, self.decide_call, seconds)

    async def decide_call(self, tool, tool_input):
        """Deny a call with the number 13. Change the number 14 to 15. Allow all other calls
        unchanged.
        """
        self.decided_calls.append((tool, tool_input))
        if tool_input.get("n") == 13:
            return PermissionDecision(False, message="unlucky")
        return PermissionDecision(
            True, updated_input={"n": 15} if tool_input.get("n") == 14 else None
        )

    async def flush(self):
        for line in self.servers.take_control_request_lines():
            request = json.loads(line)
            message = request["request"]["message"]
            self.messages.append(message)
            if "id" in message and (result := self.says(message)) is not None:
                response = {
                    "subtype": "success",
                    "response": {"mcp_response": {"id": message["id"], "result": result}},
                }
                self.servers.accept_frontend_response(request["request_id"], response)

    @asynccontextmanager
    async def run_server(self):
        entries = self.server.build_server_configs(("calc",))
        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.server.serve)
                yield entries["calc"]
                tasks.cancel_scope.cancel()


class Client:
    """The MCP client of a vendor, which starts the relay with the configured command."""

    def __init__(self, process):
        self.process = process
        self.lines = b""

    async def say(self, **message):
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def hear(self):
        while b"\n" not in self.lines:
            self.lines += await self.process.stdout.receive()
        line, _, self.lines = self.lines.partition(b"\n")
        return json.loads(line)


@asynccontextmanager
async def client(entry):
    environment = {"PATH": os.environ["PATH"], **entry["env"]}
    async with await anyio.open_process(
        [entry["command"], *entry["args"]], env=environment, stderr=None
    ) as process:
        yield Client(process)
        await process.stdin.aclose()
        await process.wait()


def open_connection(entry, ticket=None):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(entry["env"][SOCKET_VARIABLE])
    connection.sendall((ticket or entry["env"][TICKET_VARIABLE]).encode() + b"\n")
    return connection


async def test_client_request_reaches_the_frontend_and_the_response_returns():
    frontend = FakeFrontend(lambda message: {"echo": message["params"]})
    async with (
        frontend.run_server() as entry,
        client(entry) as first_client,
        client(entry) as other,
    ):
        for number in range(3):
            await first_client.say(id=number, method="resources/read", params={"n": number})
            await other.say(id=number, method="resources/read", params={"m": number})
        assert [(await first_client.hear())["result"]["echo"] for _ in range(3)] == [
            {"n": 0},
            {"n": 1},
            {"n": 2},
        ]
        assert [(await other.hear())["result"]["echo"] for _ in range(3)] == [
            {"m": 0},
            {"m": 1},
            {"m": 2},
        ]


async def test_tool_call_waits_for_its_permission_decision():
    frontend = FakeFrontend(lambda message: {"echo": message["params"]})
    async with frontend.run_server() as entry, client(entry) as relay_client:
        results = []
        for number in (12, 13, 14):
            params = {"name": "add", "arguments": {"n": number}}
            await relay_client.say(id=number, method="tools/call", params=params)
            results.append((await relay_client.hear())["result"])
        assert results[0]["echo"]["arguments"] == {"n": 12} and results[2]["echo"]["arguments"] == {
            "n": 15
        }
        assert results[1] == {"content": [{"type": "text", "text": "unlucky"}], "isError": True}
        assert frontend.decided_calls == [
            ("mcp__calc__add", {"n": number}) for number in (12, 13, 14)
        ]
        await relay_client.say(id=1, method="tools/list", params={"n": 13})
        assert (await relay_client.hear())["result"]["echo"] == {"n": 13}


async def test_socket_folder_is_private_and_removed_at_the_end():
    frontend = FakeFrontend(lambda message: {})
    async with frontend.run_server() as entry:
        folder = Path(entry["env"][SOCKET_VARIABLE]).parent
        assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.getuid()
        assert entry["env"][TICKET_VARIABLE] not in str(entry["args"]) + entry["command"]
    assert not folder.exists()


@pytest.fixture
def shared_folder(monkeypatch):
    """Create a shared folder. Its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


LISTENS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True)"


def start_listener(folder):
    """Start a process that listens in a socket folder. The folder is old enough to be stale."""
    folder.mkdir(mode=0o700)
    argv = [sys.executable, "-c", f"{LISTENS}; sys.stdin.read()", str(folder / SOCKET_NAME)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    aged(folder)
    return process


def aged(folder):
    before = time.time() - 2 * MIN_STALE_AGE_S
    os.utime(folder, (before, before))


def kill_process(process):
    process.kill()
    process.communicate()


def test_stale_socket_folder_of_a_killed_process_is_removed(shared_folder):
    """Threat: a shared folder fills up, because a process that is killed by SIGKILL cannot remove
    its folder.
    """
    stale, empty_folder = (
        shared_folder / f"{FOLDER_PREFIX}aaaaaaaa",
        shared_folder / f"{FOLDER_PREFIX}bbbbbbbb",
    )
    kill_process(start_listener(stale))
    empty_folder.mkdir(mode=0o700)  # of a process that was killed before it created its socket
    aged(empty_folder)
    made = create_socket_folder()
    assert sorted(os.listdir(shared_folder)) == [os.path.basename(made)]


def test_folders_in_use_or_not_created_by_the_shim_are_preserved(shared_folder):
    for name, content in (("cccccccc", "file"), ("dddddddd", SOCKET_NAME)):
        (shared_folder / f"{FOLDER_PREFIX}{name}").mkdir(mode=0o700)
        (shared_folder / f"{FOLDER_PREFIX}{name}" / content).write_text("no socket")
    (shared_folder / f"{FOLDER_PREFIX}eeeeeeee").mkdir(mode=0o755)
    (shared_folder / "another-eeeeeeee").mkdir(mode=0o700)
    kill_process(start_listener(shared_folder / "target"))
    (shared_folder / f"{FOLDER_PREFIX}ffffffff").symlink_to(shared_folder / "target")
    for folder in shared_folder.iterdir():
        aged(folder)
    # the folder of a process that has just started
    (shared_folder / f"{FOLDER_PREFIX}gggggggg").mkdir(mode=0o700)
    listener = start_listener(shared_folder / f"{FOLDER_PREFIX}hhhhhhhh")
    before = {path.relative_to(shared_folder) for path in shared_folder.rglob("*")}
    made = Path(create_socket_folder())
    assert {path.relative_to(shared_folder) for path in shared_folder.rglob("*")} - {
        made.relative_to(shared_folder)
    } == before
    kill_process(listener)


def test_stale_folder_of_another_user_is_not_removed(shared_folder, monkeypatch):
    stale = shared_folder / f"{FOLDER_PREFIX}aaaaaaaa"
    kill_process(start_listener(stale))
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    create_socket_folder()
    assert (stale / SOCKET_NAME).exists()


async def test_accept_is_retried_after_a_delay_without_file_descriptors(monkeypatch):
    class Full(socket.socket):
        failed: ClassVar = []

        def accept(self):
            if len(self.failed) < 3:
                self.failed.append(time.monotonic())
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(connections, "ACCEPT_RETRY_DELAY_S", 0.05)
    frontend = FakeFrontend(lambda message: {"ok": True})
    frontend.server.build_server_configs(("calc",))
    frontend.server._socket = Full(fileno=frontend.server._socket.detach())
    async with frontend.run_server() as entry, client(entry) as relay_client:
        await relay_client.say(id=1, method="resources/list")
        assert (await relay_client.hear())["result"] == {"ok": True}
    first, second, third = Full.failed
    assert second - first >= 0.04 and third - second >= 0.04


async def test_wrong_ticket_closes_the_connection():
    frontend = FakeFrontend(lambda message: {})
    async with frontend.run_server() as entry:
        with open_connection(entry, "0" * 32) as connection:
            connection.setblocking(False)
            await anyio.wait_readable(connection)
            assert connection.recv(1) == b"" and frontend.messages == []


async def test_connection_of_another_user_is_closed(monkeypatch):
    frontend = FakeFrontend(lambda message: {})
    async with frontend.run_server() as entry:
        monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
        with open_connection(entry) as connection:
            connection.setblocking(False)
            await anyio.wait_readable(connection)
            with suppress(ConnectionResetError):  # the server never reads the ticket
                assert connection.recv(1) == b""
        assert frontend.messages == []


async def test_unanswered_request_gets_an_error_after_the_timeout():
    frontend = FakeFrontend(lambda message: None, seconds=0.05)
    async with frontend.run_server() as entry, client(entry) as relay_client:
        await relay_client.say(id=1, method="tools/call", params={"name": "add"})
        assert "did not answer within 0.05 s" in (await relay_client.hear())["error"]["message"]
    assert [message["method"] for message in frontend.messages] == [
        "tools/call",
        "notifications/cancelled",
    ]


async def test_relay_exits_when_the_drop_in_ends():
    frontend = FakeFrontend(lambda message: None)
    async with frontend.run_server() as entry:
        environment = {"PATH": os.environ["PATH"], **entry["env"]}
        process = await anyio.open_process([entry["command"], *entry["args"]], env=environment)
        relay_client = Client(process)
        await relay_client.say(id=1, method="tools/call", params={"name": "add"})
        while not frontend.messages:
            await anyio.lowlevel.checkpoint()
    with anyio.fail_after(TIMEOUT_S):
        assert await process.wait() == 0
        await process.aclose()


def test_relay_without_a_drop_in_reports_an_error_and_exits():
    environment = {"PATH": os.environ["PATH"], SOCKET_VARIABLE: "/nowhere/s", TICKET_VARIABLE: "x"}
    ended = subprocess.run(
        [sys.executable, *RELAY_ARGS],
        env=environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1 and b"cannot connect to the program" in ended.stderr


async def test_malformed_input_does_not_break_the_connection():
    """Fuzzes the framing: lines are cut and joined anywhere, with invalid lines in between."""
    chance = random.Random(15)
    frontend = FakeFrontend(lambda message: {"ok": message.get("params")})
    calls = [
        json.dumps({"id": number, "method": "resources/read", "params": number}).encode()
        for number in range(60)
    ]
    rubbish = (
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[" * 3000,
        b'{"method": 7, "id": 1}',
        b"\x00",
        b'"' + b"x" * 9000,
    )
    lines = [line for call in calls for line in (call, chance.choice(rubbish))]
    data = b"\n".join(lines) + b"\n"
    async with frontend.run_server() as entry:
        with open_connection(entry) as connection:
            connection.setblocking(False)
            at, received = 0, b""
            while sum(b'"ok"' in line for line in received.split(b"\n")[:-1]) < len(calls):
                size = chance.randrange(1, 700)
                if at < len(data):
                    await anyio.wait_writable(connection)
                    at += connection.send(data[at : at + size])
                else:
                    await anyio.wait_readable(connection)
                try:
                    received += connection.recv(65536)
                except BlockingIOError:
                    await anyio.lowlevel.checkpoint()
        results = [json.loads(line) for line in received.splitlines()]
        assert [result["result"]["ok"] for result in results if "result" in result] == list(
            range(60)
        )
        assert all(result["error"]["code"] == -32600 for result in results if "error" in result)


async def test_client_that_reads_no_output_is_disconnected(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 300_000)
    frontend = FakeFrontend(lambda message: {"text": "x" * 200_000})
    async with frontend.run_server() as entry:
        with open_connection(entry) as connection:
            for number in range(8):
                connection.sendall(
                    json.dumps({"id": number, "method": "resources/list"}).encode() + b"\n"
                )
            while frontend.server.connection_count != 1:
                await anyio.lowlevel.checkpoint()
            while frontend.server.connection_count:
                await anyio.lowlevel.checkpoint()

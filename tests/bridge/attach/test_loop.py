"""The loop of a drop-in whose conversation runs in a host. The host is a fake."""

import json
import os
import signal
import socket

import anyio
import pytest
from box import TIMEOUT_S

from shim.bridge import client as links
from shim.bridge.attach import host_joiner, loop
from shim.bridge.attach.frontend_bridge import FrontendSessionBridge
from shim.bridge.attach.loop import AttachedConversationLoop
from shim.bridge.attach.turn_filter import FrontendOutputOptions
from shim.bridge.client import HostConnection, HostNotAnsweringError
from shim.core.bridge.frames import encode_frame, encode_line_frame
from shim.io.stdout import FrontendOutput

pytestmark = pytest.mark.anyio

SESSION = "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d"
WELCOME = {
    "kind": "welcome",
    "client": "us",
    "driver": "us",
    "session": SESSION,
    "state": {"status": "idle"},
}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}


class Stdout:
    """A reader that accepts everything and stays connected."""

    has_failed = False

    def __init__(self):
        self.output = b""

    async def wait_for_disconnect(self):
        await anyio.sleep_forever()

    async def write(self, data):
        self.output += data


class Host:
    """The host's end of a connection."""

    def __init__(self, host_socket):
        self._socket = host_socket
        self._buffer = b""

    def say(self, *frames):
        self._socket.sendall(b"".join(frames))

    async def hear(self):
        """Return the client's next frame, or None at its end."""
        while b"\n" not in self._buffer:
            await anyio.wait_readable(self._socket)
            chunk = self._socket.recv(65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def hear_of(self, kind):
        while (client_frame := await self.hear()) is None or client_frame["kind"] != kind:
            assert client_frame is not None, f"no {kind} came"
        return client_frame


class Joined:
    """A frontend in the session of a fake host. After its end, `status` and its output are set."""

    def __init__(self, prompt):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.host, self.theirs, self.stdout, self.status = Host(theirs), theirs, Stdout(), None
        self.frontend = FrontendSessionBridge(
            FrontendOutputOptions(), SESSION, iter(map(str, range(100))).__next__, can_answer=True
        )
        self.frontend.on_host_frame({**WELCOME, "knows": ["accepted"]})
        self.connection = HostConnection(SESSION, ours, {}, pid=4711)
        output = FrontendOutput("stream-json", verbose=True, stdout=self.stdout)
        self.loop = AttachedConversationLoop(
            self.frontend, self.connection, output, prompt=prompt, source=None, ends_session=False
        )

    async def run(self, *pending):
        with self.theirs, anyio.fail_after(TIMEOUT_S):
            self.status = await self.loop.run(list(pending))
            self.connection.close()

    @property
    def results(self):
        lines = map(json.loads, self.stdout.output.splitlines())
        return [line for line in lines if line["type"] == "result"]


async def begin_turn(joined):
    """Start the turn of the frontend's message."""
    message = await joined.host.hear_of("message")
    init, assistant = (
        {"type": "system", "subtype": "init"},
        {"type": "assistant", "message": {"content": []}},
    )
    frames = (
        encode_line_frame(number, 1, 1, json.dumps(line).encode())
        for number, line in enumerate((init, assistant), 1)
    )
    joined.host.say(encode_frame("accepted", id=message["id"]), *frames)
    while b"assistant" not in joined.stdout.output:
        await anyio.lowlevel.checkpoint()


async def test_unanswered_interrupt_ends_with_an_error_result_that_names_the_host(monkeypatch):
    monkeypatch.setattr(loop, "ANSWER_TIMEOUT_S", 0.05)
    joined = Joined("hi")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joined.run)
        await begin_turn(joined)
        os.kill(os.getpid(), signal.SIGINT)
    (result,) = joined.results
    assert joined.status == 1 and "does not respond (pid 4711)" in str(result)


async def test_interrupt_ends_with_a_result_while_the_host_reads_no_message(monkeypatch):
    monkeypatch.setattr(loop, "ANSWER_TIMEOUT_S", 0.05)
    joined = Joined("x" * 5_000_000)
    await joined.run(signal.SIGINT)
    assert joined.status == 1 and len(joined.results) == 1


async def test_accepted_interrupt_waits_for_the_result_of_the_turn(monkeypatch):
    joined = Joined("hi")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joined.run)
        await begin_turn(joined)
        os.kill(os.getpid(), signal.SIGINT)
        back, interrupt = (
            await joined.host.hear_of("request"),
            await joined.host.hear_of("interrupt"),
        )
        response = {"subtype": "success", "response": {"cancelled": False}}
        joined.host.say(
            encode_frame("response", id=back["id"], response=response),
            encode_frame("accepted", id=interrupt["id"]),
        )
        joined.host.say(encode_line_frame(3, 1, 1, json.dumps(RESULT).encode()))
    assert (joined.status, [result["result"] for result in joined.results]) == (0, ["done"])


async def test_sighup_result_reports_that_the_session_continues(
    monkeypatch,
):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    joined = Joined("hi")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joined.run)
        await begin_turn(joined)
        os.kill(os.getpid(), signal.SIGHUP)
    (result,) = joined.results
    assert (
        joined.status == 129
        and f"the session keeps running, and `claude --resume {SESSION}` joins it" in str(result)
    )


async def test_sending_a_setting_fails_if_the_host_does_not_answer_in_time(monkeypatch):
    monkeypatch.setattr(links, "WELCOME_TIMEOUT_S", 0.05)
    joined = Joined("hi")
    with joined.theirs, anyio.fail_after(TIMEOUT_S), pytest.raises(HostNotAnsweringError):
        await joined.connection.wait_for_host_answer(
            host_joiner._exchange(
                joined.connection, joined.frontend, {"kind": "mode", "mode": "plan"}
            )
        )
    joined.connection.close()


async def test_end_frame_is_sent_only_once():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    host, stdout = Host(theirs), Stdout()
    frontend = FrontendSessionBridge(
        FrontendOutputOptions(), SESSION, iter(map(str, range(100))).__next__, can_answer=True
    )
    frontend.on_host_frame(WELCOME)
    output = FrontendOutput("text", verbose=False, stdout=stdout)
    connection, status = HostConnection(SESSION, ours, {}), None
    ending = AttachedConversationLoop(
        frontend, connection, output, prompt="hi", source=None, ends_session=True
    )

    async def run():
        nonlocal status
        status = await ending.run([])
        connection.close()

    with theirs, anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            message = await host.hear_of("message")
            host.say(
                encode_frame("accepted", id=message["id"]),
                encode_line_frame(1, 1, 1, json.dumps(RESULT).encode()),
            )
            await host.hear_of("end")
            host.say(
                encode_frame("state", state="done", status="idle"),
                encode_frame("bye", reason="stopped"),
            )
            theirs.shutdown(socket.SHUT_WR)
            assert await host.hear() is None, "it was said again"
    assert (status, stdout.output) == (0, b"done\n")

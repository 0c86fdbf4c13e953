"""The loop of a drop-in whose conversation lives in a host, with a host that is played."""

import json
import socket

import anyio
import pytest
from box import PATIENCE

from shim.bridge.attach.frontend import Frontend
from shim.bridge.attach.loop import AttachLoop
from shim.bridge.attach.own_turns import Wants
from shim.bridge.link import Link
from shim.channels.stdout import Output
from shim.core.bridge.frames import DRIVE, frame, line_frame

pytestmark = pytest.mark.anyio

SESSION = "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d"
WELCOME = {"kind": "welcome", "client": "us", "driver": "us", "session": SESSION, "state": {"status": "idle"}}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}


class Stdout:
    """A reader that takes all, and stays."""

    broken = False

    def __init__(self):
        self.said = b""

    async def gone(self):
        await anyio.sleep_forever()

    async def write(self, data):
        self.said += data


class Host:
    """The other end of a link."""

    def __init__(self, link):
        self._link = link
        self._rest = b""

    def say(self, *frames):
        self._link.sendall(b"".join(frames))

    async def hear(self):
        """The next frame of the client, None at its end."""
        while b"\n" not in self._rest:
            await anyio.wait_readable(self._link)
            chunk = self._link.recv(65536)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def hear_of(self, kind):
        while (heard := await self.hear()) is None or heard["kind"] != kind:
            assert heard is not None, f"no {kind} came"
        return heard


async def test_the_end_of_a_session_is_asked_for_once_whatever_its_host_still_says():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    host, stdout = Host(theirs), Stdout()
    frontend = Frontend(Wants(), SESSION, iter(map(str, range(100))).__next__, asked=True)
    frontend.framed(WELCOME)
    output = Output("text", verbose=False, stdout=stdout)
    link, status = Link(SESSION, ours, DRIVE, {}), None
    loop = AttachLoop(frontend, link, output, prompt="hi", source=None, ends=True)

    async def run():
        nonlocal status
        status = await loop.run([])
        link.close()

    with theirs, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            message = await host.hear_of("message")
            host.say(frame("accepted", id=message["id"]), line_frame(1, 1, 1, json.dumps(RESULT).encode()))
            await host.hear_of("end")
            host.say(frame("state", state="done", status="idle"), frame("bye", reason="stopped"))
            theirs.shutdown(socket.SHUT_WR)
            assert await host.hear() is None, "it was said again"
    assert (status, stdout.said) == (0, b"done\n")

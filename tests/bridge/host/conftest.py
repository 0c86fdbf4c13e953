"""The life of a session whose host runs in this process."""

import os
from collections.abc import Iterator

import pytest

from shim.bridge import start
from shim.bridge.host import life
from shim.bridge.host.__main__ import _invocation
from shim.bridge.host.life import Facts, Life
from shim.conversation.decide import Start


@pytest.fixture
def life_here(inside, hosts, monkeypatch) -> Iterator[Life]:
    """The life of a session in this process, without its conversation. It looks at the time often,
    and is idle soon.

    The session was begun with the prompt "go". `async with life_here.serving()` opens its socket.
    """
    opened = []

    def keep(folder, held, listening, environment, stdin):
        opened.append(listening.dup())
        return os.getpid()

    monkeypatch.setattr(start, "_spawn_host", keep)
    monkeypatch.setattr(life, "TICK_SECONDS", life.SHORTEST_SECONDS)
    # it would change the process of the tests
    monkeypatch.setattr(life, "preload", lambda *_: None)
    inside.settings("bridge_idle = 0.01\n")
    one = hosts.start("go")
    monkeypatch.setenv("SHIM_VENDOR", "qwen")
    monkeypatch.setenv("SHIM_BIN", "/bin/true")
    facts, wanted = Facts(one.folder), start.read_session_spec(one.folder)
    begun = Start(_invocation(one.folder, facts, wanted), wanted.installed, wanted.arguments)
    yield Life(one.folder, facts, begun, wanted, opened[0])
    opened[0].close()

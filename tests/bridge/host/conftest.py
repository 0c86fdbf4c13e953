"""A session whose host runs in this process."""

import os
from collections.abc import Iterator

import pytest

from shim.bridge import launch
from shim.bridge.host import runtime
from shim.bridge.host.__main__ import _build_invocation
from shim.bridge.host.runtime import SessionHostMetadata, SessionHostRuntime
from shim.conversation.startup import prepare_conversation


@pytest.fixture
def host_runtime(local_box, hosts, monkeypatch) -> Iterator[SessionHostRuntime]:
    """Yield the runtime of a session in this process, without its conversation. It checks the time
    often, and is idle soon.

    The session was started with the prompt "go". `async with life_here.serving()` opens its socket.
    """
    opened = []

    def spawn_host(folder, host_lock, listening, environment, stdin):
        opened.append(listening.dup())
        return os.getpid()

    monkeypatch.setattr(launch, "_spawn_host", spawn_host)
    monkeypatch.setattr(runtime, "MAX_TICK_INTERVAL_S", runtime.MIN_TICK_INTERVAL_S)
    # It would change the process of the tests.
    monkeypatch.setattr(runtime, "preload_modules", lambda *_: None)
    local_box.write_settings("bridge_idle = 0.01\n")
    session = hosts.start_session("go")
    monkeypatch.setenv("SHIM_VENDOR", "qwen")
    monkeypatch.setenv("SHIM_BIN", "/bin/true")
    metadata, spec = SessionHostMetadata(session.folder), launch.read_session_spec(session.folder)
    startup = prepare_conversation(
        _build_invocation(session.folder, metadata, spec), spec.installed, spec.arguments
    )
    yield SessionHostRuntime(session.folder, metadata, startup, spec, opened[0])
    opened[0].close()

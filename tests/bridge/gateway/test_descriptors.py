"""`bridge serve` and a host with 256 file descriptors, as on macOS, and more connections than
that.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import anyio
import pytest
from gateway_harness import TIMEOUT_S, ask_at

from shim.bridge.gateway import connections, limits
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.process.descriptors import MIN_CONNECTIONS, compute_connection_limit

MACOS = 256


@pytest.fixture(scope="module")
def limited_server(tmp_path_factory):
    """Start a server process with few descriptors. Yield its port, its token and its stderr
    file.
    """
    path = tmp_path_factory.mktemp("served")
    environment = {**os.environ, "SHIM_STATE": str(path / "state"), "HOME": str(path)}
    with (path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shim", "bridge", "serve", "--http", "0"],
            env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (MACOS, MACOS)),
        )  # fmt: skip
    port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    try:
        yield port, GatewayTokenFile(environment).load_tokens().drive, path / "stderr", process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)


def silent(stack, port, count):
    """Open connections that send nothing. The server may refuse one of them."""
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.settimeout(TIMEOUT_S)
        connection.connect(("127.0.0.1", port))


def test_descriptor_shortage_is_reported_once_and_server_recovers(limited_server):
    """Other code uses the descriptors: the limit is lowered while the server runs."""
    port, token, stderr, pid = limited_server
    headers = {"Authorization": f"Bearer {token}"}
    assert ask_at(port, "GET", "/sessions", None, headers).status == 200
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, MACOS))
    with ExitStack() as stack:
        silent(stack, port, 40)
        deadline = time.monotonic() + TIMEOUT_S
        while not stderr.read_text():
            assert time.monotonic() < deadline, "the shortage is not reported"
            time.sleep(0.02)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (MACOS, MACOS))
    assert ask_at(port, "GET", "/sessions", None, headers).status == 200
    (line,) = stderr.read_text().splitlines()
    assert "file descriptors are in use" in line


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.full)])
def test_silent_connections_do_not_block_authorized_requests(limited_server, rounds):
    port, token, stderr, pid = limited_server
    headers = {"Authorization": f"Bearer {token}"}
    for _ in range(rounds):
        with ExitStack() as stack:
            silent(stack, port, 300)
            assert ask_at(port, "GET", "/sessions", None, headers).status == 200
            assert ask_at(port, "GET", "/me", None, headers).status == 200
    assert ask_at(port, "GET", "/sessions", None, headers).status == 200
    assert len(stderr.read_text().splitlines()) <= 1
    deadline = time.monotonic() + TIMEOUT_S
    while len(os.listdir(f"/proc/{pid}/fd")) > 32:
        assert time.monotonic() < deadline, "the connections stay open"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("soft", "allowed"), [(256, 80), (1024, 464), (20_000, 512), (64, MIN_CONNECTIONS)]
)
def test_connection_limit_depends_on_the_descriptor_limit(monkeypatch, soft, allowed):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert connections.compute_max_connections() == allowed
    monkeypatch.setattr(
        resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    assert compute_connection_limit(7, per_connection=2, reserved=9) == 7


def test_open_streams_leave_connections_free_for_requests(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MACOS, MACOS))
    counts = limits.GatewayRequestLimiter()

    async def fill():
        with ExitStack() as stack:
            for role in ("drive", "watch"):
                with pytest.raises(limits.HTTPError, match="streams are already open"):
                    while True:
                        stack.enter_context(counts.reserve_event_stream(role))
            assert 40 < sum(counts._stream_counts.values()) < connections.compute_max_connections()

    anyio.run(fill)

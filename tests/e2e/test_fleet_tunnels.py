"""Tunnels between a member of a fleet and a machine, over a real NATS server with TLS. The machine runs
a small program instead of the relay, so that its streams and its end can be observed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fleet_home import UUID, run_connected
from fleet_lab import FleetLab, read_admin_join
from nats.aio.msg import Msg
from sandbox import wait_until

from shim.core.errors import ShimError
from shim.core.fleet.join_file import JoinFile
from shim.core.fleet.roles import DRIVE, WATCH
from shim.core.fleet.sealing import NONCE_BYTES
from shim.core.fleet.tunnel import (
    SILENCE_LIMIT_S,
    WINDOW_BYTES,
    MessageKind,
    TunnelError,
    decode_exit,
)
from shim.fleet.connection import FleetConnection, connect_to_fleet
from shim.fleet.dial import OPEN_TIMEOUT_S, open_tunnel
from shim.fleet.folder import store_join_file
from shim.fleet.machine_tunnels import MAX_GUEST_TUNNELS
from shim.fleet.tunnels import Tunnel

pytestmark = pytest.mark.e2e

SHIM = (sys.executable, "-I", "-m", "shim")
MACHINE_SCRIPT = str(Path(__file__).parent / "fleet_machine.py")
START_SECONDS = 30.0
LOOK_SECONDS = 0.05
OTHER_UUID = "0123abcd-0000-4000-8000-000000000002"
MEGABYTES = 10
NO_RESPONDERS_S = 0.1
RELAY_END_S = 3.0  # from the end of a tunnel to the end of the relay
PIPES_BYTES = 512 * 1024  # the buffers of pipes and sockets between the programs
LINE_BYTES = 16  # of the mode "count"
# Writes its id and its options to a file. Then it echoes stdin, or writes numbered lines without an end
# and stores how many bytes were written.
PROGRAM = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.argv[3:])}\\n")
if sys.argv[2] == "echo":
    while data := os.read(0, 65536):
        while data:
            data = data[os.write(1, data):]
    os.write(2, b"end of stdin\\n")
    sys.exit(7)
if sys.argv[2] == "count":
    number = 0
    while True:
        os.write(1, b"%015d\\n" % number)
        number += 1
        if number % 64 == 0:
            new_path = f"{sys.argv[1]}.{os.getpid()}"
            with open(new_path, "w") as file:
                file.write(str(16 * number))
            os.replace(new_path, sys.argv[1] + ".sent")
"""


@dataclass
class TunnelLab:
    """A fleet with its server, a machine `build` that runs PROGRAM, and the user `here`."""

    lab: FleetLab
    folder: Path
    here: dict[str, str] = field(default_factory=dict)
    machine: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.here = self.lab.build_environment([])
        self.build = self.here | {"SHIM_STATE": str(self.folder / "build-state")}
        Path(self.build["SHIM_STATE"]).mkdir(mode=0o700)
        store_join_file(self.lab.invite("build", "machine"), self.build)

    def start_machine(self, mode: str, *program: str) -> None:
        """Start the machine. Its relays run PROGRAM in a mode."""
        argv = program or (sys.executable, "-c", PROGRAM, str(self.folder / "started"), mode)
        self.machine = subprocess.Popen(
            [sys.executable, MACHINE_SCRIPT, *argv], env=self.build, stdout=subprocess.PIPE
        )
        assert self.machine.stdout is not None
        assert self.machine.stdout.readline() == b"ready\n"

    def list_started(self) -> list[str]:
        """Return a line for each relay that was started: its process id and its options."""
        path = self.folder / "started"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_relay(self) -> int:
        """Wait until a relay has started. Return its process id."""
        assert wait_until(lambda: bool(self.list_started()), START_SECONDS, LOOK_SECONDS)
        return int(self.list_started()[-1].split()[0])

    def dial(self, **options: int) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [*SHIM, "fleet", "dial", "build"], env=self.here, **(pipes | options)
        )

    def close(self) -> None:
        if self.machine is not None:
            self.machine.send_signal(signal.SIGCONT)
            self.machine.kill()
            self.machine.communicate()
        if self.lab.server is not None:
            self.lab.server.send_signal(signal.SIGCONT)
        self.lab.close()


@pytest.fixture
def tunnels(tmp_path: Path) -> Iterator[TunnelLab]:
    folder = tmp_path / "lab"
    folder.mkdir()
    lab = FleetLab(folder)
    tunnels = TunnelLab(lab, tmp_path)
    yield tunnels
    tunnels.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_relay_ends(pid: int, seconds: float) -> None:
    assert wait_until(lambda: not is_running(pid), seconds, LOOK_SECONDS)


def test_streams_and_status_are_those_of_the_relay(tunnels: TunnelLab) -> None:
    """10 MB in both directions at once."""
    tunnels.start_machine("echo")
    data = random.Random(1).randbytes(MEGABYTES * 1024 * 1024)
    dial = tunnels.dial()
    stdout, stderr = dial.communicate(data)
    assert stdout == data
    assert (stderr, dial.returncode) == (b"end of stdin\n", 7)


def test_stdin_and_stdout_may_be_files(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    source, target = tunnels.folder / "source", tunnels.folder / "target"
    source.write_bytes(b"x" * 1_000_000)
    with source.open("rb") as stdin, target.open("wb") as stdout:
        dial = tunnels.dial(stdin=stdin.fileno(), stdout=stdout.fileno())
        assert dial.communicate() == (None, b"end of stdin\n")
    assert (dial.returncode, target.read_bytes() == source.read_bytes()) == (7, True)
    dial = tunnels.dial(stdin=subprocess.DEVNULL)
    assert dial.communicate() == (b"", b"end of stdin\n")


def test_reader_that_stops_limits_the_data_on_the_way(tunnels: TunnelLab) -> None:
    tunnels.start_machine("count")
    sent_path = tunnels.folder / "started.sent"

    def get_sent_bytes() -> int:
        return int(sent_path.read_text()) if sent_path.exists() else 0

    with tunnels.dial() as dial:
        assert dial.stdout is not None
        assert wait_until(lambda: get_sent_bytes() > WINDOW_BYTES / 2, START_SECONDS, LOOK_SECONDS)
        time.sleep(SILENCE_LIMIT_S)  # the tunnel does not end because of a slow reader
        sent_bytes = get_sent_bytes()
        assert sent_bytes < 2 * WINDOW_BYTES + PIPES_BYTES
        for number in range(sent_bytes // LINE_BYTES * 2):
            assert dial.stdout.readline() == b"%015d\n" % number
        dial.terminate()
    check_relay_ends(tunnels.wait_for_relay(), RELAY_END_S)


def test_machine_that_is_not_there_is_reported_at_once(tunnels: TunnelLab) -> None:
    times_s = []

    async def fail(connection: FleetConnection) -> None:
        started_s = time.monotonic()
        with pytest.raises(TunnelError, match="build is not connected to the fleet"):
            await open_tunnel(connection, "build")
        times_s.append(time.monotonic() - started_s)

    run_connected(read_admin_join(tunnels.lab), fail)
    assert times_s[0] < NO_RESPONDERS_S
    dial = tunnels.dial()
    assert dial.communicate() == (b"", b"build is not connected to the fleet\n")
    assert dial.returncode == 255


def test_machine_that_hangs_is_reported_in_time(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    assert tunnels.machine is not None
    tunnels.machine.send_signal(signal.SIGSTOP)
    started_s = time.monotonic()
    dial = tunnels.dial()
    stdout, stderr = dial.communicate()
    # The server notices the machine after 6 s, but tells nobody.
    assert (stdout, dial.returncode) == (b"", 255)
    assert b"build did not answer within 8 s" in stderr
    assert time.monotonic() - started_s < OPEN_TIMEOUT_S + 2


@pytest.mark.parametrize(
    ("victim", "signal_number", "limit_s", "reason"),
    [
        ("server", signal.SIGKILL, 1, "the server"),
        ("server", signal.SIGSTOP, 8, "the server"),
        ("machine", signal.SIGKILL, 6, "the other side has disconnected from the fleet"),
        # The server disconnects the machine after 6 s, or the silence is noticed after 8 s.
        ("machine", signal.SIGSTOP, 10, ""),
    ],
    ids=["server killed", "server hangs", "machine killed", "machine hangs"],
)
def test_lost_tunnel_ends_both_sides(
    tunnels: TunnelLab, victim: str, signal_number: signal.Signals, limit_s: float, reason: str
) -> None:
    tunnels.start_machine("echo")
    process = tunnels.lab.server if victim == "server" else tunnels.machine
    assert process is not None
    with tunnels.dial() as dial:
        assert dial.stdin is not None
        assert dial.stdout is not None
        assert dial.stderr is not None
        dial.stdin.write(b"first line\nsecond")
        dial.stdin.flush()
        assert os.read(dial.stdout.fileno(), 100) == b"first line\nsecond"
        pid = tunnels.wait_for_relay()
        process.send_signal(signal_number)
        started_s = time.monotonic()
        assert dial.wait(SILENCE_LIMIT_S + 4) == 255
        assert time.monotonic() - started_s < limit_s
        (error,) = dial.stderr.read().decode().splitlines()
        prefix = "the connection to build was lost, and a command may have been executed: "
        assert error.startswith(prefix)
        assert reason in error.removeprefix(prefix)
        assert dial.stdout.read() == b""
    process.send_signal(signal.SIGCONT)
    check_relay_ends(pid, SILENCE_LIMIT_S + RELAY_END_S)


@pytest.mark.parametrize(
    ("signal_number", "seconds"),
    [(signal.SIGTERM, RELAY_END_S), (signal.SIGKILL, 6 + RELAY_END_S)],
    ids=["stopped", "killed"],
)
def test_end_of_the_member_ends_the_relay(
    tunnels: TunnelLab, signal_number: signal.Signals, seconds: float
) -> None:
    # A relay that ignores the end of its stdin.
    tunnels.start_machine("count")
    with tunnels.dial(stdout=subprocess.DEVNULL) as dial:
        pid = tunnels.wait_for_relay()
        dial.send_signal(signal_number)
        dial.wait(START_SECONDS)
        check_relay_ends(pid, seconds)


def test_closed_stdout_ends_the_tunnel(tunnels: TunnelLab) -> None:
    tunnels.start_machine("count")
    with tunnels.dial() as dial:
        assert dial.stdout is not None
        assert dial.stderr is not None
        dial.stdout.readline()
        dial.stdout.close()
        assert dial.wait(START_SECONDS) == 255
        assert dial.stderr.read() == b""
        check_relay_ends(tunnels.wait_for_relay(), RELAY_END_S)


def test_relay_that_cannot_start_is_reported(tunnels: TunnelLab) -> None:
    tunnels.start_machine("", "/no/such/program")
    dial = tunnels.dial()
    assert dial.communicate() == (
        b"",
        b"the relay cannot be started: No such file or directory\n",
    )
    assert dial.returncode == 126


def test_machine_that_stops_tells_the_member(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    assert tunnels.machine is not None
    with tunnels.dial() as dial:
        assert dial.stderr is not None
        pid = tunnels.wait_for_relay()
        tunnels.machine.terminate()
        assert dial.wait(RELAY_END_S) == 255
        assert dial.stderr.read().endswith(b": `shim fleet run` has ended there\n")
        check_relay_ends(pid, RELAY_END_S)


class Wiretap:
    """Records the messages of members, as a hostile server could."""

    def __init__(self) -> None:
        self.opens: list[Msg] = []
        self.messages: list[Msg] = []

    async def start(self, connection: FleetConnection) -> None:
        async def add(message: Msg) -> None:
            target = self.opens if ".open." in message.subject else self.messages
            target.append(message)

        await connection.client.subscribe("shim.home.build.>", cb=add)
        await connection.client.flush()


async def exchange(tunnel: Tunnel, data: bytes) -> bytes:
    """Send data to a relay that echoes it. Return what comes back."""
    await tunnel.send_data(MessageKind.STDIN, data)
    received = b""
    while len(received) < len(data):
        message = await asyncio.wait_for(tunnel.receive(), START_SECONDS)
        if message.kind is MessageKind.EXIT:
            raise TunnelError(decode_exit(message.content)[1])
        received += message.content
    return received


def test_forged_messages_are_ignored_and_repeated_ones_end_the_tunnel(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    mallory = tunnels.lab.forge_member(tunnels.lab.invite("mallory", WATCH), allows_all=True)

    async def attack(hostile: FleetConnection) -> None:
        wiretap = Wiretap()
        await wiretap.start(hostile)
        async with connect_to_fleet(read_admin_join(tunnels.lab)) as connection:
            tunnel = await open_tunnel(connection, "build")
            assert await exchange(tunnel, b"one") == b"one"
            up = next(message for message in wiretap.messages if ".up." in message.subject)
            down = next(message for message in wiretap.messages if ".down." in message.subject)
            for message in (up, down):
                data = message.data
                for forged in (
                    b"",
                    b"x" * 200,
                    data[:-1] + bytes((data[-1] ^ 1,)),
                    (9).to_bytes(8, "big") + data[8:],
                    (down if message is up else up).data,
                ):
                    await hostile.client.publish(message.subject, forged)
            await hostile.client.flush()
            assert await exchange(tunnel, b"two") == b"two"

            await hostile.client.publish(up.subject, up.data)
            await hostile.client.flush()
            with pytest.raises(TunnelError, match="the message 0 of a tunnel has arrived twice"):
                await exchange(tunnel, b"three")
        # All messages of the tunnel again, in their order and in another one.
        count = len(tunnels.list_started())
        for messages in (wiretap.messages, wiretap.messages[::-1]):
            await hostile.client.publish(wiretap.opens[0].subject, wiretap.opens[0].data)
            await hostile.client.flush()
            for message in list(messages):
                await hostile.client.publish(message.subject, message.data)
            await hostile.client.flush()
        await asyncio.sleep(1)
        assert len(tunnels.list_started()) == count == 1

    run_connected(mallory, attack)
    dial = tunnels.dial()
    assert dial.communicate(b"still here")[0] == b"still here"


@pytest.mark.parametrize("order", [(1, 0), (1,)], ids=["reordered", "lost"])
def test_reordered_and_lost_messages_end_the_tunnel(
    tunnels: TunnelLab, order: tuple[int, ...]
) -> None:
    tunnels.start_machine("echo")

    async def send(connection: FleetConnection) -> None:
        tunnel = await open_tunnel(connection, "build")
        assert await exchange(tunnel, b"one") == b"one"
        messages = [
            tunnel._endpoint.seal_message(MessageKind.STDIN, content, os.urandom(NONCE_BYTES))
            for content in (b"two", b"three")
        ]
        for number in order:
            await connection.client.publish(tunnel._subject, messages[number])
        with pytest.raises(TunnelError, match="of a tunnel is missing"):
            await exchange(tunnel, b"four")

    run_connected(read_admin_join(tunnels.lab), send)
    check_relay_ends(tunnels.wait_for_relay(), RELAY_END_S)


def act_as(join: JoinFile, connection: FleetConnection) -> FleetConnection:
    """Return a connection of a member that uses the socket of another connection."""
    other = FleetConnection(join)
    other.client = connection.client
    return other


def refuse(tunnels: TunnelLab, connection_join: JoinFile, join: JoinFile) -> str:
    """Open a tunnel with the join file of a member, over the connection of another member that may
    publish everything. Return why the machine refuses it, or "".
    """
    refusals = []

    async def use(connection: FleetConnection) -> None:
        try:
            tunnel = await open_tunnel(act_as(join, connection), "build")
            await tunnel.send(MessageKind.PING)
            refusals.append("")
        except ShimError as error:
            refusals.append(str(error))

    run_connected(connection_join, use)
    return refusals[0]


def test_machine_checks_role_session_and_expiry_without_the_server(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    lab = tunnels.lab
    fleet_key = read_admin_join(lab).key
    uncaged = lab.forge_member(lab.invite("mallory", WATCH), allows_all=True)
    guest = lab.invite("guest", DRIVE, UUID)
    wanda = lab.invite("wanda", WATCH)
    assert refuse(tunnels, uncaged, guest) == ""
    assert refuse(tunnels, uncaged, guest._replace(session="")) == (
        f"guest may only use the session {UUID}"
    )
    assert refuse(tunnels, uncaged, guest._replace(session=OTHER_UUID)) == (
        f"guest may only use the session {UUID}"
    )
    # A watcher that has found out the key of the fleet.
    assert refuse(tunnels, uncaged, wanda) == ""
    assert refuse(tunnels, uncaged, wanda._replace(role=DRIVE, key=fleet_key)) == (
        "wanda may only watch sessions"
    )
    # The JWT of another member, without its private key.
    stolen = guest._replace(seed=wanda.seed)
    assert refuse(tunnels, uncaged, stolen) == "a message was not signed by its sender"
    expired = lab.forge_member(guest, expires_s=int(time.time()) - 5)
    assert refuse(tunnels, uncaged, expired) == "the membership of guest has ended"

    def list_options() -> list[str]:
        return [line.partition(" ")[2] for line in tunnels.list_started()]

    assert wait_until(lambda: len(list_options()) == 2, START_SECONDS, LOOK_SECONDS)
    assert sorted(list_options()) == [f"--session {UUID} --no-start", "--watch --no-start"]


def test_tunnel_ends_with_the_membership(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    lab = tunnels.lab
    uncaged = lab.forge_member(lab.invite("mallory", WATCH), allows_all=True)
    guest = lab.forge_member(lab.invite("guest", DRIVE), expires_s=int(time.time()) + 4)

    async def use(connection: FleetConnection) -> None:
        tunnel = await open_tunnel(act_as(guest, connection), "build")
        assert await exchange(tunnel, b"one") == b"one"
        with pytest.raises(TunnelError, match="the membership has ended"):
            while True:
                await exchange(tunnel, b"more")
                await asyncio.sleep(0.2)

    run_connected(uncaged, use)
    check_relay_ends(tunnels.wait_for_relay(), RELAY_END_S)


def test_guest_has_a_limited_number_of_tunnels(tunnels: TunnelLab) -> None:
    tunnels.start_machine("echo")
    guest = tunnels.lab.invite("guest", WATCH, UUID)

    async def use(connection: FleetConnection) -> None:
        for _ in range(MAX_GUEST_TUNNELS):
            await open_tunnel(connection, "build")
        with pytest.raises(TunnelError, match="guest already has 16 tunnels to this machine"):
            await open_tunnel(connection, "build")

    run_connected(guest, use)
    assert tunnels.list_started() == []
    dial = tunnels.dial()
    assert dial.communicate(b"data")[0] == b"data"

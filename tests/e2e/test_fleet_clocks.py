"""A fleet over a real NATS server, with a machine or a member whose clock is off by a day."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nats.errors
import pytest
from fleet_home import AWAY_SECONDS, Home, read_copied_lines, run_connected, run_home
from fleet_lab import write_join_file
from sandbox import wait_until
from test_machines import (
    LOOK_SECONDS,
    TURN_SECONDS,
    list_agents,
    read_lines,
    run_shim,
    start_demo,
    wait_for_state,
)
from wrong_clock import SECONDS_PER_DAY, build_clock_environment

from shim.core.fleet.join_file import JoinFile, parse_join_file
from shim.core.fleet.registry import LEASE_TTL_S
from shim.core.fleet.roles import DRIVE, MACHINE, WATCH
from shim.core.fleet.subjects import build_lease_subject
from shim.core.fleet.tunnel import MessageKind
from shim.fleet import admin
from shim.fleet.buckets import read_entry
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.dial import open_tunnel
from shim.fleet.folder import require_join_file, store_join_file

pytestmark = pytest.mark.e2e

AHEAD, LATE = SECONDS_PER_DAY, -SECONDS_PER_DAY
BOTH_DIRECTIONS = pytest.mark.parametrize("offset_s", [AHEAD, LATE], ids=["ahead", "late"])
MAINLY_AHEAD = pytest.mark.parametrize(
    "offset_s", [AHEAD, pytest.param(LATE, marks=pytest.mark.full)], ids=["ahead", "late"]
)
TOLERANCE_S = 600  # for the duration of a test
MEMBERSHIP_SECONDS = 15  # a tunnel opens within them, even on a busy machine
RENEWALS = 4  # three of them take longer than a lease lasts


@dataclass
class ClockHome(Home):
    """A fleet whose machine `build` has a wrong clock."""

    offset_s: int = 0

    def __post_init__(self) -> None:
        self.clock = build_clock_environment(self.folder, self.offset_s)
        super().__post_init__()

    def create_environment(self, name: str) -> dict[str, str]:
        environment = super().create_environment(name)
        if name == "build":
            environment |= self.clock
        return environment


@pytest.fixture
def home(tmp_path: Path, offset_s: int) -> Iterator[ClockHome]:
    with run_home(tmp_path, partial(ClockHome, offset_s=offset_s)) as home:
        yield home


def invite_for_a_day(home: Home, name: str, role: str) -> JoinFile:
    """Return the join file of a membership that ends after a day."""
    path = admin.invite_member(home.lab.admin_folder, name, role, days=1)
    return parse_join_file(Path(path).read_bytes(), path)


def is_refused(join: JoinFile) -> bool:
    """Return whether the server refuses a login."""

    async def disconnect(connection: FleetConnection) -> None:
        # The server may accept a login, and end the connection in the same second.
        with suppress(nats.errors.Error):
            await connection.client.flush()

    try:
        run_connected(join, disconnect)
    except FleetUnavailableError:
        return True
    return False


def list_relays(home: Home) -> list[str]:
    """Return the ids of the relays that run on `build`."""
    state = f"SHIM_STATE={home.build['SHIM_STATE']}".encode()
    relays = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has exited
            is_relay = (entry / "cmdline").read_bytes().endswith(b"\0bridge\0relay\0")
            if is_relay and state in (entry / "environ").read_bytes().split(b"\0"):
                relays.append(entry.name)
    return relays


def is_off_by(time_ms: int, offset_s: int) -> bool:
    """Return whether a time is about `offset_s` from now."""
    return abs(time_ms / 1000 - time.time() - offset_s) < TOLERANCE_S


def wait_for_renewals(home: Home) -> None:
    """Wait until `build` has renewed its lease for longer than a lease lasts."""
    sequences = set[int]()

    async def watch(connection: FleetConnection) -> None:
        stored = await read_entry(connection.client, build_lease_subject("build"))
        assert stored.data, "the lease has ended"
        sequences.add(stored.sequence)

    watcher = home.lab.invite("watcher", "watch")
    duration_s = LEASE_TTL_S + AWAY_SECONDS

    def is_renewed() -> bool:
        run_connected(watcher, watch)
        return len(sequences) >= RENEWALS

    assert wait_until(is_renewed, duration_s, LOOK_SECONDS), sequences


@BOTH_DIRECTIONS
def test_machine_with_a_wrong_clock_is_used_as_any_other(home: ClockHome, offset_s: int) -> None:
    session = home.start_session()
    assert is_off_by(session["startedAt"], offset_s)
    uuid = session["sessionId"]
    lines = read_lines(home.here, f"build:{uuid}", None)
    assert lines
    assert lines == read_lines(home.build, uuid, None)
    wait_for_renewals(home)
    assert list_agents(home.here, "--all") == [session]
    assert wait_until(lambda: read_copied_lines(home, uuid) == lines, TURN_SECONDS, LOOK_SECONDS)

    home.lab.stop_machine("build", signal.SIGKILL)

    def is_away() -> bool:
        return "away" in list_agents(home.here, "--all")[0]

    assert wait_until(is_away, AWAY_SECONDS + TURN_SECONDS, LOOK_SECONDS)
    (away,) = list_agents(home.here, "--all")
    # The time is the server's.
    assert is_off_by(away["away"], 0)
    assert read_lines(home.here, f"build:{uuid}", None) == lines


@BOTH_DIRECTIONS
def test_join_warns_about_the_wrong_clock(home: ClockHome, offset_s: int) -> None:
    wrong = home.create_environment("wrong") | home.clock
    file = write_join_file(home.lab.invite("wrong", MACHINE), home.folder / "wrong.join")
    joined = run_shim(wrong, "fleet", "join", file)
    assert joined.returncode == 0, joined.stderr
    warning = "the clock of this machine differs from the server's by "
    (line,) = joined.stderr.splitlines()
    assert warning in line
    difference_s = int(line.partition(warning)[2].removesuffix(" s"))
    # The server's time minus this machine's.
    assert abs(difference_s + offset_s) < TOLERANCE_S
    right = home.create_environment("right")
    file = write_join_file(home.lab.invite("right", MACHINE), home.folder / "right.join")
    assert run_shim(right, "fleet", "join", file).stderr == ""


@MAINLY_AHEAD
def test_wrong_clock_does_not_hide_a_copied_machine(home: ClockHome, offset_s: int) -> None:
    session = home.start_session()
    process = home.lab.processes["build"]
    copy = home.create_environment("copy")
    store_join_file(require_join_file(home.build), copy)
    refused = run_shim(copy, "fleet", "run")
    assert refused.returncode == 1
    assert "the machine build is already connected to the fleet, from" in refused.stderr
    assert process.poll() is None
    assert list_agents(home.here, "--all") == [session]

    # The same machine is not its own copy after its clock was corrected.
    process.kill()
    process.wait()
    right_clock = {key: value for key, value in home.build.items() if key not in home.clock}
    home.lab.run_machine("build", right_clock)
    assert list_agents(home.here, "--all") == [session]


@MAINLY_AHEAD
def test_member_with_a_wrong_clock_uses_other_machines(home: ClockHome, offset_s: int) -> None:
    """The clocks of the members differ by two days."""
    session = home.start_session()
    reference = f"build:{session['sessionId']}"
    opposite = build_clock_environment(home.folder, -offset_s)
    wanda = home.join_as(home.lab.invite("wanda", WATCH)) | opposite
    lab = home.create_environment("lab") | opposite
    home.lab.start_machine("lab", lab)
    for environment in (wanda, lab):
        assert list_agents(environment, "--all") == [session]
        assert "the three tests pass" in run_shim(environment, "claude", "logs", reference).stdout
    sent = run_shim(lab, "bridge", "say", reference, "from another day")
    assert sent.returncode == 0, sent.stderr


@pytest.mark.parametrize("offset_s", [AHEAD], ids=["ahead"])
def test_membership_ends_early_on_a_machine_whose_clock_is_ahead(home: ClockHome) -> None:
    """The server, the member and the machine judge the end of a membership by their own clocks. The
    first one that passes counts.
    """
    session = home.start_session()
    reference = f"build:{session['sessionId']}"
    guest = home.join_as(invite_for_a_day(home, "guest", DRIVE))
    assert list_agents(guest, "--all") == [session]
    refused = run_shim(guest, "fleet", "dial", "build")
    assert (refused.returncode, refused.stderr) == (255, "the membership of guest has ended\n")
    assert run_shim(home.here, "claude", "logs", reference).returncode == 0

    # A machine that is itself a member for a day.
    join = invite_for_a_day(home, "short", MACHINE)
    wrong = home.create_environment("short") | home.clock
    joined = run_shim(wrong, "fleet", "join", write_join_file(join, home.folder / "short.join"))
    assert joined.returncode == 1
    assert "the membership of short in the fleet home ended at" in joined.stderr
    assert "if the clock of this machine is right" in joined.stderr
    store_join_file(join, wrong)
    run = run_shim(wrong, "fleet", "run")
    assert run.returncode == 1
    assert "the membership of short in the fleet home ended at" in run.stderr
    # Its own sessions are not affected.
    start_demo(wrong)
    wait_for_state(wrong, "done")
    run_shim(wrong, "claude", "daemon", "stop", "--any")


@pytest.mark.parametrize("offset_s", [LATE], ids=["late"])
def test_membership_ends_in_time_on_a_machine_whose_clock_is_late(home: ClockHome) -> None:
    session = home.start_session()
    reference = f"build:{session['sessionId']}"
    guest = home.join_as(invite_for_a_day(home, "guest", DRIVE)) | home.clock
    assert run_shim(guest, "claude", "logs", reference).returncode == 0
    short = home.create_environment("short") | home.clock
    store_join_file(invite_for_a_day(home, "short", MACHINE), short)
    home.lab.run_machine("short", short)

    # The machine would accept this member for one more day. The server does not.
    ends_s = int(time.time()) + MEMBERSHIP_SECONDS
    ending = home.lab.forge_member(home.lab.invite("ending", DRIVE), expires_s=ends_s)

    async def stay(connection: FleetConnection) -> str:
        tunnel = await open_tunnel(connection, "build")
        await tunnel.send(MessageKind.PING)
        assert await asyncio.to_thread(wait_until, lambda: bool(list_relays(home)), TURN_SECONDS)
        async with asyncio.timeout(TURN_SECONDS):
            try:
                await connection.wait_until_lost()
            except FleetUnavailableError as error:
                return error.reason
        return ""

    assert "expired" in run_connected(ending, stay).lower()
    # The server counts whole seconds, so it refuses a login from the next second on.
    assert wait_until(lambda: is_refused(ending), TURN_SECONDS, LOOK_SECONDS)
    assert wait_until(lambda: not list_relays(home), TURN_SECONDS, LOOK_SECONDS)
    assert list_agents(home.here, "--all") == [session]


@pytest.mark.parametrize("offset_s", [AHEAD], ids=["ahead"])
def test_member_is_revoked_after_the_clock_of_its_invitation_was_corrected(home: ClockHome) -> None:
    """The server compares the times of the invitation and of the revocation."""
    folder = home.lab.admin_folder
    wrong = home.here | home.clock
    invited = run_shim(wrong, "fleet", "invite", "--drive", "guest", "--dir", folder)
    assert invited.returncode == 0, invited.stderr
    path = invited.stdout.strip()
    guest = home.join_as(parse_join_file(Path(path).read_bytes(), path))
    assert run_shim(guest, "fleet", "status").returncode == 0
    revoked = run_shim(home.here, "fleet", "revoke", "guest", "--dir", folder)
    assert revoked.returncode == 0, revoked.stderr
    home.lab.reload_server()

    def is_reported() -> bool:
        return run_shim(guest, "fleet", "status").returncode == 1

    assert wait_until(is_reported, TURN_SECONDS, LOOK_SECONDS)
    assert "Authorization Violation" in run_shim(guest, "fleet", "status").stdout

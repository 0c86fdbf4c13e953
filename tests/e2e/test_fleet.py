"""A fleet over a real NATS server: what its members may do, and what happens when a server, a machine
or a member misbehaves.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import nats.errors
import pytest
from fleet_home import (
    AWAY_SECONDS,
    UUID,
    Home,
    has_copied_messages,
    home,
    read_copied_lines,
    run_connected,
)
from fleet_lab import create_stranger, read_admin_join, write_join_file
from nats.aio.msg import Msg
from sandbox import wait_until
from test_machines import (
    COMMAND_SECONDS,
    LOOK_SECONDS,
    SHIM,
    TURN_SECONDS,
    list_agents,
    read_lines,
    run_shim,
    start_demo,
    wait_for_state,
)

from shim.core.errors import ShimError
from shim.core.fleet import subjects
from shim.core.fleet.join_file import JoinFile, get_member_key_pair, get_read_key
from shim.core.fleet.registry import (
    LEASE_INTERVAL_S,
    LEASE_TTL_S,
    MachineEntry,
    open_lease,
)
from shim.core.fleet.roles import DRIVE, MACHINE, WATCH
from shim.core.fleet.sealing import seal_fields
from shim.core.fleet.subjects import LOG_STREAM, SESSIONS_BUCKET
from shim.fleet import buckets
from shim.fleet.buckets import (
    BucketError,
    get_sequence,
    read_entries,
    read_entry,
    read_last_message,
    store_message,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.dial import open_tunnel
from shim.fleet.folder import load_join_file
from shim.fleet.listing import load_fleet
from shim.fleet.view import FleetMachine

pytestmark = pytest.mark.e2e

__all__ = ["home"]  # the fixture

SETTLE_SECONDS = 0.3  # for the server to report a violation
CLOCK_ROUNDING_MS = 1000  # the server's times are read in seconds
HEARTBEAT_NS = 200_000_000
ANSWER_SECONDS = 10.0  # for the server to answer a request
KILLS = [5, pytest.param(50, marks=pytest.mark.full)]


def list_refused(join: JoinFile, published: list[str], subscribed: list[str]) -> list[str]:
    """Return the subjects that the server does not let the member publish, or subscribe to."""

    async def try_subjects(connection: FleetConnection) -> list[str]:
        refused = []
        client = connection.client
        for subject in published:
            await client.publish(subject, b"x")
            await client.flush()
            await asyncio.sleep(SETTLE_SECONDS)
            if subject.lower() in connection.last_error.lower():
                refused.append(subject)
        for subject in subscribed:
            await client.subscribe(subject)
            await client.flush()
            await asyncio.sleep(SETTLE_SECONDS)
            if subject.lower() in connection.last_error.lower():
                refused.append(subject)
        return refused

    return run_connected(join, try_subjects)


def test_server_limits_each_member_to_its_role(home: Home) -> None:
    """The permissions of the server, tried with a bare client."""
    others = [
        subjects.build_log_subject("home", "build", UUID),
        subjects.build_session_subject("build", UUID),
        subjects.build_lease_subject("build"),
        subjects.build_down_subject("home", "build", "else", "t"),
        subjects.build_up_subject("home", "build", DRIVE, "else", "t"),
        subjects.build_open_subject(
            "home", "build", subjects.OpenSubject(WATCH, subjects.ALL_SESSIONS, "else", "t")
        ),
        f"$JS.API.STREAM.DELETE.KV_{SESSIONS_BUCKET}",
        f"$JS.API.STREAM.PURGE.{LOG_STREAM}",
    ]
    commands = [
        subjects.build_open_subject(
            "home", "build", subjects.OpenSubject(DRIVE, subjects.ALL_SESSIONS, "wanda", "t")
        ),
        subjects.build_up_subject("home", "build", DRIVE, "wanda", "t"),
    ]
    eavesdropping = ["shim.home.build.up.>", "_INBOX.>", "shim.home.*.down.>", ">"]
    wanda = home.lab.invite("wanda", WATCH)
    assert list_refused(wanda, [*others, *commands], eavesdropping) == [
        *others,
        *commands,
        *eavesdropping,
    ]
    laptop = home.lab.invite("laptop", MACHINE)
    allowed = [subjects.build_log_subject("home", "laptop", UUID)]
    assert list_refused(laptop, [*others, *allowed], eavesdropping) == [*others, *eavesdropping]


def build_consumer_request(name: str, log: str, deliver_subject: str = "") -> tuple[str, bytes]:
    """Return the subject and the body of a request that creates a consumer of a log. With a
    `deliver_subject`, the server sends the lines and heartbeats there.
    """
    consumer_config: dict[str, Any] = {
        "name": name,
        "filter_subject": log,
        "ack_policy": "none",
        "mem_storage": True,
    }
    if deliver_subject:
        consumer_config |= {"deliver_subject": deliver_subject, "idle_heartbeat": HEARTBEAT_NS}
    fields = {"stream_name": LOG_STREAM, "action": "create", "config": consumer_config}
    return f"$JS.API.CONSUMER.CREATE.{LOG_STREAM}.{name}.{log}", json.dumps(fields).encode()


def list_requests(role: str, uuid: str) -> list[tuple[str, bytes]]:
    """Return the subject and the body of each kind of request that members may send, each of which the
    server answers.
    """
    lease = subjects.build_lease_subject("build")
    entry = subjects.build_session_subject("build", uuid)
    log = subjects.build_log_subject("home", "build", uuid)
    name = f"{role}{random.randrange(10**9)}"
    requests = [
        (f"$JS.API.DIRECT.GET.KV_shim_machines.{lease}", b""),
        (f"$JS.API.DIRECT.GET.KV_shim_sessions.{entry}", b""),
        (f"$JS.API.DIRECT.GET.{LOG_STREAM}.{log}", b""),
        build_consumer_request(name, log),
        (f"$JS.API.CONSUMER.MSG.NEXT.{LOG_STREAM}.{name}", b'{"batch":1,"no_wait":true}'),
        (f"$JS.API.CONSUMER.DELETE.{LOG_STREAM}.{name}", b""),
    ]
    if role != "guest":
        requests += [
            (f"$JS.API.STREAM.INFO.{LOG_STREAM}", b""),
            ("$JS.API.DIRECT.GET.KV_shim_sessions", b'{"multi_last":["$KV.shim_sessions.*.*"]}'),
            (f"$JS.API.DIRECT.GET.{LOG_STREAM}", b'{"seq":1,"batch":2}'),
        ]
    if role == MACHINE:
        requests += [
            (subjects.build_log_subject("home", MACHINE, UUID), b"x"),
            (subjects.build_session_subject(MACHINE, UUID), b"x"),
            (f"$JS.API.STREAM.CREATE.{LOG_STREAM}", b"{}"),
        ]
    return requests


@pytest.mark.parametrize("role", ["guest", WATCH, DRIVE, MACHINE])
def test_answers_of_the_server_change_no_entry(home: Home, role: str) -> None:
    """A member may name any subject for an answer: the server does not check it."""
    uuid = home.start_session()["sessionId"]
    expected = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS)
    member = home.lab.invite(role, DRIVE, uuid) if role == "guest" else home.lab.invite(role, role)
    entry = subjects.build_session_subject("build", uuid)
    log = subjects.build_log_subject("home", "build", uuid)
    lease = subjects.build_lease_subject("build")
    administrator = read_admin_join(home.lab)
    build_join = load_join_file(home.build)
    assert build_join is not None
    build_key = get_member_key_pair(build_join)

    async def read_sequences(connection: FleetConnection) -> list[int]:
        sequences = []
        for stream, subject in (("KV_shim_sessions", entry), (LOG_STREAM, log)):
            message = await read_last_message(connection.client, stream, subject)
            assert message is not None
            sequences.append(get_sequence(message))
        stored = await read_entry(connection.client, lease)
        open_lease(get_read_key(administrator), stored.data, lease, build_key.public_key)
        return sequences

    async def send_requests(connection: FleetConnection) -> list[str]:
        client = connection.client
        inbox = client.new_inbox()
        unanswered = []
        for subject, body in list_requests(role, uuid):
            subscription = await client.subscribe(inbox)
            await client.publish(subject, body, reply=inbox)
            try:
                await subscription.next_msg(ANSWER_SECONDS)
            except nats.errors.TimeoutError:
                unanswered.append(subject)
            await subscription.unsubscribe()
        for target in (entry, log, lease):
            for subject, body in list_requests(role, uuid):
                await client.publish(subject, body, reply=target)
            consumer_name = f"push{random.randrange(10**9)}"
            await client.publish(*build_consumer_request(consumer_name, log, target), reply=inbox)
            await client.flush()
        await asyncio.sleep(3 * HEARTBEAT_NS / 1e9)
        assert not connection.last_error
        return unanswered

    before = run_connected(administrator, read_sequences)
    assert run_connected(member, send_requests) == []
    assert run_connected(administrator, read_sequences) == before


@pytest.mark.parametrize("role", [WATCH, DRIVE, MACHINE])
def test_receiver_of_an_entry_may_not_confirm_the_entry(home: Home, role: str) -> None:
    async def confirm_entry(connection: FleetConnection) -> str:
        subject = subjects.build_lease_subject("build")
        subscription = await connection.client.subscribe(subject)
        message = await subscription.next_msg(LEASE_TTL_S)
        assert message.reply
        await connection.client.publish(message.reply, b'{"seq":1}')
        await connection.client.flush()
        await asyncio.sleep(SETTLE_SECONDS)
        assert message.reply.lower() in connection.last_error.lower()
        return message.reply

    assert run_connected(home.lab.invite(role, role), confirm_entry).startswith("_INBOX.build.")


def test_member_of_a_session_reads_nothing_of_others(home: Home) -> None:
    session = home.start_session()
    uuid = session["sessionId"]
    start_demo(home.here, "--machine", "build", "--cwd", str(home.folder))
    assert wait_until(lambda: len(list_agents(home.here, "--all")) == 2, TURN_SECONDS, LOOK_SECONDS)
    guest = home.lab.invite("guest", DRIVE, uuid)

    async def read(connection: FleetConnection) -> tuple[bool, bool]:
        entry = await read_entry(connection.client, subjects.build_session_subject("build", uuid))
        try:
            await read_entries(connection.client, "$KV.shim_sessions.>")
        except BucketError:
            return bool(entry.data), True
        return bool(entry.data), False

    assert run_connected(guest, read) == (True, True)
    other = next(each for each in list_agents(home.here, "--all") if each["sessionId"] != uuid)
    request = subjects.OpenSubject(DRIVE, other["sessionId"], "guest", "t")
    refused_subjects = [
        subjects.build_open_subject("home", "build", request),
        subjects.build_open_subject("home", "build", request._replace(session=uuid, member="else")),
    ]
    patterns = ["$KV.shim_sessions.>", subjects.build_session_subject("*", "*")]
    assert list_refused(guest, refused_subjects, patterns) == [*refused_subjects, *patterns]
    environment = home.join_as(guest)
    assert [each["sessionId"] for each in list_agents(environment, "--all")] == [uuid]
    assert run_shim(environment, "claude", "logs", f"build:{uuid}").returncode == 0
    refused = run_shim(environment, "claude", "--bg", "--machine", "build", "x")
    assert "you may not start sessions here" in refused.stderr


async def collect_answers(connection: FleetConnection, subject: str, body: object) -> list[bytes]:
    """Send a request, and return the content of all answers up to one with a status."""
    inbox = connection.client.new_inbox()
    subscription = await connection.client.subscribe(inbox)
    answers = list[bytes]()
    data = json.dumps(body).encode() if body else b""
    await connection.client.publish(subject, data, reply=inbox)
    with suppress(nats.errors.TimeoutError):
        message = await subscription.next_msg(ANSWER_SECONDS)
        while not buckets.get_status(message):
            answers.append(message.data)
            message = await subscription.next_msg(SETTLE_SECONDS)
    await subscription.unsubscribe()
    return answers


def test_body_of_a_request_gives_a_guest_no_other_session(home: Home) -> None:
    """The server checks the subject of a request. Its body may name another session."""
    shared = home.start_session()["sessionId"]
    start_demo(home.here, "--machine", "build", "--cwd", str(home.folder))
    assert wait_until(lambda: len(list_agents(home.here, "--all")) == 2, TURN_SECONDS, LOOK_SECONDS)
    uuids = {agent["sessionId"] for agent in list_agents(home.here, "--all")}
    hidden = (uuids - {shared}).pop()
    assert wait_until(lambda: read_copied_lines(home, hidden), TURN_SECONDS, LOOK_SECONDS)
    guest = home.lab.invite("guest", WATCH, shared)
    shared_log, hidden_log = (
        subjects.build_log_subject("home", "build", uuid) for uuid in (shared, hidden)
    )
    entry = subjects.build_session_subject("build", shared)
    bodies: list[object] = [
        {"last_by_subj": subjects.build_session_subject("build", hidden)},
        {"last_by_subj": hidden_log},
        {"multi_last": [">"]},
        {"seq": 1, "batch": 100},
        {"seq": 1, "next_by_subj": ">"},
    ]
    filters: list[dict[str, object]] = [
        {},
        {"filter_subject": hidden_log},
        {"filter_subjects": [">"]},
        {"filter_subject": shared_log, "filter_subjects": [hidden_log]},
    ]

    async def read_more(connection: FleetConnection) -> list[bytes]:
        allowed = await collect_answers(
            connection, f"$JS.API.DIRECT.GET.KV_shim_sessions.{entry}", None
        )
        answers = list[bytes]()
        for body in bodies:
            for stream, subject in (("KV_shim_sessions", entry), (LOG_STREAM, shared_log)):
                answers += await collect_answers(
                    connection, f"$JS.API.DIRECT.GET.{stream}.{subject}", body
                )
        for number, fields in enumerate(filters):
            creation = {
                "stream_name": LOG_STREAM,
                "config": {**fields, "name": f"c{number}", "ack_policy": "none"},
            }
            created = await collect_answers(
                connection, f"$JS.API.CONSUMER.CREATE.{LOG_STREAM}.c{number}.{shared_log}", creation
            )
            assert b'"error"' in created[0]
            answers += await collect_answers(
                connection, f"$JS.API.CONSUMER.MSG.NEXT.{LOG_STREAM}.c{number}", {"batch": 100}
            )
        assert allowed
        assert not connection.last_error
        return answers

    assert run_connected(guest, read_more) == []


def test_machine_checks_the_role_that_the_server_does_not(home: Home) -> None:
    """A server that lets members publish anything does not give them a role."""
    session = home.start_session()
    wanda = home.lab.invite("wanda", WATCH)
    uncaged = home.lab.forge_member(wanda, allows_all=True)
    refusals = []
    for join in (uncaged, uncaged._replace(role=DRIVE, key=b"k" * 32)):

        async def dial(connection: FleetConnection) -> str:
            try:
                await open_tunnel(connection, "build")
            except ShimError as error:
                return str(error)
            return ""

        refusals.append(run_connected(join, dial))
    assert refusals[0] == ""
    assert "build is not valid: a message was not sealed with the key of this fleet" in refusals[1]
    environment = home.join_as(uncaged)
    reference = f"build:{session['sessionId']}"
    assert run_shim(environment, "claude", "logs", reference).returncode == 0
    sent = run_shim(environment, "bridge", "say", reference, "more")
    assert (sent.returncode, "you may only watch sessions here" in sent.stderr) == (1, True)


def test_stranger_expired_and_revoked_members_are_refused_with_the_reason(home: Home) -> None:
    session = home.start_session()
    stranger = create_stranger(home.lab.invite("stranger", DRIVE))
    environment = home.join_as(stranger)
    assert list_agents(environment, "--all") == []
    dialled = run_shim(environment, "fleet", "dial", "build")
    assert (dialled.returncode, dialled.stderr) == (
        255,
        "the answer of build is not valid: a message was not sealed with the key of this fleet; "
        "compare `shim --version` and `shim fleet status` on both machines\n",
    )

    guest = home.lab.invite("guest", WATCH)
    expired = home.lab.forge_member(guest, expires_s=int(time.time()) - 5)
    # The server closes the connection at once, so its reason may be lost.
    with pytest.raises(FleetUnavailableError):
        run_connected(expired, None)
    file = write_join_file(expired._replace(expires=5), home.folder / "old.join")
    joined = run_shim(home.create_environment("old"), "fleet", "join", file)
    assert "the membership of guest in the fleet home ended at" in joined.stderr

    async def wait(connection: FleetConnection) -> str:
        revoked = run_shim(home.here, "fleet", "revoke", "guest", "--dir", home.lab.admin_folder)
        assert revoked.returncode == 0, revoked.stderr
        home.lab.reload_server()
        async with asyncio.timeout(TURN_SECONDS):
            try:
                await connection.wait_until_lost()
            except FleetUnavailableError as error:
                return error.reason
        return ""

    assert "revoked" in run_connected(guest, wait).lower()
    with pytest.raises(FleetUnavailableError):
        run_connected(guest, None)
    assert run_shim(home.here, "claude", "logs", f"build:{session['id']}").returncode == 0


def test_copied_machine_is_refused_with_both_names(home: Home) -> None:
    copy = home.create_environment("copy")
    join_path = Path(home.build["SHIM_STATE"], "fleet", "join.json")
    target = Path(copy["SHIM_STATE"], "fleet")
    target.mkdir(mode=0o700)
    (target / "join.json").write_bytes(join_path.read_bytes())
    done = subprocess.run(
        [*SHIM, "fleet", "run"],
        env=copy,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "the machine build is already connected to the fleet, from" in done.stderr
    assert home.lab.processes["build"].poll() is None
    assert run_shim(home.here, "fleet", "status").returncode == 0


def test_machine_that_has_died_is_away_and_harms_no_session(home: Home) -> None:
    session = home.start_session()
    home.lab.stop_machine("build", signal.SIGKILL)
    killed_ms = 1000 * time.time()
    started_s = time.monotonic()
    failed = run_shim(home.here, "claude", "logs", f"build:{session['sessionId']}")
    assert failed.returncode == 1
    assert "build" in failed.stderr

    def is_away() -> bool:
        return "away" in list_agents(home.here, "--all")[0]

    assert wait_until(is_away, AWAY_SECONDS + TURN_SECONDS, LOOK_SECONDS)
    assert time.monotonic() - started_s < AWAY_SECONDS + COMMAND_SECONDS / 4
    assert [each["state"] for each in list_agents(home.build)] == ["done"]
    # The time is that of the end, not that of the connection.
    away_ms = load_listed_machine(home, "build").away_ms
    assert away_ms is not None
    assert away_ms >= killed_ms - CLOCK_ROUNDING_MS
    home.lab.run_machine("build", home.build)
    assert wait_until(lambda: not is_away(), TURN_SECONDS, LOOK_SECONDS)


def load_listed_machine(home: Home, name: str) -> FleetMachine:
    """Return a machine as a command without `shim fleet run` loads it."""
    return next(machine for machine in asyncio.run(load_fleet(home.here)) if machine.name == name)


def test_guest_process_shows_a_connected_machine_for_longer_than_a_lease(home: Home) -> None:
    """A guest does not receive changes of leases."""
    uuid = home.start_session()["sessionId"]
    environment = home.join_as(home.lab.invite("guest", WATCH, uuid))
    home.lab.run_machine("guest", environment)
    deadline_s = time.monotonic() + LEASE_TTL_S + LEASE_INTERVAL_S
    while time.monotonic() < deadline_s:
        assert "away" not in list_agents(environment, "--all")[0]
    home.lab.stop_machine("build", signal.SIGKILL)

    def is_away() -> bool:
        return "away" in list_agents(environment, "--all")[0]

    assert wait_until(is_away, AWAY_SECONDS + TURN_SECONDS, LOOK_SECONDS)


def test_list_is_complete_after_the_server_has_lost_its_data(home: Home) -> None:
    session = home.start_session()
    home.lab.kill_server()
    (away,) = list_agents(home.here, "--all")
    assert away["away"]
    local = list_agents(home.build)
    assert [each["sessionId"] for each in local] == [session["sessionId"]]
    home.lab.remove_server_data()
    home.lab.start_server()

    def is_listed() -> bool:
        return list_agents(home.here, "--all") == [session]

    assert wait_until(is_listed, TURN_SECONDS, LOOK_SECONDS), list_agents(home.here, "--all")


@pytest.mark.parametrize("kill_count", KILLS)
def test_watcher_loses_and_repeats_no_line_when_the_server_is_killed(
    home: Home, kill_count: int
) -> None:
    session_id = f"build:{home.start_session()['sessionId']}"
    expected = read_lines(home.here, session_id, None)
    assert len(expected) > 10
    choose = random.Random(kill_count)
    received: list[tuple[int, bytes]] = []
    for number in range(kill_count):
        if number % 3 == 0:
            received = []  # read the history from its beginning
        timer = threading.Timer(choose.uniform(0.2, 1.0), home.lab.kill_server)
        timer.start()
        received += read_lines(home.here, session_id, received)
        timer.join()
        home.lab.start_server()
    deadline_s = time.monotonic() + TURN_SECONDS
    while len(received) < len(expected) and time.monotonic() < deadline_s:
        received += read_lines(home.here, session_id, received)
    assert received == expected


class MessageCapture:
    """Records what a member sends to a machine, as a hostile server could."""

    def __init__(self, join: JoinFile) -> None:
        self._join = join
        self.messages: list[Msg] = []

    async def record(self, connection: FleetConnection) -> None:
        """Record the messages until `say` has been run."""

        async def add(message: Msg) -> None:
            self.messages.append(message)

        await connection.client.subscribe("shim.home.build.open.>", cb=add)
        await connection.client.subscribe("shim.home.build.up.>", cb=add)
        await connection.client.flush()


def test_messages_that_the_server_repeats_or_forges_have_no_effect(home: Home) -> None:
    session = home.start_session()
    reference = f"build:{session['sessionId']}"
    hostile = home.lab.forge_member(home.lab.invite("mallory", WATCH), allows_all=True)
    recorder = MessageCapture(hostile)

    async def attack(connection: FleetConnection) -> None:
        await recorder.record(connection)
        sent = await asyncio.to_thread(run_shim, home.here, "bridge", "say", reference, "SENT-ONCE")
        assert sent.returncode == 0, sent.stderr
        recorded = list(recorder.messages)
        assert any(".up." in message.subject for message in recorded)
        answers = list[bytes]()

        async def add_answer(message: Msg) -> None:
            answers.append(message.data)

        await connection.client.subscribe("shim.home.build.down.>", cb=add_answer)
        for _ in range(2):
            for message in recorded:
                await connection.client.publish(message.subject, message.data)
        for message in reversed(recorded):
            await connection.client.publish(message.subject, message.data)
            await connection.client.publish(message.subject, b"forged" + message.data)
        await connection.client.flush()
        with anyio.fail_after(TURN_SECONDS):
            while not answers:
                await asyncio.sleep(LOOK_SECONDS)

    run_connected(hostile, attack)
    wait_for_state(home.here, "done")
    lines = [json.loads(raw) for _, raw in read_lines(home.here, reference, None)]
    messages = [each for each in lines if "SENT-ONCE" in json.dumps(each)]
    assert [each["type"] for each in messages].count("user") == 1
    assert home.lab.processes["build"].poll() is None


def test_entries_that_the_machine_has_not_signed_are_ignored(home: Home) -> None:
    session = home.start_session()
    hostile = home.lab.forge_member(home.lab.invite("mallory", DRIVE), allows_all=True)
    subject = subjects.build_session_subject("build", session["sessionId"])

    async def copy_entry(connection: FleetConnection) -> None:
        stored = await read_entry(connection.client, subject)
        assert session["name"].encode() not in stored.data
        other_subject = subjects.build_session_subject("build", UUID)
        await store_message(connection.client, other_subject, stored.data)

    async def damage_entry(connection: FleetConnection) -> None:
        await store_message(connection.client, subject, b"x" * 200)

    run_connected(hostile, copy_entry)
    assert [each["sessionId"] for each in list_agents(home.here, "--all")] == [session["sessionId"]]
    run_connected(hostile, damage_entry)
    assert list_agents(home.here, "--all") == []


def test_machine_that_leaves_removes_its_entries_and_its_key(home: Home) -> None:
    home.start_session()
    still_running = run_shim(home.build, "fleet", "leave")
    assert "`shim fleet run` still runs" in still_running.stderr
    run_shim(home.build, "claude", "daemon", "stop", "--any")
    assert home.lab.stop_machine("build") == 0
    uuid = list_agents(home.here, "--all")[0]["sessionId"]
    assert read_copied_lines(home, uuid)
    assert run_shim(home.build, "fleet", "leave").stdout == "left the fleet\n"
    assert not Path(home.build["SHIM_STATE"], "fleet").exists()
    assert not has_copied_messages(home, uuid)
    assert list_agents(home.here, "--all") == []
    status = run_shim(home.build, "fleet", "status")
    assert (status.returncode, "has not joined a fleet" in status.stderr) == (1, True)


def test_log_of_a_machine_that_is_off_is_read_from_its_copy(home: Home) -> None:
    session = home.start_session()
    uuid = session["sessionId"]
    expected = read_lines(home.here, f"build:{uuid}", None)

    def is_copied() -> bool:
        return read_copied_lines(home, uuid) == expected

    assert wait_until(is_copied, TURN_SECONDS, LOOK_SECONDS)
    run_shim(home.build, "claude", "daemon", "stop", "--any")
    home.lab.stop_machine("build")
    assert wait_until(lambda: "away" in list_agents(home.here, "--all")[0], TURN_SECONDS)
    assert read_lines(home.here, f"build:{uuid}", None)[: len(expected)] == expected
    assert "the three tests pass" in run_shim(home.here, "claude", "logs", uuid).stdout
    watched = run_shim(home.here, "bridge", "watch", f"build:{uuid}")
    assert "the three tests pass" in watched.stdout
    refused = run_shim(home.here, "bridge", "say", f"build:{uuid}", "more")
    assert (refused.returncode, "build" in refused.stderr) == (1, True)

    # A guest who may see another session does not get the copy.
    guest = home.join_as(home.lab.invite("guest", WATCH, UUID))
    assert run_shim(guest, "claude", "logs", f"build:{uuid}").returncode == 1

    home.lab.run_machine("build", home.build)
    assert run_shim(home.build, "claude", "rm", uuid[:8]).returncode == 0
    assert wait_until(lambda: not read_copied_lines(home, uuid), TURN_SECONDS, LOOK_SECONDS)
    assert list_agents(home.here, "--all") == []


@pytest.mark.parametrize("kill_count", KILLS)
def test_copy_has_each_line_once_after_the_server_was_killed(home: Home, kill_count: int) -> None:
    session = home.start_session()
    uuid = session["sessionId"]
    choose = random.Random(kill_count)
    for number in range(kill_count):
        sent = run_shim(home.build, "bridge", "say", uuid, f"message {number}")
        assert sent.returncode == 0, sent.stderr
        time.sleep(choose.uniform(0.0, 0.5))  # a random moment of the copy
        home.lab.kill_server()
        if number % 3 == 2:
            home.lab.remove_server_data()
        home.lab.start_server()
    duration_s = TURN_SECONDS + 5 * kill_count  # the messages are answered one after another
    assert wait_until(lambda: list_agents(home.build)[0]["state"] == "done", duration_s)

    def is_copied() -> bool:
        expected = read_lines(home.build, uuid, None)
        return read_copied_lines(home, uuid) == expected

    assert wait_until(is_copied, 2 * TURN_SECONDS, LOOK_SECONDS)


def test_registry_is_read_after_many_sessions_were_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses to read more than 1,024 entries at once, and counts the marks of deleted
    ones.
    """
    monkeypatch.setitem(buckets.DELETED, "Nats-TTL", "1s")
    busy = home.lab.invite("busy", MACHINE)
    pattern = subjects.build_session_subject("busy", "*")

    async def remove_sessions(connection: FleetConnection) -> bool:
        for number in range(buckets.MAX_READ_ENTRIES + 50):
            subject = subjects.build_session_subject("busy", f"{number:08x}{UUID[8:]}")
            await store_message(connection.client, subject, b"x")
            await buckets.delete_entry(connection.client, subject)
        deadline_s = time.monotonic() + TURN_SECONDS
        while time.monotonic() < deadline_s:
            with suppress(BucketError):
                if not await read_entries(connection.client, pattern):
                    return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    assert run_connected(busy, remove_sessions)


def test_machine_with_too_many_entries_does_not_hide_others(home: Home) -> None:
    session = home.start_session()
    busy = home.lab.invite("busy", MACHINE)
    home.lab.start_machine("quiet", home.create_environment("quiet"))

    async def publish_sessions(connection: FleetConnection) -> None:
        key, key_pair = get_read_key(busy), get_member_key_pair(busy)
        entry = MachineEntry("busy", busy.jwt, "0.1", 0)
        subject = subjects.build_session_subject("busy", subjects.MACHINE_ENTRY)
        sealed = seal_fields(key, bytes(24), entry._asdict(), subject, key_pair)
        await store_message(connection.client, subject, sealed)
        for number in range(buckets.MAX_READ_ENTRIES + 50):
            subject = subjects.build_session_subject("busy", f"{number:08x}{UUID[8:]}")
            await store_message(connection.client, subject, b"x")

    run_connected(busy, publish_sessions)
    assert list_agents(home.here, "--all") == [session]

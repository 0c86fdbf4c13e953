"""A fleet over a real NATS server, with an older or a newer version of the shim on one side."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fleet_home import Home, read_copied_lines, run_connected, run_home
from fleet_lab import read_admin_join
from fleet_other_version import (
    ENCODERS,
    NEWER,
    NEWER_VERSION,
    OLDER,
    UNKNOWN_FRAME,
    UNKNOWN_KIND,
)
from nats.aio.msg import Msg
from sandbox import wait_until
from test_machines import (
    LOOK_SECONDS,
    TURN_SECONDS,
    list_agents,
    read_lines,
    run_shim,
    start_demo,
)

from shim.core.bridge.frames import encode_frame
from shim.core.fleet import sealing
from shim.core.fleet.join_file import JoinFile, get_member_key_pair, get_read_key
from shim.core.fleet.registry import MachineEntry
from shim.core.fleet.roles import MACHINE
from shim.core.fleet.sealing import NONCE_BYTES, seal_fields
from shim.core.fleet.subjects import (
    MACHINE_ENTRY,
    build_down_subject,
    build_session_subject,
    parse_open_subject,
)
from shim.core.fleet.tunnel import MessageKind, build_answer_context
from shim.fleet.buckets import store_message
from shim.fleet.connection import FleetConnection
from shim.fleet.dial import open_tunnel
from shim.fleet.tunnels import Tunnel

pytestmark = pytest.mark.e2e

MACHINE_SCRIPT = str(Path(__file__).parent / "fleet_other_version.py")
VERSIONS = (NEWER, OLDER)


@dataclass
class OtherVersionHome(Home):
    """A fleet whose machine `build` runs another version."""

    version: str = NEWER

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lab.stop_machine("build")
        self.lab.run_machine(
            "build", self.build, (sys.executable, MACHINE_SCRIPT, self.version, "run")
        )


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    """Run a fleet whose machine `build` runs this version, or the version in the parameter."""
    create_home = None
    if version := getattr(request, "param", ""):
        create_home = partial(OtherVersionHome, version=version)
    with run_home(tmp_path, create_home) as home:
        yield home


@pytest.mark.parametrize(
    ("home", "version_text"),
    [(NEWER, f"version {NEWER_VERSION}"), (OLDER, "an unknown version")],
    ids=VERSIONS,
    indirect=["home"],
)
def test_machine_of_another_version_is_used(home: Home, version_text: str) -> None:
    session_id = start_demo(home.here, "--machine", "build", "--cwd", str(home.folder))
    reference = f"build:{session_id}"

    def has_ended_turn() -> bool:
        return "the three tests pass" in run_shim(home.here, "claude", "logs", reference).stdout

    assert wait_until(has_ended_turn, TURN_SECONDS, LOOK_SECONDS)
    (session,) = list_agents(home.here, "--all")
    assert (session["id"], session["machine"]) == (session_id, "build")
    uuid = session["sessionId"]
    lines = read_lines(home.here, f"build:{uuid}", None)
    assert lines
    assert lines == read_lines(home.build, uuid, None)
    for args in (
        ("bridge", "list"),
        ("bridge", "say", reference, "SENT-ONCE"),
        ("fleet", "status"),
        ("claude", "stop", reference),
    ):
        done = run_shim(home.here, *args)
        assert done.returncode == 0, (args, done.stderr)
        assert "Traceback" not in done.stderr
    diagnosis = run_shim(home.here, "doctor").stdout
    assert f"the machine build has {version_text} of the shim" in " ".join(diagnosis.split())
    watched = run_shim(home.here, "bridge", "watch", reference)
    assert (watched.returncode, watched.stderr) == (0, "")
    assert "SENT-ONCE" in watched.stdout

    expected = read_lines(home.here, f"build:{uuid}", None)
    assert len(expected) > len(lines)
    assert wait_until(lambda: read_copied_lines(home, uuid) == expected, TURN_SECONDS, LOOK_SECONDS)
    home.lab.stop_machine("build")
    assert "SENT-ONCE" in run_shim(home.here, "claude", "logs", reference).stdout
    assert "Traceback" not in Path(home.lab.folder, "build.log").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_member_of_another_version_uses_a_machine(
    home: Home, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member sends unknown fields, messages and frames, or omits optional fields."""
    session = home.start_session()
    monkeypatch.setattr(sealing, "dump_json", ENCODERS[version])

    async def use(connection: FleetConnection) -> list[dict[str, Any]]:
        opened = await open_tunnel(connection, "build")
        hello = {"kind": "hello", "protocol": 1, "role": "watch"}
        if version == NEWER:
            hello |= {"protocol": 99, "knows": ["sparkle", 5], "new": {}}
            await opened.send(UNKNOWN_KIND, b"new")  # type: ignore[arg-type]
        sent = [{"kind": "connect", "session": session["sessionId"], "new": 1}, hello]
        if version == NEWER:
            sent.append(UNKNOWN_FRAME)
        for frame in sent:
            await opened.send_data(MessageKind.STDIN, json.dumps(frame).encode() + b"\n")
        return await read_frames(opened, "synced")

    frames = run_connected(read_admin_join(home.lab), use)
    kinds = [frame["kind"] for frame in frames]
    assert kinds[0] == "welcome"
    assert kinds.count("line") == len(read_lines(home.here, f"build:{session['sessionId']}", None))
    if version == NEWER:
        assert "protocol" in frames[0]["differs"]


def test_requests_that_a_machine_does_not_know_are_refused_with_a_sentence(home: Home) -> None:
    home.start_session()

    async def use(connection: FleetConnection) -> list[dict[str, Any]]:
        opened = await open_tunnel(connection, "build")
        await opened.send_data(MessageKind.STDIN, json.dumps(UNKNOWN_FRAME).encode() + b"\n")
        return await read_frames(opened, "bye")

    (frame,) = run_connected(read_admin_join(home.lab), use)
    assert "sparkle" in frame["reason"]
    assert home.lab.processes["build"].poll() is None


async def read_frames(opened: Tunnel, last_kind: str) -> list[dict[str, Any]]:
    """Return the frames of the relay up to the first one of a kind."""
    data = b""
    async with asyncio.timeout(TURN_SECONDS):
        while encode_frame(last_kind).strip()[:-1] not in data:
            message = await opened.receive()
            assert message.kind is MessageKind.STDOUT, message
            data += message.content
            await opened.grant_written(message)
    return [json.loads(line) for line in data.splitlines() if line.endswith(b"}")]


# What machines of another version, or damaged ones, could say of themselves and their sessions.
ODD_MACHINES: tuple[dict[str, Any], ...] = (
    {"version": 5, "vendors": {"demo": 1}, "changed_ms": 2**62},
    {"version": None, "vendors": None, "changed_ms": -(2**62)},
    {"version": "x" * 10_000, "vendors": [[]], "changed_ms": 1.5},
)
ODD_SESSIONS: tuple[dict[str, Any], ...] = (
    {"alive": "yes", "state": 5, "cwd": [], "name": {}, "created": "now"},
    {"alive": True, "state": "dancing", "created": 2**63, "started": -1},
    {"alive": True, "created": 1e300, "generation": 2**62, "unanswered": -5},
    {"alive": True, "waitingFor": "\x1b[2J", "name": "\x1b]0;x\x07", "pid": 1},
)


def seal_odd_entries(join: JoinFile, machine_fields: dict[str, Any]) -> dict[str, bytes]:
    """Return the entries of an odd machine and of its odd sessions, by their subjects."""
    key, key_pair = get_read_key(join), get_member_key_pair(join)
    entry = MachineEntry(join.name, join.jwt, "", 0)._asdict() | machine_fields
    contents = {build_session_subject(join.name, MACHINE_ENTRY): entry}
    for fields in ODD_SESSIONS:
        session = str(uuid4())
        contents[build_session_subject(join.name, session)] = {**fields, "session": session}
    return {
        subject: seal_fields(key, os.urandom(NONCE_BYTES), fields, subject, key_pair)
        for subject, fields in contents.items()
    }


def test_odd_entries_of_machines_harm_no_list(home: Home) -> None:
    session = home.start_session()
    for number, machine_fields in enumerate(ODD_MACHINES):
        join = home.lab.invite(f"odd{number}", MACHINE)
        entries = seal_odd_entries(join, machine_fields)

        async def publish(connection: FleetConnection, entries: dict[str, bytes] = entries) -> None:
            for subject, sealed in entries.items():
                await store_message(connection.client, subject, sealed)

        run_connected(join, publish)
    listed = list_agents(home.here, "--all")
    assert session in listed
    assert len(listed) == 1 + len(ODD_MACHINES) * len(ODD_SESSIONS)
    assert {0 <= each.get("away", 0) <= 1000 * time.time() for each in listed} == {True}
    for args in (("bridge", "list"), ("bridge", "list", "--all"), ("fleet", "status")):
        done = run_shim(home.here, *args)
        assert done.returncode == 0, (args, done.stderr)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout


INVALID_ANSWER = (
    "the answer of odd is not valid: a JWT must have three parts, not 1; compare `shim --version` and "
    "`shim fleet status` on both machines"
)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, INVALID_ANSWER),
        ({"jwt": 5, "refusal": ["no"]}, INVALID_ANSWER),
        ({"refusal": "this version is too old"}, "this version is too old"),
    ],
    ids=["empty", "other types", "refusal"],
)
def test_answer_that_a_member_cannot_use_is_reported(
    home: Home, fields: dict[str, Any], reason: str
) -> None:
    join = home.lab.invite("odd", MACHINE)
    content = dict(fields)
    if isinstance(fields.get("refusal"), str):
        content["jwt"] = join.jwt
    key, key_pair = get_read_key(join), get_member_key_pair(join)

    async def answer(message: Msg) -> None:
        request = parse_open_subject(message.subject)
        context = build_answer_context(message.subject)
        sealed = seal_fields(key, os.urandom(NONCE_BYTES), content, context, key_pair)
        await message._client.publish(
            build_down_subject("home", "odd", request.member, request.tunnel), sealed
        )

    async def serve(connection: FleetConnection) -> tuple[int, str]:
        await connection.client.subscribe("shim.home.odd.open.>", cb=answer)
        await connection.client.flush()
        done = await asyncio.to_thread(run_shim, home.here, "fleet", "dial", "odd")
        return done.returncode, done.stderr

    assert run_connected(join, serve) == (255, f"{reason}\n")

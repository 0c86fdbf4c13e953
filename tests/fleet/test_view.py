"""A member's view of the registry, while entries change."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from shim.core.fleet.join_file import JoinFile, get_read_key
from shim.core.fleet.jwt import MemberClaims, build_member_jwt
from shim.core.fleet.keys import KeyKind, KeyPair
from shim.core.fleet.registry import Lease, MachineEntry
from shim.core.fleet.roles import DRIVE, MACHINE
from shim.core.fleet.sealing import seal_fields
from shim.core.fleet.subjects import build_lease_subject, build_session_subject
from shim.fleet import view as view_module
from shim.fleet.buckets import BucketError, StoredEntry
from shim.fleet.view import FleetView

NONCE = bytes(24)
KEY = bytes(range(32))
ISSUER, BUILD, ALICE = (
    KeyPair(kind, bytes([number]) * 32)
    for number, kind in enumerate((KeyKind.ISSUER, KeyKind.USER, KeyKind.USER))
)
CONNECTED_MS = 1_700_000_000_000
ENDED_MS = CONNECTED_MS + 3 * 86_400_000
UUID = "0123abcd-0000-4000-8000-000000000001"
NEW_UUID = "0123abcd-0000-4000-8000-000000000002"


def create_join() -> JoinFile:
    claims = MemberClaims("home", "alice", DRIVE, "", ALICE.public_key)
    jwt = build_member_jwt(ISSUER, claims, 1)
    return JoinFile("home", "tls://x", "", "alice", DRIVE, "", 0, jwt, ALICE.seed, KEY)


READ_KEY = get_read_key(create_join())


def build_machine_entry(changed_ms: int = CONNECTED_MS) -> StoredEntry:
    claims = MemberClaims("home", "build", MACHINE, "", BUILD.public_key)
    entry = MachineEntry("build", build_member_jwt(ISSUER, claims, 1), "1", changed_ms)
    subject = build_session_subject("build", "machine")
    return StoredEntry(subject, seal_fields(READ_KEY, NONCE, entry._asdict(), subject, BUILD), 1)


def build_session_entry(session: str, state: str) -> StoredEntry:
    subject = build_session_subject("build", session)
    fields = {"session": session, "state": state}
    return StoredEntry(subject, seal_fields(READ_KEY, NONCE, fields, subject, BUILD), 2)


class Registry:
    """The entries that the server answers with, and the changes that arrive before its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: StoredEntry) -> None:
        self.entries = list(entries)
        self.leases = list[StoredEntry]()
        self.late_changes = list[StoredEntry]()
        self.late_machines = list[StoredEntry]()
        self.view = FleetView(create_join())
        self._handlers: dict[str, Any] = {}
        self.answers_checks = True
        monkeypatch.setattr(view_module, "read_entries", self._read_entries)
        monkeypatch.setattr(view_module, "read_entry", self._read_entry)

    async def _read_entries(self, client: object, pattern: str) -> list[StoredEntry]:
        if pattern == build_lease_subject("*"):
            return self.leases
        if not pattern.endswith(".machine"):
            snapshot = list(self.entries)
            for stored in self.late_changes:
                await self.receive(stored)
            return snapshot
        machines = [stored for stored in self.entries if stored.subject.endswith(".machine")]
        for stored in self.late_machines:
            await self.receive(stored)
        return machines

    async def _read_entry(self, client: object, subject: str) -> StoredEntry:
        if not self.answers_checks:
            raise BucketError("no answer")
        stored = {each.subject: each for each in self.leases + self.entries}
        return stored.get(subject, StoredEntry(subject, b""))

    async def subscribe(self, subject: str, cb: Any) -> None:
        self._handlers[subject] = cb

    async def receive(self, stored: StoredEntry) -> None:
        """Hand a change to the view, as the client library does. A deletion has no data."""
        message = SimpleNamespace(subject=stored.subject, data=stored.data, headers=None)
        pattern = build_session_subject("*", "*")
        if stored.subject.startswith(build_lease_subject("")):
            pattern = build_lease_subject("*")
        await self._handlers[pattern](message)

    def list_states(self) -> dict[str, str]:
        """Return the state of each session of the machine."""
        sessions = self.view.machines["build"].sessions
        return {session: fields["state"] for session, fields in sessions.items()}

    async def load(self) -> dict[str, str]:
        """Load the view again. Return the state of each session."""
        connection: Any = SimpleNamespace(client=self)
        if not self._handlers:
            await self.view.watch(connection)
        await self.view.load(connection)
        return self.list_states()


def test_change_that_arrives_while_entries_are_loaded_is_not_lost(monkeypatch):
    old = build_session_entry(UUID, "blocked")
    registry = Registry(monkeypatch, build_machine_entry(), old)
    assert asyncio.run(registry.load()) == {UUID: "blocked"}
    registry.late_changes = [
        build_session_entry(UUID, "done"),
        build_session_entry(NEW_UUID, "working"),
    ]
    assert asyncio.run(registry.load()) == {UUID: "done", NEW_UUID: "working"}
    registry.late_changes = []
    assert asyncio.run(registry.load()) == {UUID: "blocked"}


def test_machine_that_arrives_while_machines_are_loaded_is_not_lost(monkeypatch):
    registry = Registry(monkeypatch)
    registry.late_machines = [build_machine_entry()]
    assert asyncio.run(registry.load()) == {}
    assert list(registry.view.machines) == ["build"]


def test_machine_is_away_since_the_end_of_its_lease(monkeypatch):
    registry = Registry(monkeypatch, build_machine_entry())
    registry.leases = [StoredEntry(build_lease_subject("build"), b"", 3, ENDED_MS)]
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms == ENDED_MS


def test_machine_without_a_stored_lease_is_away_since_its_last_entry(monkeypatch):
    registry = Registry(monkeypatch, build_machine_entry())
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms == CONNECTED_MS


@pytest.mark.parametrize("changed_ms", [CONNECTED_MS + 2**50, 2**62, -5])
def test_machine_is_never_away_since_a_future_time(monkeypatch, changed_ms):
    registry = Registry(monkeypatch, build_machine_entry(changed_ms))
    asyncio.run(registry.load())
    away_ms = registry.view.machines["build"].away_ms
    assert 0 <= away_ms <= 1000 * time.time() + 1  # the time is rounded


def build_lease() -> StoredEntry:
    subject = build_lease_subject("build")
    lease = seal_fields(READ_KEY, NONCE, Lease("g", "host")._asdict(), subject, BUILD)
    return StoredEntry(subject, lease, 3)


def test_deletion_that_the_server_does_not_confirm_changes_nothing(monkeypatch):
    """Any member may send the message of a deletion."""
    session = build_session_entry(UUID, "blocked")
    registry = Registry(monkeypatch, build_machine_entry(), session)
    registry.leases = [build_lease()]
    asyncio.run(registry.load())
    deletions = [stored._replace(data=b"") for stored in (session, build_lease())]
    registry.answers_checks = False
    for deletion in deletions:
        asyncio.run(registry.receive(deletion))
    assert registry.list_states() == {UUID: "blocked"}
    assert registry.view.machines["build"].away_ms is None

    # The server has the entries: another member has sent the messages.
    registry.answers_checks = True
    for deletion in deletions:
        asyncio.run(registry.receive(deletion))
    assert registry.list_states() == {UUID: "blocked"}
    assert registry.view.machines["build"].away_ms is None

    registry.entries, registry.leases = [build_machine_entry()], []
    for deletion in deletions:
        asyncio.run(registry.receive(deletion))
    assert registry.list_states() == {}
    assert registry.view.machines["build"].away_ms is not None


def test_lease_that_is_removed_ends(monkeypatch):
    registry = Registry(monkeypatch, build_machine_entry())
    registry.leases = [build_lease()]
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms is None
    registry.leases = []
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms is not None


def test_damaged_entry_does_not_hide_a_machine(monkeypatch):
    machine = build_machine_entry()
    registry = Registry(monkeypatch, machine, build_session_entry(UUID, "done"))
    asyncio.run(registry.load())
    registry.entries[0] = machine._replace(data=b"x" * 200)
    assert asyncio.run(registry.load()) == {UUID: "done"}


def test_lease_that_has_ended_is_not_renewed_by_a_load(monkeypatch):
    monkeypatch.setattr(view_module, "LEASE_TTL_S", 0.0)
    registry = Registry(monkeypatch, build_machine_entry())
    registry.leases = [build_lease()]
    asyncio.run(registry.load())
    ended_ms = registry.view.machines["build"].away_ms
    assert ended_ms is not None
    monkeypatch.setattr(view_module, "LEASE_TTL_S", 60.0)
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms == ended_ms


def test_same_lease_is_valid_after_a_lost_connection(monkeypatch):
    registry = Registry(monkeypatch, build_machine_entry())
    registry.leases = [build_lease()]
    asyncio.run(registry.load())
    registry.view.set_disconnected()
    assert registry.view.machines["build"].away_ms is not None
    asyncio.run(registry.load())
    assert registry.view.machines["build"].away_ms is None

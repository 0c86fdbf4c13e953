"""A member's view of the registry: all machines and sessions that it may see."""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from shim.core.fleet.join_file import JoinFile, get_read_key
from shim.core.fleet.jwt import get_issuer
from shim.core.fleet.registry import LEASE_TTL_S, open_lease, open_machine_entry
from shim.core.fleet.sealing import SealError, open_fields
from shim.core.fleet.subjects import (
    MACHINE_ENTRY,
    MACHINES_BUCKET,
    build_lease_subject,
    build_session_subject,
    parse_entry_subject,
)
from shim.fleet.buckets import BucketError, StoredEntry, is_deletion, read_entries, read_entry
from shim.fleet.connection import FleetConnection


@dataclass
class FleetMachine:
    """A machine of the fleet. Times are in milliseconds since 1970, except for `lease_end_s`.

    public_key     of the machine, which has signed everything else
    changed_ms     when the machine has connected or disconnected, by its own clock
    sessions       the fields of its sessions, as a relay lists them, by their UUIDs
    lease          the last lease, sealed, or b""
    lease_end_s    when the lease ends, on the monotonic clock, or 0
    away_since_ms  when the lease ends or has ended, or 0 if there was none
    """

    name: str
    version: str
    public_key: str
    changed_ms: int
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    lease: bytes = b""
    lease_end_s: float = 0.0
    away_since_ms: int = 0

    @property
    def away_ms(self) -> int | None:
        """The time since which the machine is not connected, or None if it has a lease."""
        if time.monotonic() < self.lease_end_s:
            return None
        return self.away_since_ms or self.changed_ms

    def store_lease(self, lease: bytes) -> None:
        """Store a lease. A lease that is read again was not renewed."""
        if lease == self.lease and self.lease_end_s:
            return
        self.lease = lease
        self.lease_end_s = time.monotonic() + LEASE_TTL_S
        self.away_since_ms = _get_time_ms() + round(1000 * LEASE_TTL_S)

    def end_lease(self, end_ms: int = 0) -> None:
        """End the lease, if there is one. `end_ms` is the time of its end, or 0 for now."""
        if end_ms or self.away_ms is None:
            self.away_since_ms = end_ms or _get_time_ms()
        self.lease_end_s = 0.0


class FleetView:
    """The entries of the registry, as far as this member may read them. Entries that their machine
    has not signed are ignored.
    """

    def __init__(self, join: JoinFile) -> None:
        self.machines: dict[str, FleetMachine] = {}  # by their names, with this one
        self._join = join
        self._key = get_read_key(join)
        self._issuer = get_issuer(join.jwt)
        # The subjects that have changed since the last load began. What was loaded is older.
        self._changed_subjects = set[str]()

    async def load(self, connection: FleetConnection) -> None:
        """Load all entries from the server. Raise BucketError if it does not answer."""
        client = connection.client
        self._changed_subjects.clear()
        if self._join.session:
            await self._load_session(client)
            return
        machines = await read_entries(client, build_session_subject("*", MACHINE_ENTRY))
        leases = await read_entries(client, build_lease_subject("*"))
        self._replace_machines(machines)
        names = list(self.machines)
        sessions = await asyncio.gather(
            *(read_entries(client, build_session_subject(name, "*")) for name in names),
            return_exceptions=True,
        )
        for name, entries in zip(names, sessions, strict=True):
            if isinstance(entries, BucketError):
                continue  # the other machines are not affected
            if isinstance(entries, BaseException):
                raise entries
            self._replace_sessions(name, entries)
        self._replace_leases(leases)

    async def _load_session(self, client: Client) -> None:
        """Load the only session that this member may see, and its machine."""
        session = await read_entry(client, build_session_subject("*", self._join.session))
        if not session.data:
            self.machines.clear()
            return
        name = parse_entry_subject(session.subject).machine
        machine = await read_entry(client, build_session_subject(name, MACHINE_ENTRY))
        lease = await read_entry(client, build_lease_subject(name))
        self._replace_machines([machine])
        self._replace_sessions(name, [session])
        self._replace_leases([lease])

    async def watch(self, connection: FleetConnection) -> None:
        """Receive all further changes of entries. The entries are loaded afterwards, so that none is
        missing.
        """
        client = connection.client

        async def handle_change(message: Msg) -> None:
            stored = await _find_changed_entry(client, message)
            if stored is not None:
                self._changed_subjects.add(stored.subject)
                self._update_entry(stored)

        for pattern in (build_session_subject("*", "*"), build_lease_subject("*")):
            await client.subscribe(pattern, cb=handle_change)

    def set_disconnected(self) -> None:
        """Treat all machines as away, because the connection to the server is lost."""
        for machine in self.machines.values():
            machine.end_lease()

    def list_machines(self) -> list[FleetMachine]:
        """Return all machines except this one, in the order of their names."""
        return [
            machine for name, machine in sorted(self.machines.items()) if name != self._join.name
        ]

    def _replace_machines(self, entries: Collection[StoredEntry]) -> None:
        present = {stored.subject for stored in entries} | self._changed_subjects
        for name in list(self.machines):
            if build_session_subject(name, MACHINE_ENTRY) not in present:
                del self.machines[name]
        self._update_loaded_entries(entries)

    def _replace_sessions(self, name: str, entries: Collection[StoredEntry]) -> None:
        """Replace the sessions of a machine with loaded ones."""
        if name not in self.machines:
            return  # it was removed meanwhile
        sessions = self.machines[name].sessions
        present = {stored.subject for stored in entries} | self._changed_subjects
        for session in list(sessions):
            if build_session_subject(name, session) not in present:
                del sessions[session]
        self._update_loaded_entries(entries)

    def _replace_leases(self, entries: Collection[StoredEntry]) -> None:
        present = {stored.subject for stored in entries} | self._changed_subjects
        for name, machine in self.machines.items():
            if build_lease_subject(name) not in present:
                machine.end_lease()
        self._update_loaded_entries(entries)

    def _update_loaded_entries(self, entries: Collection[StoredEntry]) -> None:
        for stored in entries:
            if stored.subject not in self._changed_subjects:
                self._update_entry(stored)

    def _update_entry(self, stored: StoredEntry) -> None:
        """Store or remove an entry. An entry that its machine has not signed is ignored."""
        bucket, name, session = parse_entry_subject(stored.subject)
        with suppress(SealError):
            if session == MACHINE_ENTRY:
                self._update_machine(name, stored)
            elif name not in self.machines:
                return  # the entry of the machine follows
            elif bucket == MACHINES_BUCKET:
                self._update_lease(self.machines[name], stored)
            else:
                self._update_session(self.machines[name], session, stored)

    def _update_machine(self, name: str, stored: StoredEntry) -> None:
        if not stored.data:
            self.machines.pop(name, None)
            return
        entry, public_key = open_machine_entry(self._key, stored.data, name, self._issuer)
        # The clock of the machine may be ahead.
        changed_ms = max(0, min(entry.changed_ms, _get_time_ms()))
        machine = self.machines.get(name)
        if machine is not None and machine.public_key == public_key:
            machine.version = entry.version
            machine.changed_ms = changed_ms
        else:
            self.machines[name] = FleetMachine(name, entry.version, public_key, changed_ms)

    def _update_lease(self, machine: FleetMachine, stored: StoredEntry) -> None:
        if not stored.data:
            machine.end_lease(stored.stored_ms)
            return
        open_lease(self._key, stored.data, stored.subject, machine.public_key)
        machine.store_lease(stored.data)

    def _update_session(self, machine: FleetMachine, session: str, stored: StoredEntry) -> None:
        if not stored.data:
            machine.sessions.pop(session, None)
            return
        fields = open_fields(self._key, stored.data, stored.subject, machine.public_key)
        if fields.get("session") == session:
            machine.sessions[session] = fields


async def _find_changed_entry(client: Client, message: Msg) -> StoredEntry | None:
    """Return the entry that a message has changed, or None if that is not known.

    A deletion is not signed, and any member may send such a message. Therefore, the server is asked
    what it has stored. If it does not answer, the next load finds the change.
    """
    if message.data and not is_deletion(message.headers):
        return StoredEntry(message.subject, message.data)
    try:
        return await read_entry(client, message.subject)
    except BucketError:
        return None


def _get_time_ms() -> int:
    return round(1000 * time.time())

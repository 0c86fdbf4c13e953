"""A member's view of the registry: all machines and sessions that it may see."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from shim.core.fleet.join_file import JoinFile, get_read_key
from shim.core.fleet.jwt import get_issuer
from shim.core.fleet.registry import (
    LEASE_TTL_S,
    MachineEntry,
    open_lease,
    open_machine_entry,
    split_session_subject,
)
from shim.core.fleet.sealing import SealError, open_fields
from shim.core.fleet.subjects import (
    MACHINE_ENTRY,
    MACHINES_BUCKET,
    SESSIONS_BUCKET,
    build_lease_subject,
    build_session_subject,
)
from shim.fleet.buckets import BucketError, StoredEntry, is_deletion, read_entries, read_entry
from shim.fleet.connection import FleetConnection


class FleetMachine(NamedTuple):
    """A machine of the fleet.

    away_ms   the time since which it is not connected, in milliseconds since 1970, or None
    sessions  the fields of its sessions, as a relay lists them
    """

    entry: MachineEntry
    away_ms: int | None
    sessions: list[dict[str, Any]]


class FleetView:
    """The entries of the registry, as far as this member may read them. Entries that their machine
    has not signed are ignored.
    """

    def __init__(self, join: JoinFile) -> None:
        self._join = join
        self._key = get_read_key(join)
        self._issuer = get_issuer(join.jwt)
        self._machines: dict[str, tuple[MachineEntry, str]] = {}
        self._sessions: dict[str, dict[str, dict[str, Any]]] = {}
        self._lease_data: dict[str, bytes] = {}
        # The times at which leases end, on the monotonic clock, and at which machines went away.
        self._lease_ends_s: dict[str, float] = {}
        self._away_ms: dict[str, int] = {}
        # The subjects that have changed since the last load began. What was loaded is older.
        self._changed_subjects = set[str]()

    async def load(self, connection: FleetConnection) -> None:
        """Load all entries from the server. Raise BucketError if it does not answer."""
        client = connection.client
        self._changed_subjects.clear()
        if self._join.session:
            await self._load_session(connection)
            return
        machines = await read_entries(
            client, SESSIONS_BUCKET, build_session_subject("*", MACHINE_ENTRY)
        )
        leases = await read_entries(client, MACHINES_BUCKET, build_lease_subject("*"))
        self._replace_machines(machines)
        names = list(self._machines)
        sessions = await asyncio.gather(
            *(
                read_entries(client, SESSIONS_BUCKET, build_session_subject(name, "*"))
                for name in names
            ),
            return_exceptions=True,
        )
        for name, entries in zip(names, sessions, strict=True):
            if isinstance(entries, BucketError):
                continue  # the other machines are not affected
            if isinstance(entries, BaseException):
                raise entries
            self._replace_sessions(name, entries)
        self._replace_leases(leases)

    async def _load_session(self, connection: FleetConnection) -> None:
        """Load the only session that this member may see, and its machine."""
        client = connection.client
        session = await read_entry(
            client, SESSIONS_BUCKET, build_session_subject("*", self._join.session)
        )
        if session is None or not session.data:
            self._machines.clear()
            return
        name, _ = split_session_subject(session.subject)
        machine = await read_entry(
            client, SESSIONS_BUCKET, build_session_subject(name, MACHINE_ENTRY)
        )
        lease = await read_entry(client, MACHINES_BUCKET, build_lease_subject(name))
        self._replace_machines([each for each in (machine,) if each is not None])
        self._replace_sessions(name, [session])
        self._replace_leases([each for each in (lease,) if each is not None])

    async def watch(self, connection: FleetConnection) -> None:
        """Receive all further changes of entries. The entries are loaded afterwards, so that none is
        missing.
        """
        client = connection.client

        async def handle_session(message: Msg) -> None:
            stored = await _find_changed_entry(client, SESSIONS_BUCKET, message)
            if stored is not None:
                self._changed_subjects.add(stored.subject)
                self._update_entry(stored)

        async def handle_lease(message: Msg) -> None:
            stored = await _find_changed_entry(client, MACHINES_BUCKET, message)
            if stored is not None:
                self._changed_subjects.add(stored.subject)
                self._update_lease(stored)

        await client.subscribe(build_session_subject("*", "*"), cb=handle_session)
        await client.subscribe(build_lease_subject("*"), cb=handle_lease)

    def set_disconnected(self) -> None:
        """Treat all machines as away, because the connection to the server is lost."""
        now_ms = round(1000 * time.time())
        for name in self._lease_ends_s:
            self._away_ms.setdefault(name, now_ms)
        self._lease_ends_s.clear()

    def list_machines(self) -> list[FleetMachine]:
        """Return all machines except this one, in the order of their names."""
        return [
            FleetMachine(entry, self._find_away_time(name), list(self._list_sessions(name)))
            for name, (entry, _) in sorted(self._machines.items())
            if name != self._join.name
        ]

    def find_machine(self, name: str) -> tuple[FleetMachine, str] | None:
        """Return a machine and its public key, or None if there is no such machine."""
        if name not in self._machines:
            return None
        entry, public_key = self._machines[name]
        sessions = list(self._list_sessions(name))
        return FleetMachine(entry, self._find_away_time(name), sessions), public_key

    def _replace_machines(self, entries: Iterable[StoredEntry]) -> None:
        present = {split_session_subject(stored.subject)[0] for stored in entries}
        for name in [each for each in self._machines if each not in present]:
            del self._machines[name]
        self._update_loaded_entries(entries)

    def _replace_sessions(self, machine: str, entries: Iterable[StoredEntry]) -> None:
        """Replace the sessions of a machine with loaded ones."""
        present = {stored.subject for stored in entries} | self._changed_subjects
        sessions = self._sessions.setdefault(machine, {})
        for session in list(sessions):
            if build_session_subject(machine, session) not in present:
                del sessions[session]
        self._update_loaded_entries(entries)

    def _update_loaded_entries(self, entries: Iterable[StoredEntry]) -> None:
        for stored in entries:
            if stored.subject not in self._changed_subjects:
                self._update_entry(stored)

    def _update_entry(self, stored: StoredEntry) -> None:
        """Store or remove the entry of a machine or of a session."""
        machine, session = split_session_subject(stored.subject)
        if session == MACHINE_ENTRY:
            self._update_machine(stored)
        else:
            self._update_session(machine, session, stored)

    def _update_machine(self, stored: StoredEntry) -> None:
        name, _ = split_session_subject(stored.subject)
        if not stored.data:
            self._machines.pop(name, None)
            return
        try:
            entry, public_key = open_machine_entry(self._key, stored.data, name, self._issuer)
        except SealError:
            return
        # The clock of the machine may be ahead.
        changed_ms = max(0, min(entry.changed_ms, round(1000 * time.time())))
        self._machines[name] = entry._replace(changed_ms=changed_ms), public_key

    def _update_session(self, machine: str, session: str, stored: StoredEntry) -> None:
        sessions = self._sessions.setdefault(machine, {})
        if not stored.data:
            sessions.pop(session, None)
            return
        if machine not in self._machines:
            return
        try:
            public_key = self._machines[machine][1]
            sessions[session] = open_fields(self._key, stored.data, stored.subject, public_key)
        except SealError:
            return

    def _list_sessions(self, machine: str) -> Iterable[dict[str, Any]]:
        for session, fields in self._sessions.get(machine, {}).items():
            if fields.get("session") == session:
                yield fields

    def _replace_leases(self, leases: Sequence[StoredEntry]) -> None:
        present = {lease.subject.rpartition(".")[2] for lease in leases}
        for name in [each for each in self._lease_ends_s if each not in present]:
            self._end_lease(name)
        for lease in leases:
            if lease.subject not in self._changed_subjects:
                self._update_lease(lease)

    def _end_lease(self, name: str, end_ms: int = 0) -> None:
        """Remove the lease of a machine. `end_ms` is the time of its end, or 0 if it is not known."""
        self._lease_data.pop(name, None)
        if self._lease_ends_s.pop(name, None) is not None or end_ms:
            self._away_ms[name] = end_ms or round(1000 * time.time())

    def _update_lease(self, stored: StoredEntry) -> None:
        name = stored.subject.rpartition(".")[2]
        data = stored.data
        if not data:
            self._end_lease(name, stored.stored_ms)
            return
        # A lease that is read again was not renewed.
        is_known = name in self._lease_ends_s and self._lease_data.get(name) == data
        if is_known or name not in self._machines:
            return
        try:
            open_lease(self._key, data, stored.subject, self._machines[name][1])
        except SealError:
            return
        self._away_ms.pop(name, None)
        self._lease_data[name] = data
        self._lease_ends_s[name] = time.monotonic() + LEASE_TTL_S

    def _find_away_time(self, name: str) -> int | None:
        """Return the time since which a machine is away, or None if it has a lease."""
        end_s = self._lease_ends_s.get(name)
        now_s = time.monotonic()
        if end_s is not None and now_s < end_s:
            return None
        if end_s is not None:
            self._away_ms[name] = round(1000 * (time.time() - (now_s - end_s)))
            del self._lease_ends_s[name]
        return self._away_ms.get(name, self._machines[name][0].changed_ms)


async def _find_changed_entry(client: Client, bucket: str, message: Msg) -> StoredEntry | None:
    """Return the entry that a message has changed, or None if that is not known.

    A deletion is not signed, and any member may send such a message. Therefore, the server is asked
    what it has stored. If it does not answer, the next load finds the change.
    """
    if message.data and not is_deletion(message.headers):
        return StoredEntry(message.subject, message.data, 0)
    try:
        stored = await read_entry(client, bucket, message.subject)
    except BucketError:
        return None
    return stored or StoredEntry(message.subject, b"", 0)


def build_listing(machines: Iterable[FleetMachine]) -> list[Mapping[str, Any]]:
    """Return the machines as the fields of the frame `fleet`."""
    return [
        {
            "name": machine.entry.name,
            "version": machine.entry.version,
            "away": machine.away_ms,
            "sessions": machine.sessions,
        }
        for machine in machines
    ]

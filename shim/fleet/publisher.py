"""Publishes this machine and its sessions in the registry of the fleet."""

import asyncio
import os
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from shim import __version__
from shim.bridge.machines.relay import select_relayed_sessions
from shim.bridge.registry import SessionRecord, is_session_unreadable
from shim.core.fleet.registry import (
    LEASE_FAILURE_LIMIT_S,
    LEASE_INTERVAL_S,
    Lease,
    MachineEntry,
    open_lease,
)
from shim.core.fleet.sealing import NONCE_BYTES, SealError, seal_fields
from shim.core.fleet.subjects import (
    MACHINE_ENTRY,
    build_lease_subject,
    build_session_subject,
    parse_entry_subject,
)
from shim.core.reading.json_text import dump_json
from shim.fleet.buckets import (
    MAX_READ_ENTRIES,
    WRONG_SEQUENCE,
    BucketError,
    create_buckets,
    delete_entry,
    read_entries,
    read_entry,
    store_message,
)
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.folder import MembershipError

# How long a lease of another process is watched, before this process replaces it.
TAKEOVER_WAIT_S = LEASE_INTERVAL_S * 2
# A renewal that is not answered within this time is tried again before LEASE_FAILURE_LIMIT_S.
RENEWAL_TIMEOUT_S = 2.0
RENEWAL_RETRY_S = 0.5
# The newest sessions are published. Entries and marks of deleted ones are read with one request.
MAX_SESSIONS = MAX_READ_ENTRIES - 124
# A larger entry is not published. The server accepts messages of 1 MiB, and entries have about 1 kB.
MAX_ENTRY_BYTES = 512 * 1024


class ClonedMachineError(MembershipError):
    """Raised if another process renews the lease of this machine."""

    def __init__(self, name: str, other_host: str) -> None:
        super().__init__(
            f"the machine {name} is already connected to the fleet, from {other_host}; this is "
            f"{platform.node()}",
            hint="a copied machine needs a join file of its own: `shim fleet invite --machine NAME`",
        )


class MachinePublisher:
    """Publishes the lease, the entry and the sessions of this machine over one connection.
    `holder` identifies this process.
    """

    def __init__(
        self, connection: FleetConnection, environment: Mapping[str, str], holder: str
    ) -> None:
        self._client = connection.client
        self._join = connection.join
        self._environment = environment
        self._key = connection.read_key
        self._key_pair = connection.key_pair
        self._lease = Lease(holder, platform.node())
        self._lease_subject = build_lease_subject(connection.join.name)
        self._lease_sequence = 0
        self._is_machine_published = False
        # The fields of each session that the server has, or b"" if they are not known.
        self._published: dict[str, bytes] = {}

    async def start(self) -> None:
        """Acquire the lease. Raise ClonedMachineError if another process renews it, and BucketError if
        the server does not answer.
        """
        await create_buckets(self._client)
        await self._acquire_lease()

    async def renew_lease(self) -> NoReturn:
        """Renew the lease forever. Raise FleetUnavailableError if this fails for
        LEASE_FAILURE_LIMIT_S, or if another process has replaced the lease.
        """
        renewed_s = time.monotonic()
        wait_s = LEASE_INTERVAL_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                async with asyncio.timeout(RENEWAL_TIMEOUT_S):
                    await self._renew_lease()
                renewed_s = time.monotonic()
                wait_s = LEASE_INTERVAL_S
            except (BucketError, TimeoutError) as error:
                if time.monotonic() - renewed_s > LEASE_FAILURE_LIMIT_S:
                    reason = str(error) or f"no answer within {RENEWAL_TIMEOUT_S:g} s"
                    raise FleetUnavailableError(f"the lease is not renewed: {reason}") from None
                wait_s = RENEWAL_RETRY_S

    async def publish(self, records: Sequence[SessionRecord]) -> None:
        """Publish this machine, and those of its sessions that have changed. Remove the entries of
        sessions that were removed here. Raise BucketError if the server refuses an entry; the next
        call then publishes everything again.
        """
        try:
            if not self._is_machine_published:
                await create_buckets(self._client)
                await self._put_machine_entry()
                self._published = dict.fromkeys(await self._list_stored_sessions(), b"")
                self._is_machine_published = True
            await self._publish_changes(records)
        except BucketError:
            self._is_machine_published = False
            raise

    async def _publish_changes(self, records: Sequence[SessionRecord]) -> None:
        sessions = select_relayed_sessions(records, includes_ended=True)[:MAX_SESSIONS]
        contents = {fields["session"]: dump_json(fields) for fields in sessions}
        for fields in sessions:
            session = fields["session"]
            if len(contents[session]) > MAX_ENTRY_BYTES:
                continue
            if self._published.get(session) != contents[session]:
                await self._put(build_session_subject(self._join.name, session), fields)
                self._published[session] = contents[session]
        for session in [each for each in self._published if each not in contents]:
            if await asyncio.to_thread(is_session_unreadable, session, self._environment):
                continue
            await delete_entry(self._client, build_session_subject(self._join.name, session))
            del self._published[session]

    async def stop(self) -> None:
        """Remove the lease, so that this machine is away at once. Raise BucketError if another process
        has replaced the lease, which then stays.
        """
        await delete_entry(
            self._client, self._lease_subject, expected_sequence=self._lease_sequence
        )
        await self._put_machine_entry()

    async def _acquire_lease(self) -> None:
        """Acquire the lease. A lease of another process must not be renewed for TAKEOVER_WAIT_S. Data
        that this machine has not signed is replaced.
        """
        stored = await read_entry(self._client, self._lease_subject)
        if self._find_foreign_lease(stored.data):
            first_sequence = stored.sequence
            await asyncio.sleep(TAKEOVER_WAIT_S)
            stored = await read_entry(self._client, self._lease_subject)
            foreign_lease = self._find_foreign_lease(stored.data)
            if foreign_lease and stored.sequence != first_sequence:
                raise ClonedMachineError(self._join.name, foreign_lease.host)
        self._lease_sequence = stored.sequence
        await self._put_lease()

    def _find_foreign_lease(self, data: bytes) -> Lease | None:
        """Return the lease of another process that an entry contains, or None."""
        try:
            lease = open_lease(self._key, data, self._lease_subject, self._key_pair.public_key)
        except SealError:
            return None
        return lease if lease.holder != self._lease.holder else None

    async def _renew_lease(self) -> None:
        """Renew the lease. Raise FleetUnavailableError if another process has replaced it."""
        try:
            await self._put_lease()
        except BucketError as error:
            if error.code != WRONG_SEQUENCE:
                raise
            # An earlier renewal may have been stored although its confirmation was lost.
            stored = await read_entry(self._client, self._lease_subject)
            if self._find_foreign_lease(stored.data):
                raise FleetUnavailableError("another process has replaced the lease") from None
            self._lease_sequence = stored.sequence
            await self._put_lease()

    async def _put_lease(self) -> None:
        sealed = self._seal(self._lease._asdict(), self._lease_subject)
        self._lease_sequence = await store_message(
            self._client, self._lease_subject, sealed, expected_sequence=self._lease_sequence
        )

    async def _put_machine_entry(self) -> None:
        entry = MachineEntry(
            self._join.name, self._join.jwt, __version__, round(1000 * time.time())
        )
        await self._put(build_session_subject(self._join.name, MACHINE_ENTRY), entry._asdict())

    async def _list_stored_sessions(self) -> list[str]:
        """Return the sessions of this machine that the server has entries of."""
        pattern = build_session_subject(self._join.name, "*")
        entries = await read_entries(self._client, pattern)
        names = [parse_entry_subject(stored.subject).session for stored in entries if stored.data]
        return [name for name in names if name != MACHINE_ENTRY]

    async def _put(self, subject: str, fields: Mapping[str, Any]) -> None:
        await store_message(self._client, subject, self._seal(fields, subject))

    def _seal(self, fields: Mapping[str, Any], subject: str) -> bytes:
        return seal_fields(self._key, os.urandom(NONCE_BYTES), fields, subject, self._key_pair)

"""The entries of a fleet's registry: what each machine and session is, sealed and signed by the
machine.

The context of an entry's seal is its subject, so that the server cannot present it as another one.
"""

from typing import NamedTuple

from shim.core.fleet.jwt import open_introduction
from shim.core.fleet.roles import MACHINE
from shim.core.fleet.sealing import SealError, open_fields
from shim.core.fleet.subjects import MACHINE_ENTRY, build_session_subject
from shim.core.reading.values import get_text

# A machine renews its lease in this interval, and is away when its lease has ended.
LEASE_INTERVAL_S = 4.0
LEASE_TTL_S = 12.0
# A machine that cannot renew its lease for this long closes its connection.
LEASE_FAILURE_LIMIT_S = 8.0


class Lease(NamedTuple):
    """A machine's lease.

    holder  a random text that identifies the process that renews it
    host    the name of the computer, for messages
    """

    holder: str
    host: str


class MachineEntry(NamedTuple):
    """A machine of the fleet, as it describes itself.

    jwt      the member's JWT, which contains the public key that has signed all entries
    version  the version of the shim
    changed_ms  the time at which the machine has connected or disconnected, in milliseconds since 1970
    """

    name: str
    jwt: str
    version: str
    changed_ms: int


def open_machine_entry(
    key: bytes, data: bytes, machine: str, issuer: str
) -> tuple[MachineEntry, str]:
    """Return the entry of a machine, and its public key. Raise SealError if the machine has not
    signed it, or is not in the fleet.
    """
    subject = build_session_subject(machine, MACHINE_ENTRY)
    fields, claims = open_introduction(key, data, subject, issuer)
    if claims.name != machine:
        raise SealError(f"{claims.name} has written the entry of {machine}")
    if claims.role != MACHINE:
        raise SealError(f"{machine} is not a machine of this fleet")
    changed_ms = fields.get("changed_ms")
    entry = MachineEntry(
        machine,
        get_text(fields, "jwt"),
        get_text(fields, "version"),
        changed_ms if isinstance(changed_ms, int) else 0,
    )
    return entry, claims.public_key


def open_lease(key: bytes, data: bytes, subject: str, public_key: str) -> Lease:
    """Return a lease. Raise SealError if the machine has not signed it."""
    fields = open_fields(key, data, subject, public_key)
    return Lease(get_text(fields, "holder"), get_text(fields, "host"))

"""The subjects, the buckets and the stream of a fleet.

A session is named by its UUID. The names of a fleet, of its machines and of its members are single
tokens of a subject.
"""

import re
from typing import NamedTuple

MACHINES_BUCKET = "shim_machines"
SESSIONS_BUCKET = "shim_sessions"
LOG_STREAM = "shim_log"
MACHINE_ENTRY = "machine"  # the key of a machine's own entry in SESSIONS_BUCKET
ALL_SESSIONS = "all"

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
NAME_FORMAT = "1 to 64 letters, digits, hyphens or underscores"


class OpenSubject(NamedTuple):
    """The subject of a request that opens a tunnel. The server checks the name of the member.

    session  a UUID, or ALL_SESSIONS
    tunnel   the id of the tunnel, which the member chooses
    """

    role: str
    session: str
    member: str
    tunnel: str


def build_open_subject(fleet: str, machine: str, request: OpenSubject) -> str:
    """Return the subject of a request that opens a tunnel."""
    return f"shim.{fleet}.{machine}.open.{'.'.join(request)}"


def parse_open_subject(subject: str) -> OpenSubject:
    """Parse the subject of a request that opens a tunnel. Raise ValueError if it is not one."""
    tokens = subject.split(".")[4:]
    if len(tokens) != len(OpenSubject._fields):
        raise ValueError(f"{subject[:200]!r} does not open a tunnel")
    return OpenSubject(*tokens)


def build_up_subject(fleet: str, machine: str, role: str, member: str, tunnel: str) -> str:
    """Return the subject of a tunnel's messages to the machine."""
    return f"shim.{fleet}.{machine}.up.{role}.{member}.{tunnel}"


def build_down_subject(fleet: str, machine: str, member: str, tunnel: str) -> str:
    """Return the subject of a tunnel's messages to the member."""
    return f"shim.{fleet}.{machine}.down.{member}.{tunnel}"


def build_log_subject(fleet: str, machine: str, session: str) -> str:
    """Return the subject of a session's lines in LOG_STREAM."""
    return f"shim.{fleet}.{machine}.log.{session}"


def build_lease_subject(machine: str) -> str:
    """Return the subject of a machine's lease in MACHINES_BUCKET."""
    return f"$KV.{MACHINES_BUCKET}.{machine}"


def build_session_subject(machine: str, session: str) -> str:
    """Return the subject of a session's entry in SESSIONS_BUCKET."""
    return f"$KV.{SESSIONS_BUCKET}.{machine}.{session}"


class EntrySubject(NamedTuple):
    """The subject of an entry. `session` is a UUID, MACHINE_ENTRY, or "" for a lease."""

    bucket: str
    machine: str
    session: str


def parse_entry_subject(subject: str) -> EntrySubject:
    """Parse the subject of an entry in one of the buckets. Tokens that are missing are ""."""
    _, bucket, machine, session = (subject.split(".", 3) + [""] * 3)[:4]
    return EntrySubject(bucket, machine, session)


def build_inbox_prefix(member: str) -> str:
    """Return the prefix of the subjects on which a member receives replies."""
    return f"_INBOX.{member}"


def get_bucket_stream(bucket: str) -> str:
    """Return the name of the stream that stores a bucket."""
    return f"KV_{bucket}"


def list_stream_subjects(fleet: str) -> list[str]:
    """Return the subjects that the members' account imports from the account with the streams.

    Every subject has a wildcard. If an import has none, and a member names its subject for the answer
    to a request, nats-server 2.15 stores the answer there.
    """
    return [
        build_lease_subject("*"),
        build_session_subject("*", "*"),
        build_log_subject(fleet, "*", "*"),
        # Without an import of $JS.API.INFO, the server itself answers requests of the members' account.
        "$JS.API.*",
        "$JS.API.STREAM.INFO.*",
        "$JS.API.STREAM.CREATE.*",
        "$JS.API.DIRECT.GET.>",
        "$JS.API.CONSUMER.CREATE.>",
        "$JS.API.CONSUMER.MSG.NEXT.*.*",
        "$JS.API.CONSUMER.DELETE.*.*",
    ]

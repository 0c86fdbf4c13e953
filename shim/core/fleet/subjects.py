"""The subjects, the buckets and the stream of a fleet.

A session is named by its UUID. The names of a fleet, of its machines and of its members are single
tokens of a subject.
"""

import re

MACHINES_BUCKET = "shim_machines"
SESSIONS_BUCKET = "shim_sessions"
LOG_STREAM = "shim_log"
MACHINE_ENTRY = "machine"  # the key of a machine's own entry in SESSIONS_BUCKET
ALL_SESSIONS = "all"

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
NAME_FORMAT = "1 to 64 letters, digits, hyphens or underscores"


def build_open_subject(fleet: str, machine: str, role: str, session: str) -> str:
    """Return the subject of requests that open a tunnel. `session` is "" for all sessions."""
    return f"shim.{fleet}.{machine}.open.{role}.{session or ALL_SESSIONS}"


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


def build_inbox_prefix(member: str) -> str:
    """Return the prefix of the subjects on which a member receives replies."""
    return f"_INBOX.{member}"


def get_bucket_stream(bucket: str) -> str:
    """Return the name of the stream that stores a bucket."""
    return f"KV_{bucket}"

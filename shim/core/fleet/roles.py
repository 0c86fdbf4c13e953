"""The roles of a fleet's members, and what the server lets each publish and receive."""

from typing import NamedTuple

from shim.core.fleet import subjects
from shim.core.fleet.subjects import (
    ALL_SESSIONS,
    LOG_STREAM,
    MACHINES_BUCKET,
    SESSIONS_BUCKET,
    OpenSubject,
    build_inbox_prefix,
    get_bucket_stream,
)

# A machine runs sessions, and its user may do the same as with the role DRIVE.
MACHINE = "machine"
# A member that answers prompts, sends messages, and starts and stops sessions.
DRIVE = "drive"
# A member that only reads.
WATCH = "watch"
ROLES = (MACHINE, DRIVE, WATCH)

STREAMS = (get_bucket_stream(MACHINES_BUCKET), get_bucket_stream(SESSIONS_BUCKET), LOG_STREAM)


class Permissions(NamedTuple):
    """The subjects that a member may publish and receive."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def build_permissions(fleet: str, member: str, role: str, session: str) -> Permissions:
    """Return the permissions of a member. `session` is a UUID, or "" for all sessions."""
    publish = [*_list_reads(fleet, session), *_list_tunnels(fleet, member, role, session)]
    subscribe = [f"{build_inbox_prefix(member)}.>", f"shim.{fleet}.*.down.{member}.>"]
    if not session:
        subscribe += [
            subjects.build_lease_subject("*"),
            subjects.build_session_subject("*", "*"),
        ]
    if role == MACHINE:
        publish += _list_machine_writes(fleet, member)
        subscribe += [f"shim.{fleet}.{member}.open.>", f"shim.{fleet}.{member}.up.>"]
    return Permissions(tuple(publish), tuple(subscribe))


def _list_reads(fleet: str, session: str) -> list[str]:
    """Return the requests that read the registry and the logs.

    A direct get without a subject may name any subject in its body. Therefore, members that may see
    only one session get the forms whose subject names the session.
    """
    if not session:
        requests = []
        for stream in STREAMS:
            requests += [
                f"$JS.API.DIRECT.GET.{stream}",
                f"$JS.API.DIRECT.GET.{stream}.>",
                f"$JS.API.STREAM.INFO.{stream}",
            ]
        return requests + _list_log_reads(subjects.build_log_subject(fleet, "*", "*"))
    machines, sessions, _ = STREAMS
    any_log = subjects.build_log_subject(fleet, "*", session)
    return [
        f"$JS.API.DIRECT.GET.{machines}.{subjects.build_lease_subject('*')}",
        f"$JS.API.DIRECT.GET.{sessions}.{subjects.build_session_subject('*', session)}",
        f"$JS.API.DIRECT.GET.{sessions}."
        f"{subjects.build_session_subject('*', subjects.MACHINE_ENTRY)}",
        f"$JS.API.DIRECT.GET.{LOG_STREAM}.{any_log}",
        *_list_log_reads(any_log),
    ]


def _list_log_reads(subject: str) -> list[str]:
    """Return the requests that read the log of a subject with a consumer. The name of a consumer is
    random, so that other members cannot use it.
    """
    return [
        f"$JS.API.CONSUMER.CREATE.{LOG_STREAM}.*.{subject}",
        f"$JS.API.CONSUMER.MSG.NEXT.{LOG_STREAM}.*",
        f"$JS.API.CONSUMER.DELETE.{LOG_STREAM}.*",
    ]


def _list_tunnels(fleet: str, member: str, role: str, session: str) -> list[str]:
    """Return the subjects of tunnels to all machines."""
    tunnel_roles = [WATCH]
    if role != WATCH:
        tunnel_roles.append(DRIVE)
    publish = []
    for tunnel_role in tunnel_roles:
        request = OpenSubject(tunnel_role, session or ALL_SESSIONS, member, "*")
        publish += [
            subjects.build_open_subject(fleet, "*", request),
            subjects.build_up_subject(fleet, "*", tunnel_role, member, "*"),
        ]
    return publish


def _list_machine_writes(fleet: str, machine: str) -> list[str]:
    """Return the subjects that a machine writes: messages of tunnels, log lines and its entries. It
    creates the buckets and the stream if they are missing.
    """
    return [
        f"shim.{fleet}.{machine}.down.>",
        f"shim.{fleet}.{machine}.log.>",
        subjects.build_lease_subject(machine),
        subjects.build_session_subject(machine, "*"),
        *(f"$JS.API.STREAM.CREATE.{stream}" for stream in STREAMS),
    ]

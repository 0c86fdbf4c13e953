"""Finds the session that a user's text refers to: by the start of its short id, its UUID, its name,
or a part of its name.

The messages are those of the real claude (B23, B24), because users and programs know them.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence

from shim.bridge import registry
from shim.bridge.registry import SessionRecord, find_session, list_sessions
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.reading.values import canonicalize_uuid, get_text, split_machine

if TYPE_CHECKING:
    from shim.state.machines import Machine

NO_MATCH = "No session matching '{word}'"
NO_MATCH_WITH_HINT = NO_MATCH + ". Run 'claude agents' to list running sessions."
ID_PREFIX_HINT = (
    "Text that could be the start of an id is never used as a name. Type more of the name."
)
ONLY_ARG_HINT = "A name must be the only argument. Put a name with spaces in quotes."
ID_PREFIX_PATTERN = re.compile(r"[0-9a-f]{1,8}\Z")
MAX_REFERENCE_CHARS = 200  # length of the user's text in an error message
MAX_LISTED_SESSIONS = 20  # sessions that an error message lists

OptionalSessions = Sequence[SessionRecord] | None


class NoMatchError(FrontendError):
    """Raised if no session matches a text."""


def resolve_session_id(
    reference: str, no_match_text: str = NO_MATCH, *, sessions: OptionalSessions = None
) -> SessionRecord:
    """Return the only session that has this UUID, or whose short id starts with this text. Raise
    FrontendError if no session or several sessions match.
    """

    def match_id(candidates: Sequence[SessionRecord], text: str) -> SessionRecord:
        session = _match_id(candidates, text)
        if session is not None:
            return session
        raise NoMatchError(no_match_text.format(word=reference[:MAX_REFERENCE_CHARS]))

    return _search_machines(reference, sessions, match_id)


def resolve_session_reference(
    reference: str, *, sessions: OptionalSessions = None, is_only_arg: bool = True
) -> SessionRecord:
    """Return the only session that a text refers to, by id or by name. Raise FrontendError if no
    session or several sessions match.

    `sessions` are the candidates on this machine; None means all sessions. `is_only_arg` is set if
    the text is the command's only argument.
    """

    def match_reference(candidates: Sequence[SessionRecord], text: str) -> SessionRecord:
        return _match_id_or_name(candidates, text, is_only_arg=is_only_arg)

    return _search_machines(reference, sessions, match_reference)


def _search_machines(
    reference: str,
    sessions: OptionalSessions,
    match: Callable[[Sequence[SessionRecord], str], SessionRecord],
) -> SessionRecord:
    """Return the session that `match` finds. For MACHINE:ID, only that machine is searched.
    Otherwise this machine is searched first, and then all other machines.
    """
    if machine := _find_named_machine(reference):
        return match(_list_remote_sessions([machine]), reference[len(machine.name) + 1 :])
    try:
        return match(_list_local_candidates(sessions, reference), reference)
    except NoMatchError:
        from shim.state.machines import select_machines

        machines = select_machines(None, os.environ)
        if not machines:
            raise
        remote_sessions = _list_remote_sessions(machines)
        # The listing may have found a new machine of the fleet.
        if machine := _find_named_machine(reference):
            remote_sessions = [
                session for session in remote_sessions if session.machine == machine.name
            ]
            reference = reference[len(machine.name) + 1 :]
        return match(remote_sessions, reference)


def _find_named_machine(reference: str) -> "Machine | None":
    """Return the machine of a text such as MACHINE:ID. Return None if the text has no colon, or if
    no machine has this name, because the name of a session may contain a colon.
    """
    name, colon, _ = reference.partition(":")
    if not colon:
        return None
    from shim.state.machines import load_machines

    return load_machines(os.environ).get(name)


def _list_remote_sessions(machines: "Sequence[Machine]") -> Sequence[SessionRecord]:
    """Return the sessions of machines. Raise MachineUnavailableError if the only machine does not
    answer.
    """
    from shim.bridge.listings import list_other_machines
    from shim.bridge.remote import list_all_sessions

    if len(machines) == 1 and machines[0].name:
        return list_all_sessions(machines[0], os.environ)
    return [
        session
        for listing in list_other_machines(machines, os.environ, includes_ended=True)
        if listing.has_readable_sessions
        for session in listing.sessions
    ]


def _match_id_or_name(
    sessions: Sequence[SessionRecord], reference: str, *, is_only_arg: bool
) -> SessionRecord:
    session = _match_id(sessions, reference)
    if session is not None:
        return session
    hint = ""
    name = reference.strip().lower()
    if ID_PREFIX_PATTERN.match(name):
        if len(name) < 8:
            hint = ID_PREFIX_HINT
    elif not is_only_arg:
        hint = ONLY_ARG_HINT
    elif name:
        # An exact match comes first, because a longer name may contain this one.
        matches = [session for session in sessions if name == get_session_name(session).lower()]
        if not matches:
            matches = [session for session in sessions if name in get_session_name(session).lower()]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise FrontendError(_format_ambiguous_name(matches, reference))
    raise NoMatchError(
        "\n".join(
            filter(None, (NO_MATCH_WITH_HINT.format(word=reference[:MAX_REFERENCE_CHARS]), hint))
        )
    )


def is_session_running(session_id: str, environment: Mapping[str, str]) -> bool:
    """Return whether a session of any machine has a running host. Raise MachineUnavailableError if
    its machine does not answer.
    """
    if not split_machine(session_id)[0]:
        return registry.is_session_running(session_id, environment)
    from shim.bridge.remote import find_remote_session

    session = find_remote_session(session_id, environment)
    return session is not None and session.is_running


def get_session_name(session: SessionRecord) -> str:
    """Return the session's name as shown in lists, or ""."""
    return get_text(session.metadata, "name")


def _list_local_candidates(sessions: OptionalSessions, reference: str) -> Sequence[SessionRecord]:
    """Return the given sessions of this machine, or all of them. A UUID finds every session, even a
    session that lists do not show.
    """
    if sessions is None:
        sessions = list_sessions(os.environ)
    uuid = canonicalize_uuid(reference)
    if uuid is None or any(session.session_id == uuid for session in sessions):
        return sessions
    unlisted_session = find_session(uuid, os.environ)
    if unlisted_session is None:
        return sessions
    return [*sessions, unlisted_session]


def _match_id(sessions: Sequence[SessionRecord], reference: str) -> SessionRecord | None:
    """Return the only session whose UUID starts with this text, or None. Raise FrontendError if
    several sessions match.
    """
    prefix = canonicalize_uuid(reference) or reference
    matches = [
        session
        for session in sessions
        if prefix and split_machine(session.session_id)[1].startswith(prefix)
    ]
    if len(matches) > 1:
        raise FrontendError(_format_ambiguous_id(matches, reference))
    return next(iter(matches), None)


def _format_ambiguous_id(matches: Sequence[SessionRecord], reference: str) -> str:
    return (
        f"'{reference[:MAX_REFERENCE_CHARS]}' matches more than one session: "
        f"{', '.join(sorted(session.short_id for session in matches))}"
    )


def _format_ambiguous_name(matches: Sequence[SessionRecord], reference: str) -> str:
    lines = [
        f"  {session.short_id}  {get_session_name(session)}"
        for session in sorted(matches, key=lambda session: session.short_id)[:MAX_LISTED_SESSIONS]
    ]
    more_lines = []
    if len(matches) > MAX_LISTED_SESSIONS:
        more_lines = [f"  … and {len(matches) - MAX_LISTED_SESSIONS} more"]
    heading = f"{len(matches)} sessions match '{reference[:MAX_REFERENCE_CHARS]}':"
    return "\n".join((heading, *lines, *more_lines, "Type more of the name, or the id."))

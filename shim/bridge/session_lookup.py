"""Finds the session that a user's text refers to: by the start of its short id, its UUID, its name,
or a part of its name.

The messages are those of the real claude (B23, B24), because users and programs know them.
"""

import os
import re
from collections.abc import Sequence

from shim.bridge.registry import SessionRecord, find_session, list_sessions
from shim.core.errors import FrontendError
from shim.core.reading.values import canonicalize_uuid

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


def resolve_session_id(
    reference: str, no_match_text: str = NO_MATCH, *, sessions: OptionalSessions = None
) -> SessionRecord:
    """Return the only session that has this UUID, or whose short id starts with this text. Raise
    FrontendError if no session or several sessions match.
    """
    matches = _filter_by_id(_list_candidates(sessions), reference)
    if len(matches) == 1:
        return matches[0]
    raise FrontendError(
        _format_ambiguous_id(matches, reference)
        if matches
        else no_match_text.format(word=reference[:MAX_REFERENCE_CHARS])
    )


def resolve_session_reference(
    reference: str, *, sessions: OptionalSessions = None, is_only_arg: bool = True
) -> SessionRecord:
    """Return the only session that a text refers to, by id or by name. Raise FrontendError if no
    session or several sessions match.

    `sessions` are the candidates; None means all sessions. `is_only_arg` is set if the text is the
    command's only argument.
    """
    sessions = _list_candidates(sessions)
    matches = _filter_by_id(sessions, reference)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise FrontendError(_format_ambiguous_id(matches, reference))
    hint = ""
    name = reference.strip().lower()
    if ID_PREFIX_PATTERN.match(name):
        hint = ""
        if len(name) < 8:
            hint = ID_PREFIX_HINT
    elif not is_only_arg:
        hint = ONLY_ARG_HINT
    elif name:
        # An exact match comes first, because a longer name may contain this one.
        exact_matches = [
            session for session in sessions if name == get_session_name(session).lower()
        ]
        matches = exact_matches
        if not matches:
            matches = [session for session in sessions if name in get_session_name(session).lower()]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise FrontendError(_format_ambiguous_name(matches, reference))
    raise FrontendError(
        "\n".join(
            filter(None, (NO_MATCH_WITH_HINT.format(word=reference[:MAX_REFERENCE_CHARS]), hint))
        )
    )


def get_session_name(session: SessionRecord) -> str:
    """Return the session's name as shown in lists, or ""."""
    return str(session.metadata.get("name") or "")


def _list_candidates(sessions: OptionalSessions) -> Sequence[SessionRecord]:
    if sessions is None:
        return list_sessions(os.environ)
    return sessions


def _filter_by_id(sessions: Sequence[SessionRecord], reference: str) -> list[SessionRecord]:
    uuid = canonicalize_uuid(reference)
    if uuid:
        session = next((session for session in sessions if session.session_id == uuid), None)
        if not session:
            session = find_session(uuid, os.environ)
        # A UUID finds every session, even a session that lists do not show.
        if session:
            return [session]
        return []
    return [session for session in sessions if reference and session.short_id.startswith(reference)]


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

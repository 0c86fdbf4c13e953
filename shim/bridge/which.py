"""Which session a word means: the beginning of its short id, its UUID, its name, or a part of its
name.

The texts are the real one's (background page, B23, B24), because people and programs know them.
"""

import os
import re
from collections.abc import Sequence

from shim.bridge.registry import SessionRecord, find_session, list_sessions
from shim.core.errors import FrontendError
from shim.core.reading.ids import parse_uuid

NO_MATCH = "No session matching '{word}'"
NO_MATCH_WITH_HINT = NO_MATCH + ". Run 'claude agents' to list running sessions."
ID_PREFIX_HINT = "Text that can be the start of an id is not read as a name. Use more of the name."
ONLY_ARG_HINT = "A name must be the only argument. Put a name with spaces in quotes."
ID_PREFIX_PATTERN = re.compile(r"[0-9a-f]{1,8}\Z")
MAX_REFERENCE_CHARS = 200  # of a word that is said again
MAX_LISTED_SESSIONS = 20  # sessions of one name that are listed

OptionalSessions = Sequence[SessionRecord] | None


def find_session_by_id(
    word: str, unknown: str = NO_MATCH, *, sessions: OptionalSessions = None
) -> SessionRecord:
    """The one session whose short id begins so, or whose UUID this is. FrontendError for none or
    several.
    """
    found = _filter_by_id(_list_candidates(sessions), word)
    if len(found) == 1:
        return found[0]
    raise FrontendError(
        _format_ambiguous_id(found, word)
        if found
        else unknown.format(word=word[:MAX_REFERENCE_CHARS])
    )


def find_session_by_reference(
    word: str, *, sessions: OptionalSessions = None, is_only_arg: bool = True
) -> SessionRecord:
    """The one session that a word means by its id, else by its name; `alone`: nothing else was said
    beside it.

    `known` are those to choose from, None for all.
    """
    sessions = _list_candidates(sessions)
    found = _filter_by_id(sessions, word)
    if len(found) == 1:
        return found[0]
    if found:
        raise FrontendError(_format_ambiguous_id(found, word))
    hint, called = "", word.strip().lower()
    if ID_PREFIX_PATTERN.match(called):
        hint = ID_PREFIX_HINT if len(called) < 8 else ""
    elif not is_only_arg:
        hint = ONLY_ARG_HINT
    elif called:
        # another's name may begin with all of it
        whole = [one for one in sessions if called == get_session_name(one).lower()]
        found = whole or [one for one in sessions if called in get_session_name(one).lower()]
        if len(found) == 1:
            return found[0]
        if found:
            raise FrontendError(_format_ambiguous_name(found, word))
    raise FrontendError(
        "\n".join(filter(None, (NO_MATCH_WITH_HINT.format(word=word[:MAX_REFERENCE_CHARS]), hint)))
    )


def get_session_name(one: SessionRecord) -> str:
    """What lists show of a session, "" where it has no name."""
    return str(one.metadata.get("name") or "")


def _list_candidates(known: OptionalSessions) -> Sequence[SessionRecord]:
    return list_sessions(os.environ) if known is None else known


def _filter_by_id(known: Sequence[SessionRecord], word: str) -> list[SessionRecord]:
    whole = parse_uuid(word)
    if whole:
        one = next((one for one in known if one.session_id == whole), None) or find_session(
            whole, os.environ
        )
        # however many are kept, and whether it is among those that are listed
        return [one] if one else []
    return [one for one in known if word and one.short_id.startswith(word)]


def _format_ambiguous_id(found: Sequence[SessionRecord], word: str) -> str:
    return f"'{word[:MAX_REFERENCE_CHARS]}' matches more than one session: {', '.join(sorted(one.short_id for one in found))}"


def _format_ambiguous_name(found: Sequence[SessionRecord], word: str) -> str:
    listed = [
        f"  {one.short_id}  {get_session_name(one)}"
        for one in sorted(found, key=lambda one: one.short_id)[:MAX_LISTED_SESSIONS]
    ]
    more = (
        [f"  … and {len(found) - MAX_LISTED_SESSIONS} more"]
        if len(found) > MAX_LISTED_SESSIONS
        else []
    )
    head = f"{len(found)} sessions match '{word[:MAX_REFERENCE_CHARS]}':"
    return "\n".join((head, *listed, *more, "Use more of the name, or the id."))

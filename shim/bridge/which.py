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

UNKNOWN = "No session matching '{word}'"
UNLISTED = UNKNOWN + ". Run 'claude agents' to list running sessions."
NOT_A_NAME = "Text that can be the start of an id is not read as a name. Use more of the name."
ALONE = "A name must be the only argument. Put a name with spaces in quotes."
LIKE_AN_ID = re.compile(r"[0-9a-f]{1,8}\Z")
WORD_CHARACTERS = 200  # of a word that is said again
LISTED = 20  # sessions of one name that are listed

Known = Sequence[SessionRecord] | None


def which_by_id(word: str, unknown: str = UNKNOWN, *, known: Known = None) -> SessionRecord:
    """The one session whose short id begins so, or whose UUID this is. FrontendError for none or
    several.
    """
    found = _by_id(_all(known), word)
    if len(found) == 1:
        return found[0]
    raise FrontendError(
        _several(found, word) if found else unknown.format(word=word[:WORD_CHARACTERS])
    )


def which(word: str, *, known: Known = None, alone: bool = True) -> SessionRecord:
    """The one session that a word means by its id, else by its name; `alone`: nothing else was said
    beside it.

    `known` are those to choose from, None for all.
    """
    known = _all(known)
    found = _by_id(known, word)
    if len(found) == 1:
        return found[0]
    if found:
        raise FrontendError(_several(found, word))
    hint, called = "", word.strip().lower()
    if LIKE_AN_ID.match(called):
        hint = NOT_A_NAME if len(called) < 8 else ""
    elif not alone:
        hint = ALONE
    elif called:
        # another's name may begin with all of it
        whole = [one for one in known if called == name_of(one).lower()]
        found = whole or [one for one in known if called in name_of(one).lower()]
        if len(found) == 1:
            return found[0]
        if found:
            raise FrontendError(_named(found, word))
    raise FrontendError(
        "\n".join(filter(None, (UNLISTED.format(word=word[:WORD_CHARACTERS]), hint)))
    )


def name_of(one: SessionRecord) -> str:
    """What lists show of a session, "" where it has no name."""
    return str(one.metadata.get("name") or "")


def _all(known: Known) -> Sequence[SessionRecord]:
    return list_sessions(os.environ) if known is None else known


def _by_id(known: Sequence[SessionRecord], word: str) -> list[SessionRecord]:
    whole = parse_uuid(word)
    if whole:
        one = next((one for one in known if one.session_id == whole), None) or find_session(
            whole, os.environ
        )
        # however many are kept, and whether it is among those that are listed
        return [one] if one else []
    return [one for one in known if word and one.short_id.startswith(word)]


def _several(found: Sequence[SessionRecord], word: str) -> str:
    return f"'{word[:WORD_CHARACTERS]}' matches more than one session: {', '.join(sorted(one.short_id for one in found))}"


def _named(found: Sequence[SessionRecord], word: str) -> str:
    listed = [
        f"  {one.short_id}  {name_of(one)}"
        for one in sorted(found, key=lambda one: one.short_id)[:LISTED]
    ]
    more = [f"  … and {len(found) - LISTED} more"] if len(found) > LISTED else []
    head = f"{len(found)} sessions match '{word[:WORD_CHARACTERS]}':"
    return "\n".join((head, *listed, *more, "Use more of the name, or the id."))

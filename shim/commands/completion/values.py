"""Completes option values in a shell: vendors, sessions and fixed choices.

Each function returns pairs of a value and its description. If the list is empty, the shell
completes file names. Errors are suppressed, because their text would appear in the command line
that the user is typing.
"""

import os
import time
from collections.abc import Callable, Iterable

from shim import adapters
from shim.core.errors import ShimError
from shim.core.reading.values import escape_control_chars
from shim.state.own_profiles import register_user_profiles

Completion = tuple[str, str]  # a value and its description or ""
MAX_SESSIONS = 50  # listed sessions, the newest first


def complete_vendor(incomplete: str) -> list[Completion]:
    """Return vendor names. After a comma, the list is continued: `qwen,p` completes to `qwen,pi`."""
    try:
        register_user_profiles(os.environ)
    except (ShimError, OSError):
        pass  # bundled vendors are completed anyway
    chosen, comma, _ = incomplete.rpartition(",")
    chosen_names = chosen.split(",")
    return [
        (f"{chosen}{comma}{name}", "")
        for name in sorted(adapters.VENDORS)
        if name not in chosen_names
    ]


def complete_session() -> list[Completion]:
    """Return the sessions that can be resumed, the most recently used first."""
    from shim.state import store

    completions = []
    try:
        for session_id, session in store.list_sessions(os.environ):
            updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(session.updated))
            completions.append((session_id, _describe(session.vendor, updated, session.cwd)))
            if len(completions) == MAX_SESSIONS:
                break
    except (ShimError, OSError):
        return []
    return completions


def complete_background_session() -> list[Completion]:
    """Return the short ids of background sessions."""
    from shim.bridge import registry

    try:
        sessions = registry.list_sessions(os.environ)[:MAX_SESSIONS]
    except (ShimError, OSError):
        return []
    return [
        (
            session.short_id,
            _describe(*(session.metadata.get(key) for key in ("state", "vendor", "name"))),
        )
        for session in sessions
    ]


def create_completer(choices: Iterable[str]) -> Callable[[], list[str]]:
    """Return a completion function for fixed choices, for an option's `autocompletion=`."""
    values = list(choices)

    def complete_choice() -> list[str]:
        return values

    return complete_choice


def _describe(*parts: object) -> str:
    text = "  ".join(str(part) for part in parts if part)
    return escape_control_chars(text).replace("\n", " ")

"""Finds the session to resume, and checks the session ids on the command line."""

from collections.abc import Mapping

from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import CliArgumentError, FrontendError, UnknownSessionError
from shim.core.reading.values import canonicalize_uuid
from shim.state import store
from shim.state.store import StoredSession


def resolve_resumed_session(
    invocation: Invocation, vendor_name: str | None, cwd: str, environment: Mapping[str, str]
) -> tuple[str | None, StoredSession | None]:
    """Return the id and the stored data of the session to resume: the named session, or the last
    session in this folder.

    `vendor_name` restricts the last session to one vendor, if the frontend named one.
    """
    session_name = invocation.resume
    if not (session_name or invocation.continue_last):
        return None, None
    if session_name:
        session = store.find_session(session_name, environment)
        if session is None:
            return session_name, None
        return session.shown or session_name, session
    last_session = store.find_last_session(cwd, environment, vendor_name)
    if last_session is None:
        return None, None
    session_id, session = last_session
    return session.shown or session_id, session


def check_session_flags(
    invocation: Invocation,
    adapter: Adapter,
    stored_session: StoredSession | None,
    environment: Mapping[str, str],
    *,
    is_replay: bool,
) -> None:
    """Check the session id of a new or resumed session (contract F6, F7).

    `stored_session` is the resumed session. `is_replay` tells whether the session comes from a
    replayed recording. Raise FrontendError if the session belongs to another vendor,
    UnknownSessionError if the session to resume does not exist, and CliArgumentError if the id of a
    new session is already in use.
    """
    if stored_session and stored_session.vendor != adapter.name:
        raise FrontendError(
            f"this session belongs to {stored_session.vendor}; {adapter.name} cannot resume it",
            hint="start a new session, or resume this one without choosing a vendor",
        )
    if invocation.resume and is_replay:
        return
    if (stored_session or invocation.resume) and not adapter.abilities.can_resume:
        raise FrontendError(f"{adapter.name} cannot resume a session", hint="start a new session")
    if not (invocation.resume or invocation.session_id):
        return
    if invocation.resume and stored_session is None and store.can_store_sessions(environment):
        raise UnknownSessionError(invocation.resume)
    if _is_fork_with_same_id(invocation):
        return
    if invocation.session_id and store.find_session(invocation.session_id, environment):
        raise CliArgumentError(f"Error: Session ID {invocation.session_id} is already in use.")


def _is_fork_with_same_id(invocation: Invocation) -> bool:
    """Return whether a fork is to use the original session's id. From then on, the id belongs to
    the fork.
    """
    session_id = canonicalize_uuid(invocation.session_id)
    if not invocation.fork_session:
        return False
    return session_id == canonicalize_uuid(invocation.resume)

"""Finds the history of a resumed session, for a vendor whose own session lacks it.

The vendor's session usually contains all messages. If it does not, or if later messages are
dropped, the history is read from the session's transcript. The modules that read a transcript are
imported only in this case, because the child waits for these imports.
"""

from collections.abc import Mapping

from shim.conversation.plan import has_session_store, select_driver
from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import validate_uuid
from shim.state.config import ShimSettings
from shim.state.store import StoredSession, can_store_sessions

if TYPE_CHECKING:
    from shim.core.claude.resume_point import ResumePoint

REAL_CLAUDE = "claude"  # the name of the real claude's adapter
# A session is stored at the end of a turn, at most this long after the turn's last message was
# written.
MAX_STORE_DELAY_S = 5.0


class ResumedHistory(NamedTuple):
    """A resumed session, and the message at which it is resumed.

    session  the stored session, or None if there is none
    point    the message, if later messages are dropped or if the vendor's session lacks messages
    """

    session: StoredSession | None
    point: "ResumePoint | None" = None


class ResumeRequest(NamedTuple):
    """A request to resume a session, with everything that determines its history."""

    invocation: Invocation
    settings: ShimSettings
    adapter: Adapter
    environment: Mapping[str, str]
    vendor_environment: Mapping[str, str]  # for finding and starting the vendor's program
    cwd: str
    session_id: str  # the id of the resumed session, or ""
    session: StoredSession | None
    is_replay: bool
    has_several_vendors: bool

    def find_history(self) -> ResumedHistory:
        """Return the session and the message at which it is resumed. Raise FrontendError if the
        session cannot be resumed at the message from `--resume-session-at`.

        If this machine only has the session's transcript, the vendor gets a new session.
        """
        session = self.session
        if session is None:
            return self._adopt_transcript()
        if session.vendor != self.adapter.name:
            return ResumedHistory(session)
        if self.invocation.resume_session_at is None:
            if not session.vendor_session or self._needs_rebuilt_history():
                return self._load_unstored_history(session)
            return self._adopt_newer_transcript(session)
        point = self._find_requested_point(
            _read_transcript(session, self.session_id, self.environment)
        )
        if point is None:
            return ResumedHistory(session)
        reason = f"{self.adapter.name} resumes the session at an earlier message"
        return ResumedHistory(session, point._replace(reason=reason))

    def _adopt_transcript(self) -> ResumedHistory:
        """Return the history of a session of which this machine only has the transcript.

        The SDKs write such a transcript from a session store before they resume a session of
        another machine.
        """
        unchanged = ResumedHistory(None)
        session_id = validate_uuid(self.invocation.resume)
        if session_id is None or self.is_replay or self.has_several_vendors:
            return unchanged
        # Without a state folder, the id may be the vendor's own.
        if not can_store_sessions(self.environment):
            return unchanged
        session = StoredSession(self.adapter.name, "", cwd=self.cwd)
        transcript = _read_transcript(session, session_id, self.environment)
        end = _find_end_of_history(transcript)
        if end is None:
            return unchanged
        point = self._find_requested_point(transcript) or end
        reason = f"{self.adapter.name} does not have the session {session_id} on this machine"
        return ResumedHistory(session, point._replace(reason=reason))

    def _needs_rebuilt_history(self) -> bool:
        """Return whether the vendor needs the transcript as text, because it would lose the session
        if it resumed the session itself.
        """
        if self.is_replay:
            return False
        choice = select_driver(
            self.adapter, self.invocation, self.settings, self.vendor_environment, self.cwd
        )
        return choice.adapter.session_traits.loses_sessions

    def _load_unstored_history(self, session: StoredSession) -> ResumedHistory:
        """Return the history from the transcript, if the vendor has not stored the session or
        cannot resume it.

        Some vendors store a new session only after an answer. If the first turn failed after a
        session was resumed at an earlier message, only the transcript has the kept messages.
        """
        end = _find_end_of_history(
            _read_transcript(session, self.session_id, self.environment), needs_answer=True
        )
        if end is None:
            return ResumedHistory(session)
        reason = f"{self.adapter.name} has not stored the session"
        if session.vendor_session:
            reason = f"{self.adapter.name} can lose a session that is resumed in a conversation"
            session = _remove_vendor_session(session)
        return ResumedHistory(session, end._replace(reason=reason))

    def _adopt_newer_transcript(self, session: StoredSession) -> ResumedHistory:
        """Return the history from the transcript, if it has messages that the vendor's session
        lacks.

        The SDKs write the transcript from their session store. It is newer if another machine has
        continued the session.
        """
        is_from_store = has_session_store(self.invocation)
        if not (is_from_store and session.vendor_session and session.updated):
            return ResumedHistory(session)
        end = _find_end_of_history(_read_transcript(session, self.session_id, self.environment))
        if end is None or end.written_at <= session.updated + MAX_STORE_DELAY_S:
            return ResumedHistory(session)
        reason = (
            f"another machine has continued the session {self.session_id}, so "
            f"{self.adapter.name} lacks its last messages"
        )
        session = _remove_vendor_session(session)
        return ResumedHistory(session, end._replace(reason=reason))

    def _find_requested_point(self, transcript: bytes) -> "ResumePoint | None":
        """Return the message from `--resume-session-at`. Return None if it is the last one.

        `transcript` is the transcript of the session. Raise UnknownMessageError or
        ResumeRejectedError as `find_resume_point` does, and FrontendError if the shim cannot drop
        the later messages.
        """
        invocation = self.invocation
        if invocation.resume_session_at is None:
            return None
        if not transcript:
            raise FrontendError(
                "--resume-session-at is refused: the session has no transcript, so the shim "
                "cannot find the message",
                hint="resume without this option, and set transcripts = true in config.toml",
            )
        from shim.core.claude.resume_point import find_resume_point

        point = find_resume_point(
            transcript, invocation.resume_session_at, invocation.resume_drops_turn
        )
        # The lines of a recording are fixed, and a real claude's own transcript has other message
        # ids.
        adapter = self.adapter
        if point is not None and (adapter.cli.replay is not None or adapter.name == REAL_CLAUDE):
            raise FrontendError(
                "--resume-session-at is refused: other messages follow this message, and the shim "
                f"cannot drop messages of {adapter.name}",
                hint="resume without this option, or start a new session",
            )
        return point


def _read_transcript(
    session: StoredSession, session_id: str, environment: Mapping[str, str]
) -> bytes:
    """Return the end of a session's transcript."""
    from shim.io.transcript import read_transcript_end

    return read_transcript_end(find_resumed_transcript(session, session_id, environment))


def _find_end_of_history(transcript: bytes, *, needs_answer: bool = False) -> "ResumePoint | None":
    """Return the last message of a transcript as a resume point, or None if there is no history."""
    from shim.core.claude.resume_point import find_end_of_history

    return find_end_of_history(transcript, needs_answer=needs_answer)


def _remove_vendor_session(session: StoredSession) -> StoredSession:
    """Return the session without the vendor's own session, whose usage no longer counts."""
    from shim.core.claude.usage import NO_USAGE

    return session._replace(vendor_session="", used=NO_USAGE)


def find_resumed_transcript(
    session: StoredSession | None, session_id: str, environment: Mapping[str, str]
) -> str:
    """Return the path of a resumed session's transcript, or "" if there is none."""
    if session is None:
        return ""
    from shim.io.transcript import build_transcript_path

    return build_transcript_path(environment, session.cwd, session_id)

"""The pump of a vendor in a list. Its output is held until no other vendor can take its place.

A driver sees a pump like any other. What the vendor says is held until the turn is certain to be
its own; then all of it comes at once. Where the vendor does not answer, its turn ends without a
line, and the hold has the reason.
"""

from shim.core.adapter.commands import NO_COMMANDS, Ask, Commands, Remember, Said, Stage
from shim.core.adapter.pump import Known, Pump
from shim.core.adapter.translation import Translation
from shim.core.api_errors import Cause
from shim.core.errors import ModeError, Tried, VendorError, tried
from shim.core.turn.outcome import UNANSWERED_CAUSES, Exit

# of a child's output; a vendor that has printed more is not replaced any more
HOLD_BYTES = 1024 * 1024


class Hold:
    """What the vendor that is asked has said while another one may still take its place.

    `why` is the reason why another vendor is to be asked, `started` whether a child was started
    before that.
    """

    def __init__(self, *, same_vendor: bool = False) -> None:
        """`same_vendor`: the next one is another way of the same vendor, which is taken until a
        session begins.
        """
        self.holds = False
        self.same_vendor = same_vendor
        self._clear()

    def _clear(self) -> None:
        self.why: Tried | None = None
        self.started = False
        self._lines: list[bytes] = []
        self._heard = 0
        self._remember: Commands = NO_COMMANDS

    def begin(self) -> None:
        """From now on what the vendor says is held."""
        self.holds = True
        self._clear()

    def keep(self, heard: int, said: bytes, commands: Commands) -> Commands:
        """Hold the lines for `heard` bytes of a child; gives back the commands that are carried out
        all the same.

        A session is not remembered while another vendor's may take its place.
        """
        self._heard += heard
        self._lines.append(said)
        self._remember = tuple(it for it in commands if isinstance(it, Remember)) or self._remember
        return tuple(it for it in commands if not isinstance(it, Remember))

    @property
    def full(self) -> bool:
        """Whether as much is held as may be."""
        return self._heard > HOLD_BYTES

    def release(self, said: bytes, commands: Commands = NO_COMMANDS) -> Said:
        """The vendor is the one that answers: what it said so far, with what it says now."""
        if not self.holds:
            return said, commands
        self.holds = False
        lines, remember = [*self._lines, said], self._remember
        self._clear()
        if any(isinstance(it, Remember) for it in commands):
            remember = NO_COMMANDS
        return b"".join(lines), (*remember, *commands)

    def drop(self, why: Tried, *, started: bool) -> None:
        """The vendor does not answer: its lines are forgotten."""
        self.holds = False
        self._clear()
        self.why, self.started = why, started


class HeldPump(Pump):
    def __init__(
        self,
        hold: Hold,
        translation: Translation,
        *,
        saves_late: bool = False,
        known: Known = (None, True),
    ) -> None:
        super().__init__(translation, saves_late=saves_late, known=known)
        self._hold = hold

    def feed(self, chunk: bytes) -> Said:
        said, commands = super().feed(chunk)
        hold = self._hold
        if not hold.holds:
            return said, commands
        kept = hold.keep(len(chunk), said, commands)
        spoken = self.spoken or any(isinstance(it, Ask) or it is Stage.FINISHED for it in commands)
        spoken = spoken or (hold.same_vendor and self._session() is not None)
        return hold.release(b"", kept) if spoken or hold.full else (b"", kept)

    def retry(self, child_exit: Exit | None, stderr: str | None) -> bool:
        # A child that has gone is asked again by another vendor, if there is one; a child that
        # stays by itself first.
        passed = (
            self._hold.holds and stderr is not None and self._why(child_exit, stderr) is not None
        )
        return not passed and super().retry(child_exit, stderr)

    def close(self, child_exit: Exit | None, stderr: str = "") -> Said:
        if self._passed(child_exit, stderr):
            return b"", NO_COMMANDS
        return self._hold.release(*super().close(child_exit, stderr))

    def finish(self) -> Said:
        if self._passed(None, None):
            return b"", NO_COMMANDS
        return self._hold.release(*super().finish())

    def refuse(self, error: Exception) -> bytes:
        if self._hold.holds and isinstance(error, VendorError | ModeError):
            self._hold.drop(
                tried(self.turn.terms.vendor.name, error.cause, str(error)), started=False
            )
            return b""
        return self._hold.release(super().refuse(error))[0]

    def expire(self, stderr: str) -> Cause | None:
        """The vendor had its time: why it still waits for its model, if that is all that it does."""
        if self._hold.same_vendor:
            return "stall"
        cause = self.waits(stderr).cause
        return cause if cause in UNANSWERED_CAUSES else None

    def release(self) -> Said:
        """The vendor is the one that answers, whatever it will say."""
        return self._hold.release(b"")

    def _passed(self, child_exit: Exit | None, stderr: str | None) -> bool:
        """Whether the turn is another vendor's; without `stderr` the child stays."""
        why = self._why(child_exit, stderr) if self._hold.holds else None
        if why is not None:
            self._hold.drop(why, started=True)
            self.translation.pen.forget()
        return why is not None

    def _why(self, child_exit: Exit | None, stderr: str | None) -> Tried | None:
        """Why the turn is another vendor's, or another way's of the same vendor, where this one
        opened no session.
        """
        if self._hold.same_vendor and self._session() is not None:
            return None
        return self.unanswered(child_exit, stderr, whatever=self._hold.same_vendor)

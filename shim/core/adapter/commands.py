"""What a child's output asks of the shell beside the bytes: commands.

The pump gives them with the bytes, in the order in which they are to be carried out. They are
frozen and hold no Turn.
"""

from enum import Enum

from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.permissions import PermissionRequest
from shim.core.reading.typed import NamedTuple


class AskPermissionCommand(NamedTuple):
    """The vendor asks whether a call may run: put the question to the frontend, give the vendor the
    answer.
    """

    permission: PermissionRequest


class WithdrawPermissionCommand(NamedTuple):
    """The vendor waits no more for the answer to its question `request_id`."""

    request_id: str


class RunHooksCommand(NamedTuple):
    """The frontend may have hooks for what happened; `last_text` is the last text of the turn, for
    its end.
    """

    events: tuple[HookEvent, ...]
    last_text: str = ""


class SendToChildCommand(NamedTuple):
    """Write `line` to the child's stdin: a whole line, its LF included."""

    line: bytes


class StoreSessionCommand(NamedTuple):
    """Write down the vendor's own `vendor_session`, before the frontend has the bytes: it may
    resume the session elsewhere.
    """

    vendor_session: str | None


class SetTimeoutCommand(NamedTuple):
    """From now on the child may be silent for as long as `timeout_key` allows (a key of the
    timeouts of the settings).
    """

    timeout_key: str


class TurnStage(Enum):
    """How far the turn has come; the command says that this has changed."""

    RUNNING = "running"
    PAUSED = "paused"  # the vendor may be done: only its silence will tell
    VENDOR_DONE = "settled"  # the vendor said that it is done
    FINISHED = "finished"  # the result is said


StreamCommand = (
    AskPermissionCommand
    | WithdrawPermissionCommand
    | RunHooksCommand
    | SendToChildCommand
    | StoreSessionCommand
    | SetTimeoutCommand
    | TurnStage
)
StreamCommands = tuple[StreamCommand, ...]
# whole lines for the frontend, and what else is to be done
StreamOutput = tuple[bytes, StreamCommands]

NO_COMMANDS: StreamCommands = ()  # what nearly every chunk gives

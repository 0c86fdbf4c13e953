"""The commands of a child stream. A driver executes them in their order.

Commands are immutable and do not refer to a Turn.
"""

from enum import Enum

from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.permissions import PermissionRequest
from shim.core.reading.typed import NamedTuple


class AskPermissionCommand(NamedTuple):
    """Decide on a permission request of the vendor, or ask the frontend."""

    permission: PermissionRequest


class WithdrawPermissionCommand(NamedTuple):
    """Cancel the prompt of a request that the vendor has withdrawn."""

    request_id: str


class RunHooksCommand(NamedTuple):
    """Call the frontend's hooks. `last_text` is the last text of a turn that has ended."""

    events: tuple[HookEvent, ...]
    last_text: str = ""


class SendToChildCommand(NamedTuple):
    """Write `line`, which ends with LF, to the child's stdin."""

    line: bytes


class StoreSessionCommand(NamedTuple):
    """Store the vendor's session id before the lines are written, because the frontend may resume
    the session at once.
    """

    vendor_session: str | None


class SetTimeoutCommand(NamedTuple):
    """Set how long the child may be silent. `timeout_key` is a key of the timeouts in the settings."""

    timeout_key: str


class TurnStage(Enum):
    """The stage of the turn. The command reports a change."""

    RUNNING = "running"
    PAUSED = "paused"  # the vendor may be done; the turn ends if the vendor stays silent
    VENDOR_DONE = "settled"  # the vendor has reported that it is done
    FINISHED = "finished"  # the result has been written


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
# complete lines for the frontend, and the commands that belong to them
StreamOutput = tuple[bytes, StreamCommands]

NO_COMMANDS: StreamCommands = ()  # nearly every chunk has no commands

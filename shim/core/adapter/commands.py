"""The commands that a child stream returns. A driver executes them in order.

Commands are immutable and do not refer to a Turn.
"""

from enum import Enum

from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.permissions import PermissionRequest
from shim.core.reading.typed import NamedTuple


class AskPermissionCommand(NamedTuple):
    """Decide on a permission request from the vendor, or ask the frontend."""

    permission: PermissionRequest


class WithdrawPermissionCommand(NamedTuple):
    """Close a permission request that the vendor has withdrawn, and cancel its prompt."""

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
    the session immediately.
    """

    vendor_session: str | None


class SetTimeoutCommand(NamedTuple):
    """Set how long the child may be silent. `timeout_key` is the name of a timeout in the settings."""

    timeout_key: str


class TurnStage(Enum):
    """The stage of a turn. A command reports each change of the stage."""

    RUNNING = "running"
    PAUSED = "paused"  # the turn ends if the vendor stays silent
    VENDOR_DONE = "settled"  # the vendor has reported that it is done
    FINISHED = "finished"  # the turn's result has been written


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
# complete lines for the frontend, and the commands that the driver executes with them
StreamOutput = tuple[bytes, StreamCommands]

NO_COMMANDS: StreamCommands = ()  # shared, because most chunks have no commands

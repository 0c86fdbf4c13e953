"""The commands of a child stream. A driver executes them in their order.

Commands are frozen and hold no Turn.
"""

from enum import Enum

from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.permissions import PermissionRequest
from shim.core.reading.typed import NamedTuple


class AskPermissionCommand(NamedTuple):
    """Decide about a permission request of the vendor, or ask the frontend."""

    permission: PermissionRequest


class WithdrawPermissionCommand(NamedTuple):
    """Cancel the prompt of a request that the vendor has withdrawn."""

    request_id: str


class RunHooksCommand(NamedTuple):
    """Call the frontend's hooks. `last_text` is the last text of a turn that has ended."""

    events: tuple[HookEvent, ...]
    last_text: str = ""


class SendToChildCommand(NamedTuple):
    """Write `line` to the child's stdin. It is a complete line with its LF."""

    line: bytes


class StoreSessionCommand(NamedTuple):
    """Store the vendor's session before the frontend gets the lines, because the frontend may
    resume the session at once.
    """

    vendor_session: str | None


class SetTimeoutCommand(NamedTuple):
    """Set how long the child may be silent. `timeout_key` is a key of the timeouts in the settings."""

    timeout_key: str


class TurnStage(Enum):
    """How far the turn has come. The command reports a change."""

    RUNNING = "running"
    PAUSED = "paused"  # the vendor may be done; it is if it stays silent
    VENDOR_DONE = "settled"  # the vendor has reported that it is done
    FINISHED = "finished"  # the result was written


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

NO_COMMANDS: StreamCommands = ()  # of nearly every chunk

"""Actions that result from a line of frontend input. The caller of the control session executes
them.
"""

from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.typed import NamedTuple


class InterruptRequested(NamedTuple): ...


class SettingChanged(NamedTuple):
    """The frontend changed a setting. The change takes effect with the next request.

    `setting` is one of these names:

    model, mode, effort  `value` is the new value, or None for the vendor's default
    rules                the rules that restrict tool calls have changed; `value` is None
    servers              the MCP servers in the frontend's process have changed; `value` is None
    """

    setting: str
    value: str | None


class ToolCallBlocked(NamedTuple):
    """A hook denied a tool call that the vendor runs without asking for permission."""

    call_id: str
    reason: str


class TurnStoppedByHook(NamedTuple):
    """A hook ends the turn after a tool call."""


class TitleChanged(NamedTuple):
    """The frontend has renamed the session."""

    title: str


class PermissionDecided(NamedTuple):
    """An answer or a hook has decided a permission request, or the request is refused."""

    request: PermissionRequest
    decision: PermissionDecision


FrontendAction = (
    InterruptRequested
    | SettingChanged
    | PermissionDecided
    | ToolCallBlocked
    | TurnStoppedByHook
    | TitleChanged
)

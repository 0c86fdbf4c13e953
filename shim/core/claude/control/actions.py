"""Actions that result from a line of frontend input. The caller of the control session executes
them.
"""

from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.typed import NamedTuple


class InterruptRequested(NamedTuple): ...


class SettingChanged(NamedTuple):
    """The frontend changed a setting. The change takes effect with the next request.

    For the settings "model", "mode" and "effort", `value` is the new value. None stands for the
    vendor's default. The setting "rules" means that other rules restrict tool calls, and "servers"
    that other MCP servers run in the frontend's process. These two have no `value`.
    """

    setting: str
    value: str | None


class ToolCallBlocked(NamedTuple):
    """A hook denied a tool call that the vendor runs without asking for permission."""

    call_id: str
    reason: str


class PermissionAnswered(NamedTuple):
    request: PermissionRequest
    decision: PermissionDecision


FrontendAction = InterruptRequested | SettingChanged | PermissionAnswered | ToolCallBlocked

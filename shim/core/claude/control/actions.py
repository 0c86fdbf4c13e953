"""The actions that follow from a line of the frontend. The caller of the session executes them."""

from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.typed import NamedTuple


class InterruptRequested(NamedTuple): ...


class SettingChanged(NamedTuple):
    """A setting has changed for the next request: "model", "mode" or "effort".

    A `value` of None means the vendor's default. "rules" means that other rules restrict the calls,
    and "servers" that other MCP servers run in the frontend's process. Both have no `value`.
    """

    setting: str
    value: str | None


class ToolCallBlocked(NamedTuple):
    """A hook denied a call that the vendor runs without asking."""

    call_id: str
    reason: str


class PermissionAnswered(NamedTuple):
    request: PermissionRequest
    decision: PermissionDecision


FrontendAction = InterruptRequested | SettingChanged | PermissionAnswered | ToolCallBlocked

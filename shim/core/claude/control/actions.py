"""What a frontend's line makes the session do."""

from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.reading.typed import NamedTuple


class InterruptRequested(NamedTuple): ...


class SettingChanged(NamedTuple):
    """Another "model", "mode" or "effort" from the next request on; None is the vendor's own.

    "rules": others narrow than before; "servers": others live in the frontend's process; `value`
    says nothing then.
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

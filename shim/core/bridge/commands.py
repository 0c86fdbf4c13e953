"""Commands from a session's hub to its host. The host executes the commands in order."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.log import SessionLogRecord


class AppendLogRecordsCommand(NamedTuple):
    """Append records to the session log. This must happen before a client receives them."""

    records: Sequence[SessionLogRecord]


class WriteStdinCommand(NamedTuple):
    """Write a line to the conversation's stdin. The line includes its newline."""

    line: bytes


class ReadLogCommand(NamedTuple):
    """Read log lines for a client, with the arguments of `SessionLog.read`. The host passes the
    lines to `SessionSubscribers.deliver_log_entries`.
    """

    client_number: int
    after_number: int
    max_lines: int
    max_bytes: int


class DropClientCommand(NamedTuple):
    """Write a client's queued frames and close its connection. The host reports the closed
    connection with `handlers.remove_client`.
    """

    client_number: int
    reason: str


class UpdateSessionMetadataCommand(NamedTuple):
    """Update `host.json` with the fields of a `state` frame, the controller, and the session's
    name.
    """

    metadata: Mapping[str, Any]


class ReloadSettingsCommand(NamedTuple):
    """Reload Claude's settings files. The host passes the merged settings to
    `SessionHub.send_settings`.
    """

    client_number: int
    request_id: str


class EndSessionCommand(NamedTuple):
    """End the session, because a client has requested it. The host calls `SessionHub.close` after
    the conversation has ended.
    """

    client_name: str


SessionHubCommand = (
    AppendLogRecordsCommand
    | WriteStdinCommand
    | ReadLogCommand
    | DropClientCommand
    | UpdateSessionMetadataCommand
    | ReloadSettingsCommand
    | EndSessionCommand
)

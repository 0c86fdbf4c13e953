"""The commands of the hub to its host. The host executes them in order."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.log import SessionLogRecord


class AppendLogRecordsCommand(NamedTuple):
    """Append records to the log. No client receives them before that."""

    records: Sequence[SessionLogRecord]


class WriteStdinCommand(NamedTuple):
    """Write a line, which ends with a newline, to the conversation's stdin."""

    line: bytes


class ReadLogCommand(NamedTuple):
    """Read the lines after a number for a client, like `SessionLog.read`. Pass them to
    `SessionSubscribers.deliver_log_entries`.
    """

    client_number: int
    after_number: int
    max_lines: int
    max_bytes: int


class DropClientCommand(NamedTuple):
    """Write the queued frames of a client, then close its connection. The host reports the end of
    the connection with `handlers.remove_client`.
    """

    client_number: int
    reason: str


class UpdateSessionMetadataCommand(NamedTuple):
    """Update `host.json`: the fields of a `state` frame, the controller, and the name."""

    metadata: Mapping[str, Any]


class EndSessionCommand(NamedTuple):
    """End the session at the request of a client. The host calls `SessionHub.close` at the end of
    the conversation.
    """

    client_name: str


SessionHubCommand = (
    AppendLogRecordsCommand
    | WriteStdinCommand
    | ReadLogCommand
    | DropClientCommand
    | UpdateSessionMetadataCommand
    | EndSessionCommand
)

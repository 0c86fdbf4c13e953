"""The commands of the hub to its host, which carries them out in their order."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.log import SessionLogRecord


class AppendLogRecordsCommand(NamedTuple):
    """Append records to the log, before any client receives them."""

    records: Sequence[SessionLogRecord]


class WriteStdinCommand(NamedTuple):
    """Write a line to the conversation's stdin; it ends with a newline."""

    line: bytes


class ReadLogCommand(NamedTuple):
    """Read the lines after a number for a client, as `SessionLog.read` does, and pass them to
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
    """End the session for a client. The host calls `SessionHub.close` at the end of the
    conversation.
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

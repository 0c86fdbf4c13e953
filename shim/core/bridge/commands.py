"""What the hub asks of the process around it, in the order in which it has to be done."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.log import SessionLogRecord


class AppendLogRecords(NamedTuple):
    """Write these to the log, before anybody is told of them."""

    records: Sequence[SessionLogRecord]


class WriteStdin(NamedTuple):
    """Give the conversation this line of stdin; it ends with a newline."""

    line: bytes


class ReadLog(NamedTuple):
    """Read the lines behind a number for a client, as `SessionLog.read` does, and hand them to
    `SessionHub.deliver_log_entries`.
    """

    client_number: int
    after_number: int
    max_lines: int
    max_bytes: int


class DropClient(NamedTuple):
    """Write what waits for a client, then close its connection. The hub has forgotten it with
    `SessionHub.remove_client`.
    """

    client_number: int
    reason: str


class UpdateSessionMetadata(NamedTuple):
    """Facts for `host.json`: what a `state` frame says, the driver, and the name."""

    metadata: Mapping[str, Any]


class EndSession(NamedTuple):
    """End the session: a client asked for it. The host calls `SessionHub.close` when the
    conversation is over.
    """

    client_name: str


SessionHubCommand = (
    AppendLogRecords | WriteStdin | ReadLog | DropClient | UpdateSessionMetadata | EndSession
)

"""What the hub asks of the process around it, in the order in which it has to be done."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.log import Record


class Append(NamedTuple):
    """Write these to the log, before anybody is told of them."""

    records: Sequence[Record]


class Tell(NamedTuple):
    """Give the conversation this line of stdin; it ends with a newline."""

    line: bytes


class Read(NamedTuple):
    """Read the lines behind a number for a client, as `Log.read` does, and hand them to
    `Hub.replayed`.
    """

    client: int
    after: int
    most: int
    size: int


class Drop(NamedTuple):
    """Write what waits for a client, then close its connection. The hub has forgotten it with
    `Hub.left`.
    """

    client: int
    reason: str


class Changed(NamedTuple):
    """Facts for `host.json`: what a `state` frame says, the driver, and the name."""

    facts: Mapping[str, Any]


class End(NamedTuple):
    """End the session: a client asked for it. The host calls `Hub.close` when the conversation is
    over.
    """

    by: str


Command = Append | Tell | Read | Drop | Changed | End

"""What the gateway asks of the hosts on this machine: which there are, a connection to one, another one.

It keeps nothing: each question looks at the folders of the sessions again.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from shim.core.bridge.frames import Cursor


class Wanted(NamedTuple):
    """A session that is to begin."""

    vendor: str
    prompt: str
    cwd: str
    model: str = ""
    mode: str = ""


class Link(Protocol):
    """A connection to a host, after its `hello`. Frames come as they were said: one line each, without its newline."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames, to the end of the connection. OSError where it breaks."""

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Say a frame. OSError where nobody hears it."""


class Hosts(Protocol):
    """The sessions of this machine. A session is told by its facts, as `host.json` has them, and by `alive`."""

    def sessions(self) -> list[dict[str, Any]]:
        """All of them, the last begun first."""

    def find(self, word: str) -> list[dict[str, Any]]:
        """Those whose UUID is or begins with `word`."""

    def start(self, wanted: Wanted) -> str:
        """Begin a session; its UUID. ShimError says why it cannot be."""

    def seen(self, session: str, cursor: Cursor) -> bool:
        """Whether a session that has ended has nothing behind a cursor."""

    def connect(
        self, session: str, *, drive: bool, after: Cursor | None = None, replay: bool = True, partial: bool = True
    ) -> AbstractAsyncContextManager[Link]:
        """A connection to a session; one that has ended says what it said, and `bye`. OSError where there is none."""

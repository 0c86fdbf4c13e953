"""What a Turn writes through: the verbs of a stream. Claude's pen is `events`, Yume's is `yume`."""

from collections.abc import Mapping
from typing import Any, Protocol

from shim.core.claude.usage import Usage


class Pen(Protocol):
    """Collects whole lines; `take` hands over their bytes. `history` has them in Claude's, where those are kept.

    With `partial` the Turn says fragments as they come. Texts and tools are kept below `room` bytes by the Turn,
    all else is cut by the pen. `last_result` is the line of the last result, `call_bytes` the size of the last call as
    it was said.
    """

    partial: bool
    room: int
    last_result: bytes
    call_bytes: int

    @property
    def terminates(self) -> bool:
        """Whether a terminator follows each result."""

    @property
    def history(self) -> "Pen | None":
        """The pen that keeps Claude's lines beside another dialect's."""

    def take(self) -> bytes:
        """All bytes written since the last call: whole lines."""

    def forget(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""

    def fold(self) -> None:
        """Make what was written smaller in memory, where many long lines are."""

    def new_uuid(self) -> str:
        """A fresh uuid, for something that is not a line (a synthetic id)."""

    def new_message_id(self) -> str:
        """A minted message id, for a nested agent's reply."""

    def adopt_session(self, session_id: str) -> None:
        """The session that further lines belong to."""

    def adopt_message(self, identity: str, model: str, usage: Usage) -> None:
        """The reply that a passed line opened."""

    def adopt_block(self, index: int) -> None:
        """The block that a passed line opened."""

    def verbatim(self, line: bytes) -> None:
        """A line that is in the dialect already, without its LF."""

    def verbatim_result(self, line: bytes) -> None:
        """A result that is; its terminator comes later."""

    def asked(self, prompt: str) -> None:
        """The message that the turn answers."""

    def init(self, session_id: str, facts: Mapping[str, Any]) -> None:
        """The first line of a turn."""

    def session_changed(self, session_id: str) -> None:
        """The session goes on under another id."""

    def system(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """A line beside the conversation."""

    def result(self, facts: Mapping[str, Any]) -> None:
        """The result, then the terminator if this stream has one."""

    def end_of_stream(self) -> None:
        """The terminator that a passed result still owes."""

    def message_start(self, model: str, usage: Usage) -> None:
        """A new reply."""

    def message_usage(self, usage: Usage) -> None:
        """The usage that the reply has from here on."""

    def block_start(self, kind: str) -> None:
        """A streamed block of `text` or `thinking` opens."""

    def delta(self, dumped: bytes) -> None:
        """A fragment of the open block, already dumped."""

    def block(self, kind: str, dumped: bytes, *, aborted: bool = False) -> None:
        """A whole block, its content already dumped; with `partial` it was said before, in fragments."""

    def block_stop(self) -> None:
        """The open block is over."""

    def tool_use(self, identity: str, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A whole call. Gives back other arguments where these had to be cut."""

    def message_stop(self, stop_reason: str | None, usage: Usage) -> None:
        """The reply is over."""

    def tool_result(
        self, identity: str, name: str, arguments: Mapping[str, Any], content: object, failed: bool
    ) -> None:
        """A call's result; identity, name and arguments are the call's."""

    def user_text(self, text: str) -> None:
        """What is said for the user (the interrupt's line)."""

    def replay(self, message: Mapping[str, Any], identity: str | None, timestamp: str) -> None:
        """The user's own message, said again."""

    def notice(self, text: str) -> None:
        """A line of ours to the user, not of the model's."""

    def api_error(self, text: str, error: str, status: int | None, error_type: str | None = None) -> None:
        """A failed request to the model's API, before its result."""

    def nested(self, parent: str | None, role: str, message: Mapping[str, Any]) -> None:
        """A whole line of a nested agent; `parent` is the id of the call that runs it."""

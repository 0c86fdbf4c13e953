"""What a program is told that says its session itself, asks over a link of its own, and has no
signs of life.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shim.core.claude.messages import BlockKinds, UserMessage

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator


class RpcSession(Protocol):
    """The half that knows what was asked: what the program says is read with it."""

    can_accept_prompts: bool

    @property
    def accepted_block_kinds(self) -> BlockKinds: ...

    def encode_prompt(self, message: UserMessage) -> bytes: ...


SessionT = TypeVar("SessionT", bound=RpcSession)


class RpcChildInput(Generic[SessionT]):
    """The half that speaks (`core.adapter.request.ChildInput`), as far as programs do not differ."""

    def __init__(self, session: SessionT) -> None:
        self._session = session

    def create_translator_factory(
        self, translator: "type[Translator]"
    ) -> "Callable[..., Translator]":
        create_translator: Any = translator  # one that takes a link
        return lambda turn, partial: create_translator(turn, partial=partial, session=self._session)

    @property
    def can_accept_prompts(self) -> bool:
        return self._session.can_accept_prompts

    @property
    def accepted_block_kinds(self) -> BlockKinds:
        return self._session.accepted_block_kinds

    def set_vendor_session_id(self, session: str) -> None:
        """Nothing: it said its session itself."""

    def encode_heartbeat(self) -> bytes:
        """Nothing: what it would answer while it works says no more than what it prints."""
        return b""

    def encode_prompt(self, message: UserMessage) -> bytes:
        return self._session.encode_prompt(message)

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """None, where a session has one prompt at a time."""
        return None

    def pop_undelivered_message_count(self) -> int:
        return 0

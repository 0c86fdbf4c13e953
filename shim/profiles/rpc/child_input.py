"""Encodes what a program is told that is driven by requests and responses (ACP, codex, pi)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from shim.core.adapter.adapter import ChildInput
from shim.core.claude.messages import BlockKinds, UserMessage

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator


class RpcSession(Protocol):
    """Knows the open requests. The translator reads the program's answers with it."""

    can_accept_prompts: bool

    @property
    def accepted_block_kinds(self) -> BlockKinds: ...

    def encode_prompt(self, message: UserMessage) -> bytes: ...


SessionT = TypeVar("SessionT", bound=RpcSession)


class RpcChildInput(ChildInput, Generic[SessionT]):
    """Passes prompts to the session, which the translator shares."""

    def __init__(self, session: SessionT) -> None:
        self._session = session

    def create_translator_factory(
        self, translator: "type[Translator]"
    ) -> "Callable[..., Translator]":
        create_translator: Any = translator  # its constructor has the parameter `session`
        return lambda turn, partial: create_translator(turn, partial=partial, session=self._session)

    @property
    def can_accept_prompts(self) -> bool:
        return self._session.can_accept_prompts

    @property
    def accepted_block_kinds(self) -> BlockKinds:
        return self._session.accepted_block_kinds

    def encode_prompt(self, message: UserMessage) -> bytes:
        return self._session.encode_prompt(message)

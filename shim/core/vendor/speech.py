"""What is said to a child that stays for the conversation, in the words of its vendor."""

from collections.abc import Callable
from typing import Protocol

from shim.core.claude.messages import Kinds, Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.vendor.translator import Translator
from shim.core.vendor.vendor import Request


class Speech(Protocol):
    """What is said to a child that listens: each gives the bytes of whole lines. Unless it is `usable`, it is ended."""

    @property
    def usable(self) -> bool: ...

    def reader(self, translator: type[Translator]) -> Callable[..., Translator]:
        """What makes the translator of a child's lines: another one where it has to know what the child was asked."""

    def hello(self, request: Request) -> bytes: ...

    def follow(self, session: str) -> None:
        """The vendor's own id of the session that goes on, told before anything that may have to name it."""

    @property
    def takes(self) -> Kinds:
        """What a message may have beside its text, as far as it is known once the child has greeted."""

    def prompt(self, message: Message) -> bytes:
        """A message; nothing where the child has to say something first, and it is told then."""

    def steer(self, message: Message) -> bytes | None:
        """A message into the turn that runs; None: it cannot be told now, and waits.

        It is tried again while the turn goes on, and else gets a turn of its own.
        """

    def untaken(self) -> int:
        """How many messages, the last ones of `steer`, the vendor did not take before its turn ended; then forgotten.

        Each of them gets a turn of its own.
        """

    def interrupt(self) -> bytes:
        """Stop the turn, stay for the next."""

    def model(self, name: str | None) -> bytes | None:
        """Another model, None is its own; gives back None where it cannot be told: another child has to be."""

    def effort(self, level: str | None) -> bytes | None:
        """How hard its model is to try, in Claude's words; None is its own. Gives back None as `model` does."""

    def mode(self, name: str) -> bytes | None:
        """Another permission mode, in Claude's words; None: it cannot be told, another child has to be."""

    def heartbeat(self) -> bytes:
        """A question whether it is alive; nothing for a vendor that has no answer to that."""

    def decide(self, permission: Permission, decision: Decision) -> bytes:
        """The answer to its question. ValueError, with words for the model, when it would not do what was changed."""

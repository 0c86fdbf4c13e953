"""The base of the translators of children that are driven by requests and responses."""

from typing import Any

from shim.core.adapter.translator import Event, Translator
from shim.core.turn.turn import Turn
from shim.profiles.rpc.session import RpcSession


class RpcTranslator(Translator):
    """Translates the lines of a child with the session that the driver encodes its messages with. A
    recording is translated with a session that was not opened.
    """

    session_class: type[RpcSession]
    session: RpcSession

    def __init__(self, turn: Turn, *, partial: bool = False, session: Any = None) -> None:
        super().__init__(turn, partial=partial)
        self.session = session or self.session_class()

    def create_retry_translator(self, turn: Turn) -> Translator:
        return type(self)(turn, partial=self.partial, session=self.session)

    def feed(self, event: Any) -> None:
        """Translate a message after the person's answers, and take the lines that follow from it."""
        self.session.write_form_results(self.turn)
        try:
            self._translate_message(event)
        finally:
            self.outbox += self.session.take_outbox()

    def _translate_message(self, event: Event) -> None:
        super().feed(event)

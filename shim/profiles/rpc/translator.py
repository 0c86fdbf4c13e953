"""The base class for translators of children that exchange requests and responses with the shim."""

from typing import Any

from shim.core.adapter.translator import Event, Translator
from shim.core.turn.turn import Turn
from shim.profiles.rpc.session import RpcSession


class RpcTranslator(Translator):
    """Translates a child's output lines. The translator shares its session with the driver, which
    uses the session to encode messages. A recording is translated with a session that was never
    opened.
    """

    session_class: type[RpcSession]
    session: RpcSession

    def __init__(self, turn: Turn, *, partial: bool = False, session: Any = None) -> None:
        super().__init__(turn, partial=partial)
        self.session = session or self.session_class()

    def create_retry_translator(self, turn: Turn) -> Translator:
        return type(self)(turn, partial=self.partial, session=self.session)

    def feed(self, event: Any) -> None:
        """Write the user's pending form answers, translate a message, and take over the lines that
        the session has queued.
        """
        self.session.write_form_results(self.turn)
        try:
            self._translate_message(event)
        finally:
            self.outbox += self.session.take_outbox()

    def _translate_message(self, event: Event) -> None:
        super().feed(event)

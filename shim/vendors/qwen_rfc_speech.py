"""What a program of the Qwen RFC is told while it stays for a conversation (qwen-rfc page, 2.3 to 2.5)."""

from shim.core.claude.permissions import Decision, Permission
from shim.core.reading.json_text import dump
from shim.core.vendor.tools import own_arguments
from shim.vendors import qwen_rfc_requests as requests
from shim.vendors.qwen_rfc_tools import TOOLS
from shim.vendors.qwen_speech import CHANGED


class RfcSpeech:
    """One child's ear: prompts are numbered, and name the session once the child said which it is."""

    def __init__(self) -> None:
        self._session = ""
        self._model: str | None = None
        self._number = 0
        self._prompt: str | None = None

    def hello(self) -> bytes:
        """It speaks first, or at its first message."""
        return b""

    def follow(self, session: str) -> None:
        """The session that every request names."""
        self._session = session

    def prompt(self, text: str) -> bytes:
        """A message; a command is declared as one. One that begins a session has no id, for that names the session."""
        self._number += 1
        session = self._session
        self._prompt = requests.prompt_id(session, self._number) if session else None
        given = session or requests.NEW_SESSION
        return _line(requests.user_message(text, session=given, prompt=self._prompt, model=self._model))

    def interrupt(self) -> bytes:
        """It finishes its history and says that it did."""
        return _line(requests.cancel(self._session, self._prompt))

    def model(self, name: str | None) -> bytes | None:
        """Each request names the model: the next one this; its own is that of its command line."""
        self._model = name
        return None if name is None else b""

    def mode(self, name: str) -> bytes | None:
        """It has no word for another permission mode."""
        return None

    def heartbeat(self) -> bytes:
        """It answers whatever it is doing."""
        return _line(requests.heartbeat_request(self._session))

    def decide(self, permission: Permission, decision: Decision) -> bytes:
        """It knows yes and no. ValueError: it would run a changed call as it was."""
        if not decision.allow:
            return _line(requests.deny(permission.request, decision.message or "Interrupted by the user."))
        if decision.changed is not None:
            own = own_arguments(TOOLS, permission.own_tool, permission.own_arguments, decision.changed)
            raise ValueError(CHANGED.format(input=dump(decision.changed if own is None else own).decode()))
        return _line(requests.approve(permission.request))


def _line(message: object) -> bytes:
    return dump(message) + b"\n"

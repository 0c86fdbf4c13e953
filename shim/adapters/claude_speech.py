"""What a real claude is told through its stdin while it stays for a conversation in another dialect
(contract 6).

A vendor that took its protocol over says the same, but for what it does otherwise.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shim.core.adapter.vendor import Request
from shim.core.claude.messages import TEXT_ONLY, Kinds, Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.reading.json_text import dump

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator


class ClaudeSpeech:
    """One child's ear; requests are numbered."""

    usable = True
    takes: Kinds = TEXT_ONLY

    def __init__(self) -> None:
        self._number = 0

    def reader(self, translator: "type[Translator]") -> "type[Translator]":
        """The translator itself: its answers to requests of ours say nothing that matters."""
        return translator

    def hello(self, request: Request) -> bytes:
        """Turn the control protocol on."""
        return self._request(subtype="initialize", hooks=None)

    def follow(self, session: str) -> None:
        """Nothing: a claude knows its session."""

    def heartbeat(self) -> bytes:
        """Nothing: a claude gives no signs of life."""
        return b""

    def prompt(self, message: Message) -> bytes:
        said = {"role": "user", "content": message.text}
        return _line(
            {"type": "user", "session_id": "", "message": said, "parent_tool_use_id": None}
        )

    def steer(self, message: Message) -> bytes | None:
        """None: the message waits for its own turn."""
        return None

    def untaken(self) -> int:
        """None: no message was steered."""
        return 0

    def interrupt(self) -> bytes:
        """A claude ends the turn with a result and stays."""
        return self._request(subtype="interrupt")

    def model(self, name: str | None) -> bytes | None:
        """From the next request on; Claude's default model has no name."""
        return None if name is None else self._request(subtype="set_model", model=name)

    def effort(self, level: str | None) -> bytes | None:
        return self._request(subtype="apply_flag_settings", settings={"effortLevel": level})

    def mode(self, name: str) -> bytes | None:
        """Claude's own names of modes."""
        return self._request(subtype="set_permission_mode", mode=name)

    def decide(self, permission: Permission, decision: Decision) -> bytes:
        """An allowed call is sent with its input, as the SDKs do."""
        if decision.allow:
            changed = permission.own_arguments if decision.changed is None else decision.changed
            answer: dict[str, Any] = {"behavior": "allow", "updatedInput": changed}
        else:
            answer = {
                "behavior": "deny",
                "message": decision.message,
                "interrupt": decision.interrupt,
            }
        return respond({"subtype": "success", "request_id": permission.request, "response": answer})

    def _request(self, **request: object) -> bytes:
        self._number += 1
        return _line(
            {"type": "control_request", "request_id": f"shim-{self._number}", "request": request}
        )


def respond(response: Mapping[str, Any]) -> bytes:
    """An answer to one of its requests."""
    return _line({"type": "control_response", "response": response})


def unanswerable(request: str, subtype: object) -> bytes:
    """The answer to a request that has none: silence would let it wait."""
    return respond(
        {
            "subtype": "error",
            "request_id": request,
            "error": f"Unsupported control request: {subtype}",
        }
    )


def _line(value: object) -> bytes:
    return dump(value) + b"\n"

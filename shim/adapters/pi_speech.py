"""What pi is told through its stdin while it stays for a conversation (pi page, section 5)."""

from collections.abc import Mapping
from typing import Any

from shim.adapters.pi import EFFORTS, TOOLS, asked
from shim.adapters.pi_link import Link, Opening
from shim.core.adapter.tools import own_arguments
from shim.core.adapter.vendor import Request
from shim.core.claude.argv.models import nearest
from shim.core.claude.messages import Message
from shim.core.claude.permissions import Decision, Permission
from shim.core.policy.policy import BYPASS
from shim.core.reading.json_text import dump
from shim.profiles.rpc.speech import LinkSpeech

PLAN = "plan"
UNSAYABLE = "Not run: the call was allowed with an input that pi's {tool} has no words for: {input}"
INTERRUPTED = "Interrupted by the user."


class PiSpeech(LinkSpeech[Link]):
    """One pi's ear. Our extension asks about each call in every mode, so that a mode need not be
    told.
    """

    def __init__(self) -> None:
        super().__init__(Link())
        self._mode = ""
        self._asks = True

    def hello(self, request: Request) -> bytes:
        self._mode, self._asks = request.permission_mode, asked(request)
        opening = Opening(
            cwd="" if request.policy is None else request.policy.place.cwd,
            must_ask=self._asks,
            chooses=request.invocation.model is None,
            asks_person=request.asks_person(),
        )
        return self._link.greet(opening)

    def steer(self, message: Message) -> bytes | None:
        return self._link.steer(message)

    def untaken(self) -> int:
        count, self._link.untaken = self._link.untaken, 0
        return count

    def interrupt(self) -> bytes:
        return self._link.abort()

    def model(self, name: str | None) -> bytes | None:
        """From the next request on."""
        return self._link.set_model(name)

    def effort(self, level: str | None) -> bytes | None:
        """From the next request on; its own level has no name."""
        able = None if level is None else nearest(level, EFFORTS)
        return None if able is None else self._link.set_level(able)

    def mode(self, name: str) -> bytes | None:
        """Nothing has to be told where every call is asked about; only a plan has other tools."""
        before, self._mode = self._mode, name
        same = name == before or (self._asks and PLAN not in (name, before))
        return b"" if same and (self._asks or name == BYPASS) else None

    def decide(self, permission: Permission, decision: Decision) -> bytes:
        """What was allowed runs, changed or not. ValueError where pi has no words for the change."""
        filled = self._link.fill(
            permission.request, decision.changed, allow=decision.allow, stop=decision.interrupt
        )
        if filled is not None:
            return filled
        answer: dict[str, Any] = {"allow": decision.allow}
        if not decision.allow:
            answer["reason"] = decision.message or INTERRUPTED
        elif decision.changed is not None:
            answer["input"] = _own(permission, decision.changed)
        return self._link.decide(permission.request, answer)


def _own(permission: Permission, changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A changed input in pi's words."""
    own = own_arguments(TOOLS, permission.own_tool, permission.own_arguments, changed)
    if own is None:
        raise ValueError(UNSAYABLE.format(tool=permission.own_tool, input=dump(changed).decode()))
    return own

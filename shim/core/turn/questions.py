"""Calls that a vendor asks about before they run."""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.permissions import TURN_OVER, Permission
from shim.core.reading.account import Account
from shim.core.reading.json_text import Exact
from shim.core.turn.machine import CLOSED, Machine
from shim.core.turn.terms import NAME_CHARACTERS, Terms
from shim.core.turn.tool_calls import Denials, ToolCalls

QUESTIONS = 1000  # calls that a vendor may ask about in one turn; more is no work but a flood


class Questions:
    """The permissions that a vendor asks for. `asked` waits for the shell."""

    def __init__(
        self, machine: Machine, terms: Terms, account: Account, exact: Exact, calls: ToolCalls, denials: Denials
    ) -> None:
        self.denials = denials
        self._machine = machine
        self._terms = terms
        self._account = account
        self._exact = exact
        self._calls = calls
        self.asked: list[Permission] = []
        self._ids: set[str] = set()  # of the calls that were asked about
        self._requests: set[str] = set()

    def permission(
        self, request: str, identity: str, name: str, arguments: Mapping[str, Any], own: tuple[str, Mapping[str, Any]]
    ) -> None:
        """The vendor asks whether a call may run; `own` are its own name and arguments of it.

        The call is said if it was not; the question waits in `asked`. One that nobody may be asked carries its
        refusal: the vendor gets an answer to every question.
        """
        identity = identity[:NAME_CHARACTERS]
        if len(self.asked) > QUESTIONS:
            self._account.repaired("question_left_out", identity)
            return
        arguments = self._exact.value(arguments)
        refusal = self._unaskable(request, identity, name, arguments)
        said_as = self._calls.open[identity][0] if identity in self._calls.open else identity
        if not refusal:
            self._ids.add(identity)
            self._requests.add(request)
        self.asked.append(Permission(request, said_as, name, arguments, *own, refusal))

    def refuse_all(self) -> None:
        """The turn is over: a question behind the result would get no answer (contract S16b)."""
        self.asked = [asked._replace(refusal=asked.refusal or TURN_OVER) for asked in self.asked]

    def _unaskable(self, request: str, identity: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Why nobody may be asked; "" where the frontend may."""
        if self._machine.over:
            return TURN_OVER
        if identity in self._ids or request in self._requests:
            return "This call was asked about before."
        if len(self._ids) >= QUESTIONS:
            return "Too many calls were asked about in this turn."
        judge = self._terms.judge
        if judge is not None and judge.hides(name):
            return f"{name} is hidden in this session."
        self._calls.tool_use(identity, name, arguments)
        if self._machine.state is CLOSED or identity not in self._calls.open:
            return TURN_OVER
        return ""

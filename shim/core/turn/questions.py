"""Calls that a vendor asks about before they run, and calls that were refused."""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.permissions import TURN_OVER, Permission
from shim.core.reading.account import Account
from shim.core.reading.json_text import Exact, dump
from shim.core.turn.machine import CLOSED, Machine
from shim.core.turn.terms import NAME_CHARACTERS, Terms
from shim.core.turn.tool_calls import ToolCalls

DENIALS = 100  # entries of `permission_denials`; all of them are in one line
QUESTIONS = 1000  # calls that a vendor may ask about in one turn; more is no work but a flood


class Denials:
    """The calls that were refused, for the result's `permission_denials`. They share `room`, half of a line."""

    def __init__(self, account: Account, exact: Exact, room: int) -> None:
        self._account = account
        self._exact = exact
        self._room = room
        self._bytes = 0
        self.entries: dict[str, dict[str, Any]] = {}  # by id

    def add(self, identity: str, name: str, arguments: Mapping[str, Any]) -> None:
        """A call was refused; one whose arguments have no room is named without them."""
        identity = identity[:NAME_CHARACTERS]
        if identity in self.entries:
            return
        given = self._exact.value(arguments)
        entry = {"tool_name": name[:NAME_CHARACTERS], "tool_use_id": identity, "tool_input": given}
        room = self._room - self._bytes
        if (size := len(dump(entry))) > room:
            self._account.repaired("denial_cut", name)
            entry["tool_input"] = {}
            size = len(dump(entry))
        if len(self.entries) < DENIALS and size <= room:
            self.entries[identity] = entry
            self._bytes += size + 1


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

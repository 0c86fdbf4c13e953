"""Calls that were allowed before they are made, and calls in the frontend's process that wait for a
decision.
"""

from collections.abc import Mapping
from typing import Any

import anyio

from shim.core.claude.permissions import TURN_OVER_TEXT, PermissionDecision

GRANTS = 1000  # of a turn; the oldest is forgotten, and its call is asked about


class Answer:
    """A decision that is waited for."""

    def __init__(self) -> None:
        self._made = anyio.Event()
        self._decision = PermissionDecision(False, message=TURN_OVER_TEXT)

    async def decision(self) -> PermissionDecision:
        await self._made.wait()
        return self._decision

    def give(self, decision: PermissionDecision) -> None:
        self._decision = decision
        self._made.set()


class DecidedCalls:
    """The calls of one turn."""

    def __init__(self) -> None:
        self._grants: list[tuple[str, Mapping[str, Any], PermissionDecision]] = []
        self._waiting: dict[str, Answer] = {}
        self._number = 0

    def grant(self, tool: str, arguments: Mapping[str, Any], decision: PermissionDecision) -> None:
        """This call is allowed, once: it was asked about already, or is to be made again in this
        form.
        """
        self._grants = [*self._grants[1 - GRANTS :], (tool, arguments, decision)]

    def granted(self, tool: str, arguments: Mapping[str, Any]) -> PermissionDecision | None:
        """The decision about exactly this call, once; None where there was none."""
        for number, (named, given, decision) in enumerate(self._grants):
            if (named, given) == (tool, arguments):
                del self._grants[number]
                return decision
        return None

    def wait(self) -> tuple[str, Answer]:
        """A call that waits: the name of its question, and what brings the decision."""
        self._number += 1
        request, answer = f"inside-{self._number}", Answer()
        self._waiting[request] = answer
        return request, answer

    def waits(self, request: str) -> bool:
        return request in self._waiting

    def decide(self, request: str, decision: PermissionDecision) -> bool:
        """Whether a question is one of these, which has its answer now."""
        answer = self._waiting.pop(request, None)
        if answer is not None:
            answer.give(decision)
        return answer is not None

    def forget(self, request: str) -> None:
        """Nobody waits for the decision any more."""
        self._waiting.pop(request, None)

    def end(self) -> None:
        """The turn is over: what was allowed in it is not allowed in the next, and what waits is
        denied.
        """
        self._grants = []
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.give(PermissionDecision(False, message=TURN_OVER_TEXT))

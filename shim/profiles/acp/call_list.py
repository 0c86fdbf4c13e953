"""The calls of an agent that are not over, also if it gives several of them one id, or none."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.turn.open_calls import read_id
from shim.profiles.acp.calls import KINDS, PLACE, Call, Form, read_object, text_of

CALLS = 1000  # of a turn that are not over; the oldest is forgotten
ENDED_CALLS = 1000  # of a turn, whose ids are remembered
RUNNING = ("in_progress", "completed", "failed", "cancelled")  # states of a call that has begun to run


class CallList:
    """The calls of one turn. `create_id` makes an id for a call whose id is taken or empty."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._calls: list[Call] = []
        self._ended: dict[str, None] = {}

    def clear(self) -> None:
        self._calls.clear()
        self._ended.clear()

    def list_calls(self, agent_id: str) -> list[Call]:
        """Return the calls with an id of the agent's, the oldest first."""
        return [call for call in self._calls if call.agent_id == agent_id]

    def begin(self, update: Mapping[str, Any], create_id: Callable[[str], str]) -> Call:
        """Return the call that a `tool_call` is about: a new one if it contradicts the calls with its id."""
        agent_id = read_id(update.get("toolCallId"))
        self._ended.pop(agent_id, None)  # another call may have the id of one that is over
        for call in self.list_calls(agent_id):
            if not is_another(call, update, self._form):
                return call
        return self._add(agent_id, create_id)

    def find(self, update: Mapping[str, Any], create_id: Callable[[str], str]) -> Call:
        """Return the call that an update is about: one with its input, else the next one in order."""
        calls = self.list_calls(read_id(update.get("toolCallId")))
        if not calls:
            return self._add(read_id(update.get("toolCallId")), create_id)
        same = [call for call in calls if call.told and call.input == update.get("rawInput")]
        status = update.get("status")
        if not same and status == "in_progress":
            partial = [call for call in calls if not call.told]  # its input follows
            same = partial[-1:] if self._form.content else [call for call in calls if not call.is_running]
        elif not same and status in RUNNING:
            same = [call for call in calls if call.is_running]
        call = (same or calls)[0]
        call.is_running = call.is_running or status in RUNNING
        return call

    def find_asked(
        self, question: Mapping[str, Any], create_id: Callable[[str], str], is_undecided: Callable[[str], bool]
    ) -> Call | None:
        """Return the call that a question is about; None if it may be about several calls with other inputs.

        Another input is that of another call while the question about the first call is undecided. Behind the answer,
        it would be the same call with other words.
        """
        agent_id, given = read_id(question.get("toolCallId")), question.get("rawInput")
        self._ended.pop(agent_id, None)
        calls = self.list_calls(agent_id)
        if not calls:
            return self._add(agent_id, create_id)
        waiting = [call for call in calls if call.asked_input is None]
        undecided = [call for call in calls if is_undecided(call.identity)]
        if not waiting and undecided and all(_contradicts(call.asked_input, given) for call in calls):
            return self._add(agent_id, create_id)
        waiting = waiting or calls
        same = [call for call in waiting if call.told and call.input == given]
        if not same and len(calls) > 1 and not _has_input(given):
            same = [call for call in waiting if call.title and call.title == question.get("title")]
            return same[0] if len(same) == 1 else None
        return (same or waiting)[0]

    def end(self, call: Call) -> None:
        """Forget a call that is over."""
        self._calls = [each for each in self._calls if each is not call]
        if self.list_calls(call.agent_id):
            return
        if len(self._ended) >= ENDED_CALLS:
            self._ended.pop(next(iter(self._ended)))
        self._ended[call.agent_id] = None

    def end_by_id(self, identity: str) -> None:
        """Forget the call that has this id of its own."""
        for call in self._calls:
            if call.identity == identity:
                self.end(call)
                return

    def has_ended(self, update: Mapping[str, Any]) -> bool:
        """Return whether an update is about a call that is over."""
        return read_id(update.get("toolCallId")) in self._ended

    def _add(self, agent_id: str, create_id: Callable[[str], str]) -> Call:
        is_free = agent_id and not self.list_calls(agent_id)
        call = Call(agent_id if is_free else create_id(agent_id), self._form)
        call.agent_id = agent_id
        if len(self._calls) >= CALLS:
            self._calls.pop(0)
        self._calls.append(call)
        return call


def is_another(call: Call, update: Mapping[str, Any], form: Form) -> bool:
    """Return whether a `tool_call` is about another call than this one, which has the same id.

    A call may be announced again with more than before. Once it was shown to the frontend with its input, another input
    is that of another call.
    """
    kind, given, title = update.get("kind"), update.get("rawInput"), update.get("title")
    if kind in KINDS and call.kind in KINDS and kind != call.kind:
        return True
    if not call.agent_id and call.begun:
        return True
    if update.get("status") == "pending" and call.is_running:
        return True
    if form.content and call.told:
        return read_object(text_of(update.get("content"))) != call.input
    if _has_input(given) and call.told:
        return call.said and given != call.input
    is_renamed = isinstance(title, str) and bool(call.title) and title != call.title
    return is_renamed and (call.said or call.told) and not _has_input(given)


def _contradicts(known: Mapping[str, Any] | None, given: object) -> bool:
    """Return whether a question shows another input. One call may be asked about several times, for its places."""
    if known is None or not isinstance(given, dict):
        return False
    return any(key in known and known[key] != value for key, value in given.items() if key != PLACE)


def _has_input(given: object) -> bool:
    return isinstance(given, dict) and bool(given)

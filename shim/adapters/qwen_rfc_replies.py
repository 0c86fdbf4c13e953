"""The replies of the Qwen RFC: `chat.completion` and its chunks (rows 1 to 9, 21 to 23)."""

from typing import Any

import orjson

from shim.adapters.qwen_rfc_calls import CallsTranslator, words
from shim.adapters.qwen_rfc_tools import TOOLS, error_text
from shim.core.adapter.tools import claude_names
from shim.core.adapter.translator import Event
from shim.core.claude.usage import Usage, usage
from shim.core.turn.machine import DONE
from shim.core.turn.terms import NAME_CHARACTERS
from shim.core.turn.turn import Turn

COMPLETION, CHUNK = "chat.completion", "chat.completion.chunk"
THOUGHT = "x-qwen-thought"
STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
# how a reply ends that cannot be the last of its turn
ASKING = frozenset(("tool_calls", "function_call"))
CUT = frozenset(("length", "content_filter"))  # of a reply that did: a call of it may be half
FILTERED = "The content filter stopped the reply (finish_reason content_filter)"
CONTROL_ERRORS = 20  # that one line is read for


class RepliesTranslator(CallsTranslator):
    """`_ending` is how a chunked reply ended whose usage may still come.

    `_usage` are the last numbers, which are the turn's (row 8).
    """

    untyped = True

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._session = self._prompt = ""

    def _forget(self) -> None:
        super()._forget()
        self._introduced = self._replying = False
        self._ending: str | None = None
        self._usage: Usage | None = None

    # -- who it is ---------------------------------------------------------------------------------

    def _introduce(self, event: Event, metadata: dict[str, Any]) -> None:
        """Row 1: any line may be the first, and says in one of three places whose it is."""
        given = (
            metadata.get("session_id")
            or event.get("session_id")
            or self._session
            or event.get("id")
        )
        if isinstance(given, str) and given:
            self._session = given.removeprefix("chatcmpl-")
            self._introduced = True
            self.turn.started(session_id=self._session, **self._facts(event, metadata))

    def _facts(self, event: Event, metadata: dict[str, Any]) -> dict[str, Any]:
        tools = metadata.get("tools")
        listed = claude_names(TOOLS, tools) if isinstance(tools, list) else None
        return {"model": event.get("model"), "cwd": metadata.get("cwd"), "tools": listed}

    def _follow(self, event: Event, metadata: dict[str, Any]) -> None:
        """Another prompt's id, once the turn is over: the program answers the next one."""
        prompt = metadata.get("prompt_id") or event.get("prompt_id")
        if not isinstance(prompt, str) or prompt == self._prompt:
            return
        if self._prompt and self.turn.state is DONE:
            self.next_turn()
        self._prompt = prompt[:NAME_CHARACTERS]

    # -- whole replies -----------------------------------------------------------------------------

    def _completion(self, event: Event, metadata: dict[str, Any]) -> None:
        """Rows 2 to 4, 7, 21 to 23: one message a line; that of the handshake is empty."""
        counted = counted_usage(event.get("usage") or metadata.get("usage"))
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            message = choice.get("message") or choice.get("delta") or {}
            reason = reason_of(choice) or "stop"
            if reason == "error":
                self._failed(
                    error_text(metadata.get("error") or words(message.get("content")) or "error")
                )
            elif message.get("role") == "tool":
                self._returned(message)
            elif message.get("role") not in (None, "assistant"):
                self.turn.unknown(f"{COMPLETION}/{message.get('role')}", event)
            else:
                self._message(message, reason, counted, event.get("model"))
                if metadata.get("error") and not message.get("content"):
                    self._note(error_text(metadata["error"]))
        errors = metadata.get("control_errors")
        if isinstance(errors, list) and errors:
            self._note(
                "control error: "
                + "; ".join(error_text(error) for error in errors[:CONTROL_ERRORS])
            )

    def _message(
        self, message: dict[str, Any], reason: str, counted: Usage | None, model: Any
    ) -> None:
        turn, text, calls = (
            self.turn,
            words(message.get("content")),
            message.get("tool_calls") or [],
        )
        annotations = annotations_of(message)
        reasoning = message.get("reasoning_content") or ""
        self._thoughts(annotations, model)
        if text or calls or reasoning or self._replying:
            self._open_reply(model)
            turn.message_facts(model, counted)
            turn.think(reasoning)
            turn.say(text)
            for call in calls:
                function = call.get("function") or {}
                self._call(call.get("id"), function.get("name"), function.get("arguments"))
            self._close_reply("tool_calls" if calls and reason == "stop" else reason, counted)
        elif counted is not None:  # a summary that says nothing more
            self._usage = counted
            self._pause()
        self._annotated(annotations)

    # -- replies in chunks -------------------------------------------------------------------------

    def _chunk(self, event: Event, metadata: dict[str, Any]) -> None:
        """Rows 5 to 8. The usage of a reply stands on its last chunk, or on one behind it without
        choices.
        """
        choices, counted = (
            event.get("choices") or (),
            counted_usage(event.get("usage") or metadata.get("usage")),
        )
        if self._ending is not None and counted is not None:
            self._end_reply(counted)
        elif counted is not None and not choices:  # it came late
            self._usage = counted
            self._pause()
        for choice in choices:
            if not choice.get("index"):
                self._delta(choice, event, counted)
                if choice.get("finish_reason") == "error":
                    self._failed(error_text(metadata.get("error") or "error"))

    def _delta(self, choice: dict[str, Any], event: Event, counted: Usage | None) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        reason, model = reason_of(choice), event.get("model")
        annotations = annotations_of(delta)
        if self._ending is not None and (delta.keys() - {"role"} or reason != self._ending):
            self._end_reply(None)
        self._thoughts(annotations, model)
        if delta.get("role") == "tool":
            self._returned(delta)
        else:
            if fragment := delta.get("reasoning_content"):
                self._open_reply(model)
                self.turn.thinking(fragment)
            if fragment := delta.get("content"):
                self._open_reply(model)
                self.turn.text(fragment if isinstance(fragment, str) else words(fragment))
            if calls := delta.get("tool_calls"):
                self._open_reply(model)
                self._parts.add(calls)
        self._annotated(annotations)
        if (
            reason
            and reason != "error"
            and (self._replying or (self._reason != reason and reason != "tool_calls"))
        ):
            self._finish(reason, counted, model)

    def _finish(self, reason: str, counted: Usage | None, model: Any) -> None:
        self._open_reply(model)
        self._say_parts(cut=reason in CUT)
        self.turn.block_end()
        self._ending = reason
        if counted is not None:
            self._end_reply(counted)

    def _end_reply(self, counted: Usage | None) -> None:
        """End a chunked reply; `counted` is None if its usage never came."""
        reason, self._ending = self._ending, None
        if reason is not None:
            self._close_reply(reason, counted)

    # -- both --------------------------------------------------------------------------------------

    def _open_reply(self, model: Any) -> None:
        """The model says something: whatever it asked for before has come back by now."""
        if self._replying:
            return
        self._replying, self._reason = True, None
        turn = self.turn
        turn.unsettle()
        if turn.open:
            for _ in range(len(turn.open)):
                call, (said_as, _, _) = next(iter(turn.open.items()))
                turn.tool_result(call, "", self._take_owed(call, default=said_as in turn.denials))
            self._owed.clear()
        self._displayed.clear()
        turn.message_facts(model)

    def _close_reply(self, reason: str, counted: Usage | None) -> None:
        self._replying, self._reason = False, reason
        self._usage = counted or self._usage
        if reason not in STOPS:
            self.turn.unknown(f"finish_reason/{reason}")
        self.turn.message_end(counted, STOPS.get(reason), adds=False)
        if counted is not None:
            self._pause()

    def _pause(self) -> None:
        if self._complete():
            self.turn.pause()

    def _complete(self) -> bool:
        """Whether what was said may be a whole turn: a last reply that did not ask for tools, and
        nothing after it.
        """
        return (
            self._reason is not None
            and self._reason not in ASKING
            and not (self._replying or self.turn.open)
        )

    def _thoughts(self, annotations: list[Event], model: Any) -> None:
        for annotation in annotations:
            if annotation.get("type") == THOUGHT:
                self._think(annotation, model)

    def _think(self, event: Event, model: Any = None) -> None:
        """Row 9."""
        subject, description = event.get("subject"), event.get("description")
        self._open_reply(model)
        self.turn.think(
            " ".join(part for part in (f"**{subject}**" if subject else "", description) if part)
        )

    def _annotated(self, annotations: list[Event]) -> None:
        for annotation in annotations:
            if annotation.get("type") != THOUGHT:
                self._event(annotation)

    # -- the end -----------------------------------------------------------------------------------

    def _failed(self, message: str, **facts: Any) -> None:
        self._parts.forget()
        self._spend()
        self.turn.failed(message or "qwen gave no reason", **facts)
        self.turn.settle()

    def _ended(self, **facts: Any) -> None:
        self._spend()
        if self._reason == "content_filter":
            self.turn.failed(FILTERED, api=True)
        else:
            self.turn.ended(**facts)
        self.turn.settle()

    def _spend(self) -> None:
        counted, self._usage = self._usage, None
        if counted is not None and self.turn.state is not DONE:
            self.turn.spent(counted, 0.0)

    # -- beside the conversation -------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        """An event with a type, in a line of its own or as an annotation."""
        raise NotImplementedError

    def _note(self, text: str) -> None:
        """A notice beside the conversation."""
        self.turn.system("informational", content=text, level="notice")


def reason_of(choice: dict[str, Any]) -> str:
    """How a reply ended; "" for an unfinished reply."""
    reason = choice.get("finish_reason")
    return reason if isinstance(reason, str) else ""


def annotations_of(message: dict[str, Any]) -> list[Event]:
    """The events that stand inside a message or a delta."""
    return [one for one in message.get("annotations") or () if isinstance(one, dict)]


def metadata_of(event: Event) -> dict[str, Any]:
    """What a line says about itself, in `metadata` or in `system_fingerprint` (an object, or one in
    a string).
    """
    given = event.get("metadata")
    found = given if isinstance(given, dict) else {}
    mark = event.get("system_fingerprint")
    if isinstance(mark, str) and mark.startswith("{"):
        try:
            mark = orjson.loads(mark)
        except orjson.JSONDecodeError:
            mark = None
    return {**mark, **found} if isinstance(mark, dict) else found


def counted_usage(counted: object) -> Usage | None:
    """Row 8: the prompt includes the cached tokens. None without any count."""
    if not isinstance(counted, dict):
        return None
    details = counted.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    found = usage(
        counted.get("prompt_tokens"), cached, 0, counted.get("completion_tokens"), inclusive=True
    )
    return found if any(found.values()) else None

"""The feedback of hooks: texts for the model, and whether the turn stops or continues.

Measured with claude 2.1.330. The real claude adds each text to its next request to the model. Other
vendors receive the texts as part of a message. The shim waits for a hook's answer before the turn
ends, but a vendor does not wait for the hooks of a tool result.
"""

from collections import deque

from shim.core.claude.hooks.answers import (
    NO_REASON_TEXT,
    TEXT_END,
    TEXT_START,
    WRONG_EVENT_TEXT,
    HookAnswer,
    parse_hook_answer,
)
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.policy import (
    POST_COMPACT_EVENT,
    PRE_COMPACT_EVENT,
    PRE_TOOL_EVENT,
    PROMPT_EVENT,
    RESULT_EVENT,
    RESULT_EVENTS,
    SESSION_END_EVENT,
    SESSION_START_EVENT,
    STOP_EVENT,
    STOP_FAILURE_EVENT,
)
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import as_str

# The events whose hooks can stop the turn after a tool call. As in the real claude, the hooks of a
# failed call cannot.
STOPPING_EVENTS = (PRE_TOOL_EVENT, RESULT_EVENT)
# The maximum number of texts that wait for the model. Without a limit, a hook that answers again
# and again could fill the memory.
MAX_TEXTS = 100
EVENTS_WITHOUT_CONTEXT = (
    *(PRE_COMPACT_EVENT, POST_COMPACT_EVENT, SESSION_END_EVENT, STOP_FAILURE_EVENT),
)
CALLBACK_SOURCE = "callback"  # the source of a callback's text, as the model reads it


class HookFeedback(NamedTuple):
    """The part of a hook's answer that concerns the conversation, not the permission for a call."""

    texts: tuple[str, ...] = ()  # texts for the model
    visible_text: str = ""  # the text that is also written to the frontend as a user message
    needs_answer: bool = False  # the turn must not end before the model has answered the texts
    stops_turn: bool = False  # the turn ends after this event
    notice: str = ""  # a text for the user, or ""
    is_for_next_turn: bool = False  # the texts belong to the next message
    is_failure: bool = False  # the notice reports that the answer is invalid


def parse_hook_feedback(
    event: HookEvent, value: object, source: str = CALLBACK_SOURCE
) -> HookFeedback:
    """Parse a hook's answer to an event. `source` is the hook's command, or "callback"."""
    answer = parse_hook_answer(value)
    if answer.is_for_other_event(event.name):
        return _refuse_wrong_event(event, answer.event_name)
    label = event.name
    if event.tool:
        label = f"{event.name}:{event.tool}"
    notice = f"{label} says: {answer.user_message}" if answer.user_message else ""
    is_block = answer.decision == "block"
    if answer.stops and event.name in (*STOPPING_EVENTS, STOP_EVENT):
        stop_text = f"{label} hook stopped continuation: {answer.stop_reason}"
        return HookFeedback((stop_text,), stops_turn=True, notice=notice)
    if is_block and event.name == PRE_COMPACT_EVENT:
        return HookFeedback(stops_turn=True, notice=notice)
    texts: list[str] = []
    visible_text = ""
    needs_answer = False
    if is_block and event.name in (*RESULT_EVENTS, STOP_EVENT):
        text = _format_block(event, label, answer.reason or NO_REASON_TEXT, source)
        texts.append(text)
        visible_text = text if event.name == STOP_EVENT else ""
        needs_answer = True
    if context := _find_context(event, answer):
        texts.append(f"{label} hook additional context: {context}")
        needs_answer |= event.name == STOP_EVENT
    return HookFeedback(
        tuple(texts),
        visible_text,
        needs_answer=needs_answer,
        notice=notice,
        is_for_next_turn=event.name == SESSION_START_EVENT,
    )


def _refuse_wrong_event(event: HookEvent, wrong_name: str) -> HookFeedback:
    """Return the feedback for an answer to another event, which has no other effect."""
    if event.name != STOP_EVENT:
        return HookFeedback()
    reason = WRONG_EVENT_TEXT.format(expected=event.name, name=wrong_name)
    return HookFeedback(notice=f"{event.name} hook failed: {reason}", is_failure=True)


def _find_context(event: HookEvent, answer: HookAnswer) -> str:
    """Return the hook's context for the model, or "". The context of a rejected message is not
    used.
    """
    if answer.event_name != event.name or event.name in EVENTS_WITHOUT_CONTEXT:
        return ""
    if event.name == PROMPT_EVENT and answer.decision == "block":
        return ""
    return as_str(answer.specific_output.get("additionalContext"))


def _format_block(event: HookEvent, label: str, reason: str, source: str) -> str:
    if event.name == STOP_EVENT:
        return f"Stop hook feedback:\n{reason}"
    return f'{label} hook blocking error from command: "{source}": {reason}'


class HookFeedbackQueue:
    """The feedback of a conversation's hooks that the model has not received yet.

    needs_answer      the model must answer the texts before the turn ends
    stops_turn        a Stop hook does not let the turn continue
    has_late_context  a text would have reached the model in this turn if the vendor were the real
                      claude
    """

    def __init__(self) -> None:
        self._texts = deque[str](maxlen=MAX_TEXTS)
        self._texts_for_next_turn = deque[str](maxlen=MAX_TEXTS)
        self._visible_texts: list[str] = []
        self.needs_answer = self.stops_turn = self.has_late_context = False

    def end_turn(self) -> None:
        """End a turn. The texts stay, because the next message contains them."""
        self._texts.extend(self._texts_for_next_turn)
        self._texts_for_next_turn.clear()
        self.needs_answer = self.stops_turn = False

    def add(self, feedback: HookFeedback) -> None:
        if feedback.stops_turn:
            self._texts_for_next_turn.extend(feedback.texts)
        else:
            self._texts.extend(feedback.texts)
        if feedback.visible_text:
            self._visible_texts.append(feedback.visible_text)
        if feedback.texts and not (feedback.stops_turn or feedback.is_for_next_turn):
            self.has_late_context = True
        self.needs_answer |= feedback.needs_answer
        self.stops_turn |= feedback.stops_turn

    def take_model_text(self) -> str:
        """Return all texts for the model as one text, and remove them. Return "" if there are
        none.
        """
        if not self._texts:
            return ""
        text = "\n\n".join(self._texts)
        self._texts.clear()
        self.needs_answer = self.has_late_context = False
        return f"{TEXT_START}{text}{TEXT_END}"

    def take_visible_texts(self) -> list[str]:
        """Return the texts that the frontend receives as user messages, and remove them."""
        visible_texts = self._visible_texts
        self._visible_texts = []
        return visible_texts

    def put_back(self, model_text: str) -> None:
        """Put back a text that the vendor has not read."""
        self._texts.appendleft(model_text.removeprefix(TEXT_START).removesuffix(TEXT_END))
        self.has_late_context = True

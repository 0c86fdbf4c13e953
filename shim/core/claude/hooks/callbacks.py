"""Hook callbacks that a frontend registers for events and tool calls (contract C11, 6.5).

The frontend registers the callbacks in its `initialize` request. A PreToolUse callback can deny a
tool call. If the vendor asks for permission, the call is denied before it runs. Otherwise the turn
is stopped.

The module `feedback` handles the texts for the model in a hook's answer. The module `commands`
handles the hooks in Claude's settings files, which have the same matchers and answers.
"""

import posixpath
import re
from collections.abc import Mapping

from shim.core.policy import HOOK_EVENTS, PRE_TOOL_EVENT
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, as_str, get_text, list_dicts

PROMPT_EVENT = "UserPromptSubmit"
RESULT_EVENT, FAILURE_EVENT = "PostToolUse", "PostToolUseFailure"
RESULT_EVENTS = (RESULT_EVENT, FAILURE_EVENT)
PERMISSION_EVENT = "PermissionRequest"
PRE_COMPACT_EVENT, POST_COMPACT_EVENT = "PreCompact", "PostCompact"
SESSION_START_EVENT, SESSION_END_EVENT = "SessionStart", "SessionEnd"
STOP_EVENT, STOP_FAILURE_EVENT = "Stop", "StopFailure"
AGENT_START_EVENT, AGENT_STOP_EVENT = "SubagentStart", "SubagentStop"
# The member of an event's input that names its trigger.
TRIGGER_KEYS = {
    PRE_COMPACT_EVENT: "trigger",
    POST_COMPACT_EVENT: "trigger",
    SESSION_START_EVENT: "source",
    SESSION_END_EVENT: "reason",
    STOP_FAILURE_EVENT: "error",
}
# The triggers for which the real claude calls the hooks of a frontend at the start and the end of a
# session.
SESSION_TRIGGERS = ("clear", "compact")
# The members of a tool's input that are absolute paths in the input of hooks.
PATH_KEYS = ("file_path", "notebook_path")
# The maximum number of open hooks and of stored decisions. Without a limit, the tables would grow
# with every tool call if a frontend never answers.
MAX_OPEN_HOOKS = 1000
HOOK_TIMEOUT_S = 60.0  # how long the real claude waits for the frontend's hooks
MAX_CALLBACKS_PER_EVENT = 64  # no frontend needs more callbacks
MAX_PATTERN_CHARS = 500  # the maximum length of a matcher's regular expression
MATCH_ALL = ("", "*")
# Models recognize from these tags that the user has not written the text.
TEXT_START = "<system-reminder>\n"
TEXT_END = "\n</system-reminder>"
WRONG_EVENT_TEXT = "Hook returned incorrect event name: expected '{expected}' but got '{name}'."
TOOL_NAMES = r"[A-Za-z0-9_|, ]*"
NO_REASON_TEXT = "Blocked by hook"  # used if a hook gives no reason


class HookEvent(NamedTuple):
    """An event for hooks. `tool_response` is the tool's result. `trigger` is why a session starts or
    ends, why its context is compacted, or which subagent starts or stops. `duration_ms` is the time
    from the start of a tool call to its result. `fields` are further members of the hook's input.
    """

    name: str
    call_id: str = ""
    tool: str = ""
    tool_input: Mapping[str, Any] = {}
    tool_response: object = None
    trigger: str = ""
    duration_ms: int | None = None
    fields: Mapping[str, Any] = {}

    @property
    def matched_text(self) -> str:
        """The tool or the trigger, with which matchers are compared, or "". An event without such a
        text matches all matchers.
        """
        return self.tool or self.trigger

    @property
    def is_for_callbacks(self) -> bool:
        """Whether the hooks of a frontend are called for this event."""
        if self.name in (SESSION_START_EVENT, SESSION_END_EVENT):
            return self.trigger in SESSION_TRIGGERS
        return True

    def resolve_paths(self, cwd: str) -> "HookEvent":
        """Return the event with absolute paths in the tool's input, as the real claude reports
        them.
        """
        paths = {
            key: posixpath.join(cwd, path)
            for key in PATH_KEYS
            if isinstance(path := self.tool_input.get(key), str) and path[:1] not in ("", "/", "~")
        }
        if not paths or not cwd:
            return self
        return self._replace(tool_input={**self.tool_input, **paths})


def build_compaction_events(
    trigger: str, instructions: str | None = None
) -> tuple[HookEvent, HookEvent]:
    """Return the events before and after a compaction of the context. `trigger` is `manual` or
    `auto`. No vendor reports its summary.
    """
    before = HookEvent(
        PRE_COMPACT_EVENT, trigger=trigger, fields={"custom_instructions": instructions}
    )
    after = HookEvent(POST_COMPACT_EVENT, trigger=trigger, fields={"compact_summary": ""})
    return before, after


def build_prompt_event(prompt: str) -> HookEvent:
    """Return the event before a user message is sent to the model."""
    return HookEvent(PROMPT_EVENT, fields={"prompt": prompt})


def build_stop_event(last_text: str, *, has_continued: bool = False) -> HookEvent:
    """Return the event before a turn ends. `last_text` is the last text of the model.
    `has_continued` is set if a Stop hook has already continued the turn.
    """
    fields = {
        "stop_hook_active": has_continued,
        "last_assistant_message": last_text,
        "background_tasks": [],
        "session_crons": [],
    }
    return HookEvent(STOP_EVENT, fields=fields)


class HookContext(NamedTuple):
    """The members of a hook's input that describe the session. `prompt_id` identifies the user's
    message, and `effort` is the effort level; both are left out if they are not known.
    """

    session_id: str
    transcript_path: str
    permission_mode: str
    cwd: str = ""
    prompt_id: str = ""
    effort: str | None = None


class HookAnswer(NamedTuple):
    """The parts of a hook's answer. A part that is missing or malformed is empty.

    decision         "block" or "approve"; the real claude's older form of a decision
    reason           the reason of the decision
    stops            the hook does not let the turn continue (`continue`)
    stop_reason      why the turn does not continue
    user_message     a message for the user
    event_name       the event to which the answer belongs
    specific_output  the members whose meaning depends on the event
    """

    decision: str
    reason: str
    stops: bool
    stop_reason: str
    user_message: str
    event_name: str
    specific_output: Mapping[str, Any]

    def is_for_other_event(self, event_name: str) -> bool:
        """Return whether the answer names another event. Such an answer is invalid."""
        return self.event_name not in ("", event_name)


def parse_hook_answer(value: object) -> HookAnswer:
    """Parse the object that a hook has returned."""
    fields = as_dict(value)
    specific_output = as_dict(fields.get("hookSpecificOutput"))
    return HookAnswer(
        as_str(fields.get("decision")),
        as_str(fields.get("reason")),
        fields.get("continue") is False,
        as_str(fields.get("stopReason")),
        as_str(fields.get("systemMessage")),
        as_str(specific_output.get("hookEventName")),
        specific_output,
    )


class HookDecision(NamedTuple):
    """A PreToolUse hook's decision. `allow` is True to allow the call without a prompt, False to
    deny the call, and None if the permission rules decide.

    `updated_input` replaces the call's arguments, and None leaves them unchanged. If
    `requires_prompt` is set, a person must confirm the call even if a rule allows it. If
    `stops_turn` is set, the turn ends after the call.
    """

    allow: bool | None = None
    reason: str = ""
    updated_input: Mapping[str, Any] | None = None
    requires_prompt: bool = False
    stops_turn: bool = False

    def merge(self, other: "HookDecision") -> "HookDecision":
        """Return the stricter of two hook decisions. A denial is stricter than a required prompt,
        and a required prompt is stricter than an approval.
        """
        if other.updated_input is None:
            updated_input = self.updated_input
        else:
            updated_input = other.updated_input
        strictest = min(
            self,
            other,
            key=lambda decision: (
                decision.allow is not False,
                not decision.requires_prompt,
                not decision.allow,
            ),
        )
        stops_turn = self.stops_turn or other.stops_turn
        return strictest._replace(updated_input=updated_input, stops_turn=stops_turn)


class ToolCallHookDecisions(BoundedDict[str, HookDecision]):
    """The hooks' decisions about the tool calls of one turn, by call id."""

    def __init__(self) -> None:
        super().__init__(MAX_OPEN_HOOKS)

    def get_decision(self, call_id: str) -> HookDecision:
        return self.get(call_id, HookDecision())

    def add_decision(self, call_id: str, decision: HookDecision) -> None:
        self[call_id] = self.get_decision(call_id).merge(decision)


class PromptHookRejection(NamedTuple):
    """A UserPromptSubmit hook's rejection of a user message."""

    text: str  # the text of the `informational` line and of the result
    reason: str  # "" if the hook gave no reason
    stays_in_context: bool  # the model receives the message together with the next message
    is_error: bool = False  # the turn fails, because the hook's answer is invalid

    def format_for_model(self) -> str:
        """Return the text that the model receives after the rejected message."""
        return f"{TEXT_START}{self.text}{TEXT_END}"

    def build_rejection_notice(self) -> dict[str, Any]:
        """Return the fields of the `informational` line that reports the rejection to the
        frontend.
        """
        kind = "blocked_by_hook"
        if self.stays_in_context:
            kind = "stopped_by_hook"
        outcome = {"kind": kind, "prompt_kept": self.stays_in_context}
        if self.reason:
            outcome["reason"] = self.reason
        return {
            "content": self.text,
            "level": "warning",
            "prevent_continuation": True,
            "prompt_submit_outcome": outcome,
        }


def parse_prompt_hook_rejection(value: object, prompt: str) -> PromptHookRejection | None:
    """Parse a UserPromptSubmit hook's answer. Return the rejection, or None if the hook accepts the
    message.
    """
    answer = parse_hook_answer(value)
    if answer.is_for_other_event(PROMPT_EVENT):
        text = WRONG_EVENT_TEXT.format(expected=PROMPT_EVENT, name=answer.event_name)
        return PromptHookRejection(text, "", stays_in_context=False, is_error=True)
    if answer.stops:
        text = "Operation stopped by hook"
        if answer.stop_reason:
            text = f"Operation stopped by hook: {answer.stop_reason}"
        return PromptHookRejection(text, answer.stop_reason, stays_in_context=True)
    if answer.decision != "block":
        return None
    text = f"{PROMPT_EVENT} operation blocked by hook:\n{answer.reason or NO_REASON_TEXT}"
    if answer.specific_output.get("suppressOriginalPrompt") is not True:
        text = f"{text}\n\nOriginal prompt: {prompt}"
    return PromptHookRejection(text, answer.reason, stays_in_context=False)


class HookCallbacks:
    """The hook callbacks of one frontend."""

    def __init__(self, raw_hooks: object = None) -> None:
        """`raw_hooks` is the `hooks` member of an initialize request. Unknown entries are
        ignored.
        """
        self._callbacks: dict[str, list[tuple[str, str]]] = {}  # event → matchers and callback ids
        for event, groups in as_dict(raw_hooks).items():
            if event in HOOK_EVENTS and isinstance(groups, list):
                self._callbacks[event] = _parse_callbacks(groups)[:MAX_CALLBACKS_PER_EVENT]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def can_deny_calls(self) -> bool:
        """Whether any registered callback can deny a tool call."""
        return bool(self._callbacks.get(PRE_TOOL_EVENT))

    @property
    def can_allow_calls(self) -> bool:
        """Whether any registered callback can allow a tool call."""
        return self.can_deny_calls or bool(self._callbacks.get(PERMISSION_EVENT))

    def list_callback_ids(self, event: HookEvent) -> list[str]:
        callbacks = self._callbacks.get(event.name, ()) if event.is_for_callbacks else ()
        return [
            callback_id
            for matcher, callback_id in callbacks
            if not event.matched_text or matches_tool_name(matcher, event.matched_text)
        ]


def _parse_callbacks(groups: object) -> list[tuple[str, str]]:
    """Return each callback's matcher and id."""
    return [
        (as_str(group.get("matcher")), callback_id)
        for group in list_dicts(groups)
        for callback_id in as_list(group.get("hookCallbackIds"))
        if isinstance(callback_id, str)
    ]


def matches_tool_name(matcher: str, tool: str) -> bool:
    """Return whether a hook's matcher matches a tool name.

    A matcher is a wildcard, a list of names that are separated by bars or commas, or a regular
    expression. The expression may match any part of the name. An invalid expression matches every
    tool, so that the hook is not skipped. The subagent tool has two names, and a matcher for either
    name matches.
    """
    if matcher in MATCH_ALL:
        return True
    names = ("Task", "Agent") if tool in ("Task", "Agent") else (tool,)
    if re.fullmatch(TOOL_NAMES, matcher):
        return not {name.strip() for name in re.split("[|,]", matcher)}.isdisjoint(names)
    if len(matcher) > MAX_PATTERN_CHARS:
        return True
    try:
        return any(re.search(matcher, name) for name in names)
    except (re.error, OverflowError, RecursionError):
        return True


def build_hook_input(event: HookEvent, context: HookContext) -> dict[str, Any]:
    """Return the input that a hook receives."""
    hook_input: dict[str, Any] = {
        "session_id": context.session_id,
        "transcript_path": context.transcript_path,
        "cwd": context.cwd,
    }
    if context.prompt_id:
        hook_input["prompt_id"] = context.prompt_id
    if event.name not in TRIGGER_KEYS:
        hook_input["permission_mode"] = context.permission_mode
    if context.effort and (event.tool or event.name == STOP_EVENT):
        hook_input["effort"] = {"level": context.effort}
    hook_input["hook_event_name"] = event.name
    if event.name in TRIGGER_KEYS:
        hook_input[TRIGGER_KEYS[event.name]] = event.trigger
    if event.tool:
        hook_input |= {"tool_name": event.tool, "tool_input": event.tool_input}
        if event.name != PERMISSION_EVENT:
            hook_input["tool_use_id"] = event.call_id
        if event.name == RESULT_EVENT:
            hook_input["tool_response"] = event.tool_response
        elif event.name == FAILURE_EVENT:
            hook_input |= {"error": event.tool_response, "is_interrupt": False}
        if event.duration_ms is not None:
            hook_input["duration_ms"] = event.duration_ms
    return {**hook_input, **event.fields}


def find_permission_hook_decision(value: object) -> Mapping[str, Any] | None:
    """Return the decision in a PermissionRequest hook's answer, in the format of an answer to a
    permission prompt. Return None if the hook does not decide.
    """
    answer = parse_hook_answer(value)
    decision = as_dict(answer.specific_output.get("decision"))
    if answer.event_name == PERMISSION_EVENT and decision.get("behavior") in ("allow", "deny"):
        return decision
    return None


def parse_hook_output(value: object) -> HookDecision:
    """Parse the object that a PreToolUse hook has returned. Return the hook's decision. An answer to
    another event denies the call.
    """
    answer = parse_hook_answer(value)
    if answer.is_for_other_event(PRE_TOOL_EVENT):
        return HookDecision(
            False, WRONG_EVENT_TEXT.format(expected=PRE_TOOL_EVENT, name=answer.event_name)
        )
    permission_decision = answer.specific_output.get("permissionDecision")
    updated_input = answer.specific_output.get("updatedInput")
    reason = get_text(
        answer.specific_output, "permissionDecisionReason", answer.reason or answer.stop_reason
    )
    decision = HookDecision(None, reason, updated_input, stops_turn=answer.stops)
    if permission_decision in ("deny", "defer") or answer.decision == "block":
        reason = reason or "A hook denied this call."
        return HookDecision(False, reason, stops_turn=answer.stops)
    if updated_input is not None and not isinstance(updated_input, dict):
        return HookDecision(False, "A hook returned an updatedInput that is not an object.")
    if permission_decision == "ask":
        reason = reason or "A hook asked for confirmation of this call."
        return decision._replace(reason=reason, requires_prompt=True)
    if permission_decision == "allow" or (
        permission_decision is None and answer.decision == "approve"
    ):
        return decision._replace(allow=True)
    return decision

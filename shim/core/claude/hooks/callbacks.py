"""The events of hooks, their input, and the callbacks that a frontend registers for them (contract
C11, 6.5).

The frontend registers the callbacks in its `initialize` request. A PreToolUse callback can deny a
tool call. If the vendor asks for permission, the call is denied before it runs. Otherwise the turn
is stopped.

The modules `answers` and `feedback` handle a hook's answer. The module `commands` handles the hooks
in Claude's settings files, which have the same matchers and answers.
"""

import posixpath
import re
from collections.abc import Mapping

from shim.core.policy import (
    FAILURE_EVENT,
    HOOK_EVENTS,
    PERMISSION_EVENT,
    POST_COMPACT_EVENT,
    PRE_COMPACT_EVENT,
    PRE_TOOL_EVENT,
    PROMPT_EVENT,
    RESULT_EVENT,
    SESSION_END_EVENT,
    SESSION_START_EVENT,
    STOP_EVENT,
    STOP_FAILURE_EVENT,
)
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, as_str, list_dicts

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
TOOL_NAMES = r"[A-Za-z0-9_|, ]*"


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

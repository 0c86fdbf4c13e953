"""Lists a frontend's hooks that have no effect, or a different effect than with the real claude."""

from collections.abc import Iterable

from shim.core.policy import (
    AGENT_EVENTS,
    AGENT_STOP_EVENT,
    HOOK_EVENTS,
    PERMISSION_EVENT,
    POST_COMPACT_EVENT,
    PRE_COMPACT_EVENT,
    PRE_TOOL_EVENT,
    RESULT_EVENT,
    RESULT_EVENTS,
    SESSION_START_EVENT,
    STOP_EVENT,
)
from shim.core.policy.policy import UnsupportedRule
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import NamedTuple

SOURCE = "initialize"
# The variable that names a file whose exports the real claude adds to each later shell command.
ENV_FILE = "CLAUDE_ENV_FILE"
# The real claude does not call these hooks of a frontend in print mode either.
UNCALLED_EVENTS = ("Notification",)
# Events whose hooks can deny, block or change something, and that are never called. A frontend may
# rely on them, so they are also reported on stderr.
RESTRICTING_EVENTS = (
    *("UserPromptExpansion", "PostToolBatch", "MessageDisplay", "PreModelSwitch"),
    *("ConfigChange", "PreSkillShellCommand"),
)


class HookSupport(NamedTuple):
    """What the hooks of a frontend can do with a vendor.

    is_persistent      one child of the vendor answers all messages
    accepts_steering   this child accepts messages during a turn
    asks_permissions   the vendor asks for permission before it runs a tool
    changes_input      the answer to the vendor's question can change the input of a call
    passes_reasons     the model learns why a call was denied
    denies_calls       the vendor asks before each tool call in the session's permission mode
    runs_agents        the shim runs the subagents that the frontend defines
    """

    vendor_name: str
    is_persistent: bool
    accepts_steering: bool
    asks_permissions: bool
    changes_input: bool
    passes_reasons: bool
    denies_calls: bool
    runs_agents: bool


def list_uncalled_restricting_events(
    *, asks_permissions: bool, runs_agents: bool
) -> tuple[str, ...]:
    """Return the events whose hooks could restrict something but are never called.

    `asks_permissions` is set if the vendor asks before it runs a tool. `runs_agents` is set if the
    shim runs the subagents that the frontend defines.
    """
    events: tuple[str, ...] = RESTRICTING_EVENTS
    if not asks_permissions:
        events = (*events, PERMISSION_EVENT)
    if not runs_agents:
        events = (*events, AGENT_STOP_EVENT)
    return events


def list_unsupported_callbacks(
    events: Iterable[str], support: HookSupport
) -> tuple[UnsupportedRule, ...]:
    """Return an entry for each event whose hooks cannot do everything that they can do with the
    real claude. `events` are the events for which the frontend has registered hooks.
    """
    entries = []
    for event in events:
        if reason := _explain_smaller_effect(event, support):
            entries.append(UnsupportedRule(f"hooks.{event}", SOURCE, reason))
        entries += [
            UnsupportedRule(f"hooks.{event}.{member}", SOURCE, reason)
            for member, reason in _list_unsupported_members(event, support)
        ]
    return tuple(entries)


def list_unsupported_settings_hooks(
    settings: ClaudeSettings, support: HookSupport
) -> tuple[UnsupportedRule, ...]:
    """Return an entry for each event and settings file whose hooks do not run, or cannot do
    everything that they can do with the real claude. Hooks before a tool call are not listed.
    """
    entries = [
        UnsupportedRule(f"hooks.{hook.event}", hook.source, hook.refusal)
        for hook in settings.refused_event_hooks
    ]
    for hook in settings.event_hooks:
        if reason := _explain_smaller_effect(hook.event, support):
            entries.append(UnsupportedRule(f"hooks.{hook.event}", hook.source, reason))
        entries += [
            UnsupportedRule(f"hooks.{hook.event}.{member}", hook.source, reason)
            for member, reason in _list_unsupported_members(hook.event, support)
            if hook.event == PERMISSION_EVENT
        ]
        if hook.event == SESSION_START_EVENT and ENV_FILE in hook.format_command_line():
            reason = f"the shells of {support.vendor_name} do not read such a file"
            entries.append(UnsupportedRule(f"hooks.{hook.event}.{ENV_FILE}", hook.source, reason))
    return tuple(dict.fromkeys(entries))


def _list_unsupported_members(event: str, support: HookSupport) -> list[tuple[str, str]]:
    """Return the members of an event's answers that have a smaller effect than with the real
    claude, and the reasons.
    """
    name = support.vendor_name
    members = []
    if event == RESULT_EVENT:
        members.append(("updatedToolOutput", f"the model of {name} already has the output"))
    if event in (PRE_TOOL_EVENT, PERMISSION_EVENT) and not support.changes_input:
        reason = f"{name} refuses the call, and its model learns the allowed input"
        members.append(("updatedInput", reason))
    if event in (PRE_TOOL_EVENT, PERMISSION_EVENT) and not support.passes_reasons:
        members.append(("reason", f"{name} may not tell its model why a call was denied"))
    if event == PRE_TOOL_EVENT and not support.accepts_steering:
        members.append(
            ("additionalContext", f"{name} receives it with the next message, if there is one")
        )
    return members


def _explain_smaller_effect(event: str, support: HookSupport) -> str:
    """Return why the hooks of an event have a smaller effect than with the real claude, or ""."""
    name = support.vendor_name
    if event not in (*HOOK_EVENTS, *UNCALLED_EVENTS):
        return "hooks for this event are not called"
    if event in (*RESULT_EVENTS, STOP_EVENT) and not support.is_persistent:
        return f"{name} has a process for each message, so no hook continues a turn"
    if event in RESULT_EVENTS and not support.accepts_steering:
        return f"{name} receives the additionalContext with the next message, if there is one"
    if event == PRE_TOOL_EVENT and not support.denies_calls:
        return f"{name} does not ask in this mode, so a denied call ends the turn"
    if event == PERMISSION_EVENT and not support.asks_permissions:
        return f"{name} runs its tools without asking, so these hooks are not called"
    if event == PRE_COMPACT_EVENT:
        return f"hooks block only /compact, and not what {name} compacts itself"
    if event == POST_COMPACT_EVENT:
        return f"{name} does not report its summary"
    if event in AGENT_EVENTS and not support.runs_agents:
        return f"these hooks are not called, because the shim runs no subagents over {name}"
    if event in AGENT_EVENTS:
        return f"these hooks are called for the agents of the session, not for those of {name}"
    return ""

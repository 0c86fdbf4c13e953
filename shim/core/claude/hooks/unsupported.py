"""Lists a frontend's hooks that have no effect, or a different effect than with the real claude."""

from collections.abc import Iterable

from shim.core.claude.hooks.callbacks import HOOK_EVENTS
from shim.core.claude.hooks.feedback import RESULT_EVENTS, STOP_EVENT
from shim.core.policy.policy import UnsupportedRule
from shim.core.policy.settings import ClaudeSettings

SOURCE = "initialize"
# The real claude does not call these hooks of a frontend in print mode either.
UNCALLED_EVENTS = ("SessionStart", "SessionEnd", "Notification")
# Events whose hooks can deny or block something. A frontend may rely on them, so they are also
# reported on stderr.
BLOCKING_EVENTS = ("PermissionRequest", "SubagentStop", "PreCompact")


def list_unsupported_callbacks(
    events: Iterable[str], vendor_name: str, *, is_persistent: bool, accepts_steering: bool
) -> tuple[UnsupportedRule, ...]:
    """Return an entry for each event whose hooks cannot do everything that they can do with the
    real claude. `events` are the events for which the frontend has registered hooks.

    `is_persistent` is set if one child of the vendor answers all messages. `accepts_steering` is
    set if this child accepts messages during a turn.
    """
    entries = []
    for event in events:
        if event not in (*HOOK_EVENTS, *UNCALLED_EVENTS):
            reason = "hooks for this event are not called"
        else:
            reason = _explain_smaller_effect(
                event, vendor_name, is_persistent=is_persistent, accepts_steering=accepts_steering
            )
        if reason:
            entries.append(UnsupportedRule(f"hooks.{event}", SOURCE, reason))
    return tuple(entries)


def list_unsupported_settings_hooks(
    settings: ClaudeSettings, vendor_name: str, *, is_persistent: bool, accepts_steering: bool
) -> tuple[UnsupportedRule, ...]:
    """Return an entry for each event and settings file whose hooks do not run, or cannot do
    everything that they can do with the real claude. Hooks before a tool call are not listed.

    The other parameters are those of `list_unsupported_callbacks`.
    """
    entries = [
        UnsupportedRule(f"hooks.{hook.event}", hook.source, hook.refusal)
        for hook in settings.refused_event_hooks
    ]
    for hook in settings.event_hooks:
        reason = _explain_smaller_effect(
            hook.event, vendor_name, is_persistent=is_persistent, accepts_steering=accepts_steering
        )
        if reason:
            entries.append(UnsupportedRule(f"hooks.{hook.event}", hook.source, reason))
    return tuple(dict.fromkeys(entries))


def _explain_smaller_effect(
    event: str, vendor_name: str, *, is_persistent: bool, accepts_steering: bool
) -> str:
    """Return why a vendor cannot apply everything that the hooks for an event may answer, or ""."""
    if event in (*RESULT_EVENTS, STOP_EVENT) and not is_persistent:
        return f"{vendor_name} has a process for each message, so no hook continues a turn"
    if event in RESULT_EVENTS and not accepts_steering:
        return f"{vendor_name} receives the additionalContext with the next message"
    return ""

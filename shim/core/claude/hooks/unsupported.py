"""Lists a frontend's hooks that have no effect, or a different effect than with the real claude."""

from collections.abc import Iterable

from shim.core.claude.hooks.callbacks import HOOK_EVENTS
from shim.core.claude.hooks.feedback import RESULT_EVENTS, STOP_EVENT
from shim.core.policy.policy import UnsupportedRule

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
        reason = ""
        if event not in (*HOOK_EVENTS, *UNCALLED_EVENTS):
            reason = "hooks for this event are not called"
        elif event in (*RESULT_EVENTS, STOP_EVENT) and not is_persistent:
            reason = f"{vendor_name} has a process for each message, so no hook continues a turn"
        elif event in RESULT_EVENTS and not accepts_steering:
            reason = f"{vendor_name} receives the additionalContext with the next message"
        if reason:
            entries.append(UnsupportedRule(f"hooks.{event}", SOURCE, reason))
    return tuple(entries)

"""The hooks in Claude's settings files that a session runs at other events than tool calls."""

import pytest

from shim.adapters import get_adapter
from shim.conversation.drivers.context import ConversationContext
from shim.conversation.session_state import list_event_hooks
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook
from shim.io.stderr import SILENT_LOG
from shim.state.config import ShimSettings

EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "Stop")


def list_events(*args, environment=None):
    hooks = tuple(SettingsHook("", "run", event=event) for event in ("PreToolUse", *EVENTS))
    context = ConversationContext(
        get_adapter("qwen"),
        parse_argv(["-p", "hello", *args]),
        ShimSettings(),
        environment or {},
        "/repo",
        SILENT_LOG,
        claude_settings=ClaudeSettings(hooks=hooks),
    )
    return tuple(hook.event for hook in list_event_hooks(context))


def test_session_runs_the_hooks_of_all_events():
    assert list_events() == EVENTS


def test_run_of_a_subagent_has_only_the_hooks_of_tools():
    environment = {"SHIM_AGENT_RUN": "1"}
    assert list_events(environment=environment) == ("PostToolUse", "PostToolUseFailure")


@pytest.mark.parametrize("flag", ["--bare", "--safe-mode"])
def test_flags_that_leave_out_files_leave_out_hooks(flag):
    assert list_events(flag) == ()

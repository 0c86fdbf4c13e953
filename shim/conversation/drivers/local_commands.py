"""Answers Claude's commands that need no model: /clear, /compact, /context and /cost."""

from shim.conversation.drivers.driver import ChildDriver
from shim.core.claude.control.usage_reports import build_context_report, build_cost_report
from shim.core.claude.local_commands import (
    CLEAR,
    COMPACT,
    CONTEXT,
    DISABLED_TEXT,
    LocalCommand,
    format_context_report,
)
from shim.core.claude.messages import UserMessage


async def answer_local_command(
    driver: ChildDriver, message: UserMessage, command: LocalCommand
) -> None:
    """Answer a command in a turn of its own."""
    state = driver.launcher.session_state
    if not state.options.has_commands:
        await driver.finish_turn_without_vendor(message, DISABLED_TEXT.format(name=command.name))
    elif command.kind == CLEAR:
        await driver.start_new_session(message, command)
    elif command.kind == COMPACT:
        await driver.compact_context(message, command)
    elif command.kind == CONTEXT:
        text = format_context_report(build_context_report(state))
        await driver.finish_local_command(message, command.name, text)
    else:
        cost_text = build_cost_report(state)["text"]
        await driver.finish_local_command(message, command.name, cost_text)

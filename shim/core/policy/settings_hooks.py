"""Parses the hooks in Claude's settings files (`hooks`).

`core.claude.hooks.commands` interprets the results of these hooks. The behavior was measured with
version 2.1.330.
"""

from collections.abc import Mapping

from shim.core.policy import PRE_TOOL_EVENT, SESSION_END_EVENT
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, as_str

DEFAULT_TIMEOUT_S = 600.0  # the real claude's default
SESSION_END_TIMEOUT_S = 1.5  # the real claude's default for hooks at the end of a session
MAX_HOOKS = 100  # the limit per file; a turn with more hooks is refused
UNTRUSTED_REASON = "the hook is a program in the working directory, which is not trusted"


class SettingsHook(NamedTuple):
    """A hook command from a settings file."""

    matcher: str  # the hook's tools: "" or "*" for all tools, a list of names, or a pattern
    command: str  # a line of shell code, or a program if there are `args`
    args: tuple[str, ...] | None = None
    condition: str = ""  # a rule that the tool call must match (`if`)
    timeout_s: float = DEFAULT_TIMEOUT_S
    blocks_on_failure: bool = False  # a failure of the hook denies the tool call (`onFailure`)
    source: str = ""  # the name of the settings file
    refusal: str = ""  # why the shim cannot run the hook
    event: str = PRE_TOOL_EVENT
    runs_in_background: bool = False  # nothing waits for the hook, and its answer has no effect

    def __str__(self) -> str:
        return f"{self.matcher or 'every tool'}: {self.format_command_line()}"

    def format_command_line(self) -> str:
        """Return the command and its arguments as one text for messages."""
        if self.args is None:
            return self.command
        return " ".join((self.command, *self.args))


def parse_settings_hooks(
    groups: object, source: str, *, is_trusted: bool, event: str = PRE_TOOL_EVENT
) -> list[SettingsHook]:
    """Return a settings file's hooks for an event. Hooks that run in the background are left out if
    the event is PreToolUse, because they cannot deny a tool call.

    `is_trusted` is set if the programs named in the file may run.
    """
    parsed_hooks = []
    for group in as_list(groups):
        hooks = as_dict(group).get("hooks")
        matcher = None
        if hooks:
            matcher = group.get("matcher")
        for raw_hook in as_list(hooks):
            if isinstance(raw_hook, dict) and not (
                event == PRE_TOOL_EVENT and _is_background_hook(raw_hook)
            ):
                hook = _parse_hook(raw_hook, event)._replace(
                    matcher=as_str(matcher), source=source, event=event
                )
                parsed_hooks.append(
                    hook if is_trusted or hook.refusal else hook._replace(refusal=UNTRUSTED_REASON)
                )
    if len(parsed_hooks) > MAX_HOOKS:
        return [
            parsed_hooks[0]._replace(
                matcher="", refusal=f"the file has more than {MAX_HOOKS} hooks"
            )
        ]
    return parsed_hooks


def _is_background_hook(raw_hook: Mapping[str, Any]) -> bool:
    return any(raw_hook.get(key) for key in ("async", "asyncRewake"))


def _parse_hook(raw_hook: Mapping[str, Any], event: str) -> SettingsHook:
    command = raw_hook.get("command")
    args = raw_hook.get("args")
    timeout_s = raw_hook.get("timeout")
    condition = raw_hook.get("if", "")
    if raw_hook.get("type", "command") != "command" or raw_hook.get("shell") == "powershell":
        return SettingsHook(
            "", "", refusal="only hooks that are shell commands or programs can be run here"
        )
    if not (
        isinstance(command, str)
        and command
        and isinstance(condition, str)
        and (args is None or _is_text_list(args))
    ):
        return SettingsHook("", "", refusal="the hook cannot be read")
    default_timeout_s = DEFAULT_TIMEOUT_S
    if event == SESSION_END_EVENT:
        default_timeout_s = SESSION_END_TIMEOUT_S
    return SettingsHook(
        "",
        command,
        None if args is None else tuple(args),
        condition,
        float(timeout_s)
        if isinstance(timeout_s, int | float) and timeout_s > 0
        else default_timeout_s,
        raw_hook.get("onFailure") == "block",
        runs_in_background=_is_background_hook(raw_hook),
    )


def _is_text_list(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) for item in value)

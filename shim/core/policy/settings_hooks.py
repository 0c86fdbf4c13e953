"""Parses the hooks in Claude's settings files that run before a tool call (`hooks.PreToolUse`).

`core.claude.hooks.commands` interprets the results of these hooks. The behavior was measured with
version 2.1.330.
"""

from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, as_str

DEFAULT_TIMEOUT_S = 600.0  # the real claude's default
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

    def __str__(self) -> str:
        return f"{self.matcher or 'every tool'}: {self.format_command_line()}"

    def format_command_line(self) -> str:
        """Return the command and its arguments as one text for messages."""
        if self.args is None:
            return self.command
        return " ".join((self.command, *self.args))


def parse_settings_hooks(groups: object, source: str, *, is_trusted: bool) -> list[SettingsHook]:
    """Return a settings file's hooks that run before a tool call and can deny it.

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
                raw_hook.get("async") or raw_hook.get("asyncRewake")
            ):
                hook = _parse_hook(raw_hook)._replace(matcher=as_str(matcher), source=source)
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


def _parse_hook(raw_hook: Mapping[str, Any]) -> SettingsHook:
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
    return SettingsHook(
        "",
        command,
        None if args is None else tuple(args),
        condition,
        float(timeout_s)
        if isinstance(timeout_s, int | float) and timeout_s > 0
        else DEFAULT_TIMEOUT_S,
        raw_hook.get("onFailure") == "block",
    )


def _is_text_list(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) for item in value)

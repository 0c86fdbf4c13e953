"""Names the options of a frontend that have no effect with any vendor except the real claude.

Such an option is reported on stderr and in `init.shim.not_honoured`. An option is not listed if a
frontend cannot notice that it has no effect.
"""

from collections.abc import Iterable, Mapping

from shim.core.policy.policy import UnsupportedRule
from shim.core.reading.typed import Any

NO_THINKING_BUDGET = "vendors have levels of effort instead (--effort)"
NO_PLUGINS = "plugins are loaded by the real claude only"
IGNORED_FLAGS = {
    "--agent": "the session cannot run as a subagent",
    "--betas": "beta features belong to Anthropic's API",
    "--plugin-dir": NO_PLUGINS,
    "--plugin-dir-no-mcp": NO_PLUGINS,
    "--plugin-url": NO_PLUGINS,
    "--max-thinking-tokens": NO_THINKING_BUDGET,
    "--thinking": NO_THINKING_BUDGET,
    "--task-budget": "vendors have no token budget for a task",
    "--plan-mode-instructions": "vendors have their own instructions for the plan mode",
}
# The members of an `initialize` request that have no effect, each with the reason.
IGNORED_INITIALIZE_FIELDS = {
    "agentProgressSummaries": "vendors do not summarize the progress of subagents",
    "planModeInstructions": IGNORED_FLAGS["--plan-mode-instructions"],
    "plugins": NO_PLUGINS,
    "promptSuggestions": "vendors do not suggest prompts",
    "skills": "all skills stay available",
    "toolAliases": "vendors name their tools themselves",
}
INITIALIZE_SOURCE = "initialize"
FLAGS_SOURCE = "the command line"
# The request of `set_max_thinking_tokens()` and `setMaxThinkingTokens()`.
IGNORED_THINKING_REQUEST = UnsupportedRule(
    "set_max_thinking_tokens", "a control request", NO_THINKING_BUDGET
)


def list_ignored_flags(flags: Iterable[tuple[str, Any]]) -> tuple[UnsupportedRule, ...]:
    """Return the flags that have no effect. `flags` are names with their values."""
    names = dict.fromkeys(name for name, _ in flags if name in IGNORED_FLAGS)
    return tuple(UnsupportedRule(name, FLAGS_SOURCE, IGNORED_FLAGS[name]) for name in names)


def list_ignored_initialize_fields(request: Mapping[str, Any]) -> tuple[UnsupportedRule, ...]:
    """Return the members of an `initialize` request that have no effect. Empty members are left
    out, because they change nothing in the real claude either.
    """
    return tuple(
        UnsupportedRule(name, INITIALIZE_SOURCE, reason)
        for name, reason in IGNORED_INITIALIZE_FIELDS.items()
        if request.get(name)
    )


def format_ignored_option(option: UnsupportedRule) -> str:
    """Return the warning for stderr."""
    return f"{option.what} has no effect: {option.reason}\n"

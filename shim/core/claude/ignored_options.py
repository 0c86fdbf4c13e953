"""Names the options of a frontend that have no effect with any vendor except the real claude.

Such an option is reported on stderr and in `init.shim.not_honoured`. An option is not listed if a
frontend cannot notice that it has no effect.
"""

from collections.abc import Iterable, Mapping

from shim.core.claude.argv.flags import MAX_FLAG_CHARS
from shim.core.policy.policy import UnsupportedRule
from shim.core.reading.typed import Any
from shim.core.reading.values import escape_control_chars

NO_THINKING_BUDGET = "vendors have levels of effort instead (--effort)"
NO_PLUGINS = "plugins are loaded by the real claude only"
NO_SKILL_TOOL = "the model does not know them; a message that begins with /NAME runs one"
NO_PROMPT_TOOL = "only `stdio` is supported, so nobody is asked"
IGNORED_FLAGS = {
    "--agent": "the session cannot run as a subagent",
    "--betas": "beta features belong to Anthropic's API",
    "--plugin-dir": NO_PLUGINS,
    "--plugin-dir-no-mcp": NO_PLUGINS,
    "--plugin-url": NO_PLUGINS,
    "--debug-file": "the shim writes no debug log",
    "--include-hook-events": "hooks run without hook_started and hook_response lines",
    "--max-thinking-tokens": NO_THINKING_BUDGET,
    "--thinking": NO_THINKING_BUDGET,
    "--project-config-root": "the configuration of the working directory applies",
    "--task-budget": "vendors have no token budget for a task",
    "--plan-mode-instructions": "vendors have their own instructions for the plan mode",
}
# The members of an `initialize` request that have no effect, each with the reason.
IGNORED_INITIALIZE_FIELDS = {
    "agentProgressSummaries": "vendors do not summarize the progress of subagents",
    "planModeInstructions": IGNORED_FLAGS["--plan-mode-instructions"],
    "plugins": NO_PLUGINS,
    "promptSuggestions": "vendors do not suggest prompts",
    "skills": "the model still sees all skills that the vendor loads",
    "toolAliases": "vendors name their tools themselves",
}
INITIALIZE_SOURCE = "initialize"
SKILLS_FIELD = "skills"  # the list of the skills that the model sees
SKILL_TOOL = "Skill"
STDIO_PROMPTS = "stdio"  # the frontend is asked for permissions by control requests
MAX_UNKNOWN_FLAGS = 20  # a mistyped command line has a few; all are named on stderr
FLAGS_SOURCE = "the command line"
CONTROL_SOURCE = "a control request"
# The request of `set_max_thinking_tokens()` and `setMaxThinkingTokens()`.
IGNORED_THINKING_REQUEST = UnsupportedRule(
    "set_max_thinking_tokens", CONTROL_SOURCE, NO_THINKING_BUDGET
)


def create_ignored_effort(vendor_name: str) -> UnsupportedRule:
    """Return the entry for an effort level in a request of `applyFlagSettings()`."""
    reason = f"{vendor_name} has no effort setting"
    return UnsupportedRule("effortLevel", CONTROL_SOURCE, reason)


def list_ignored_flags(flags: Iterable[tuple[str, Any]]) -> tuple[UnsupportedRule, ...]:
    """Return the flags that have no effect. `flags` are names with their values."""
    names = dict.fromkeys(name for name, _ in flags if name in IGNORED_FLAGS)
    return tuple(UnsupportedRule(name, FLAGS_SOURCE, IGNORED_FLAGS[name]) for name in names)


def list_ignored_tools(
    allowed_tools: Iterable[str], prompt_tool: str | None
) -> tuple[UnsupportedRule, ...]:
    """Return what has no effect of the tools that the command line names: Claude's tool for skills,
    and a tool for permission prompts other than the frontend itself.
    """
    options = []
    if any(rule == SKILL_TOOL or rule.startswith(f"{SKILL_TOOL}(") for rule in allowed_tools):
        options.append(UnsupportedRule("skills", FLAGS_SOURCE, NO_SKILL_TOOL))
    if prompt_tool not in (None, STDIO_PROMPTS):
        options.append(UnsupportedRule("--permission-prompt-tool", FLAGS_SOURCE, NO_PROMPT_TOOL))
    return tuple(options)


def list_unknown_flags(arguments: Iterable[str]) -> tuple[UnsupportedRule, ...]:
    """Return the unknown flags of a command line. The real claude refuses them, but a newer SDK may
    pass flags that the shim does not know yet.
    """
    names = dict.fromkeys(
        escape_control_chars(argument.partition("=")[0][:MAX_FLAG_CHARS]) for argument in arguments
    )
    return tuple(
        UnsupportedRule(name, FLAGS_SOURCE, "the option is unknown")
        for name in list(names)[:MAX_UNKNOWN_FLAGS]
    )


def list_ignored_initialize_fields(request: Mapping[str, Any]) -> tuple[UnsupportedRule, ...]:
    """Return the members of an `initialize` request that have no effect. Empty members are left
    out, because they change nothing in the real claude either. Only an empty list of skills does:
    it hides all of them.
    """
    return tuple(
        UnsupportedRule(name, INITIALIZE_SOURCE, reason)
        for name, reason in IGNORED_INITIALIZE_FIELDS.items()
        if request.get(name) or (name == SKILLS_FIELD and request.get(name) == [])
    )


def format_ignored_option(option: UnsupportedRule) -> str:
    """Return the warning for stderr."""
    return f"{option.what} has no effect: {option.reason}\n"

"""Decides whether a tool call may run, like the real claude under the same flags and settings.

Deny rules are checked first, followed by ask rules, allow rules and the permission mode. A deny or
ask rule applies to a call's effects, no matter which tool causes them.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from shim.core.policy.bash import ShellCommand, ShellRedirect
from shim.core.policy.bash_commands import (
    is_read_only,
    is_safe_edit_command,
    list_path_operands,
    strip_command_wrappers,
)
from shim.core.policy.call_effects import (
    BASH_TOOL,
    CHANGE_TOOLS,
    READ_TOOLS,
    SHELL_TOOLS,
    FileAccess,
    ToolCallEffects,
    analyze_tool_call,
)
from shim.core.policy.command_table import get_command_row
from shim.core.policy.paths import allows_path, can_match_inside_folder, matches_restricted_path
from shim.core.policy.policy import (
    BYPASS_MODE,
    EDIT_MODE,
    MCP_PREFIX,
    PLAN_MODE,
    STRUCTURED_OUTPUT_TOOL,
    TOOL_ALIASES,
    UNNAMED_TOOL,
    PermissionRule,
    Policy,
    PolicyDecision,
    split_into_word_set,
)
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shim.core.policy.policy import DecisionOutcome

CONVERSATION_TOOLS = split_into_word_set("""
    Task TodoWrite TaskOutput BashOutput KillShell KillBash TaskStop
    EnterPlanMode ToolSearch ListMcpResourcesTool Skill
""")
DOMAIN_PREFIX = "domain:"
HOOK_SOURCE = "a hook"
OUTPUT_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr")


class PolicyEvaluator:
    """Decides about tool calls by the permission rules of a policy. For a faster start, this module
    is loaded after the child process has started.

    can_ask            the vendor asks before it runs a call, so ask rules have an effect
    asks_for_all       no permission mode allows a call without a prompt; only a rule can
    is_sent_to_vendor  returns whether the vendor received a rule that covers every call of a tool;
                       the vendor itself refuses such calls
    announces_first    the vendor reports a call before the shim's hook has decided about it
    prompted_tools     the tools whose calls run only after a permission response; "mcp__server"
                       means the tools of one MCP server, and "mcp__" those of all servers
    """

    def __init__(
        self,
        policy: Policy,
        *,
        can_ask: bool = True,
        asks_for_all: bool = False,
        is_sent_to_vendor: "Callable[[PermissionRule], bool]" = lambda rule: False,
        announces_first: bool = False,
        prompted_tools: frozenset[str] = frozenset(),
    ) -> None:
        self.policy = policy
        self._prompted_tools = prompted_tools
        self._asks_for_all = asks_for_all
        self._can_ask = can_ask
        self._is_sent_to_vendor = is_sent_to_vendor
        self._announces_first = announces_first
        self._workspace = policy.workspace

    def evaluate_tool_call(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        mode: str,
        *,
        hook_allows_call: bool = False,
        hook_requires_prompt: bool = False,
    ) -> PolicyDecision:
        """Return the decision about a tool call that has not run yet. In the permission mode
        dontAsk, a call that needs a prompt is denied.

        `hook_allows_call` counts as an allow rule for the tool. `hook_requires_prompt` takes
        precedence over the allow rules.
        """
        decision = self.find_restricting_decision(tool, tool_input)
        if decision is None and hook_requires_prompt:
            decision = PolicyDecision("ask", HOOK_SOURCE)
        if decision is None:
            decision = self._evaluate_allow_rules(tool, tool_input, mode, hook_allows_call)
        if decision.outcome == "ask" and mode == "dontAsk":
            return decision._replace(outcome="deny")
        return decision

    def _evaluate_allow_rules(
        self, tool: str, tool_input: Mapping[str, Any], mode: str, allowed_by_hook: bool
    ) -> PolicyDecision:
        """Return the decision that the allow rules and the permission mode make about a tool call."""
        effects = analyze_tool_call(tool, tool_input, self._workspace)
        rules = self.policy.allow
        if allowed_by_hook:
            rules += (PermissionRule(TOOL_ALIASES.get(tool, tool), source=HOOK_SOURCE),)
        allow_rule = self._find_allow_rule(tool, tool_input, effects, rules)
        if allow_rule is not None and (mode != PLAN_MODE or self._is_read_only_call(tool, effects)):
            return PolicyDecision("allow", str(allow_rule))
        if (
            mode != PLAN_MODE
            and self._is_line_allowed(effects, mode, self.policy.allow)
            and not self._is_line_allowed(effects, mode)
        ):
            return PolicyDecision("allow", "--allowedTools")
        outcome = "ask" if self._asks_for_all else self._decide_by_mode(tool, effects, mode)
        return PolicyDecision(outcome, mode, is_by_rule=False)

    def find_restricting_decision(
        self, tool: str, tool_input: Mapping[str, Any]
    ) -> PolicyDecision | None:
        """Return the decision that the deny and ask rules make about a tool call. Return None if no
        such rule matches.

        No permission mode overrides these rules.
        """
        tool = TOOL_ALIASES.get(tool, tool)
        if (
            self.policy.only_tools is not None
            and tool not in self.policy.only_tools
            and tool != STRUCTURED_OUTPUT_TOOL
            and not tool.startswith(MCP_PREFIX)
        ):
            return PolicyDecision("deny", "--tools")
        effects: ToolCallEffects | None = None
        restrictions: tuple[tuple[DecisionOutcome, tuple[PermissionRule, ...]], ...] = (
            ("deny", self.policy.deny),
            ("ask", self.policy.ask),
        )
        for outcome, rules in restrictions:
            for rule in rules:
                if rule.content is None:
                    is_match = _is_about_tool(rule, tool)
                else:
                    if effects is None:
                        effects = analyze_tool_call(tool, tool_input, self._workspace)
                    is_match = self._matches_restriction(rule, tool, tool_input, effects)
                if is_match:
                    return PolicyDecision(outcome, str(rule))
        return None

    def is_hidden_tool(self, tool: str) -> bool:
        """Return whether a tool's calls and results are left out of the output stream."""
        return tool in self.policy.hidden_tools

    def is_rule_violation(self, tool: str, tool_input: Mapping[str, Any]) -> bool:
        """Return whether a tool call violates a rule and no prompt can allow it. Such a call stops
        the turn.
        """
        restriction = self.find_restricting_decision(tool, tool_input)
        if restriction is None:
            return False
        if restriction.outcome == "deny":
            return True
        return not self._can_ask

    def is_denial_enforced_by_vendor(self, tool: str) -> bool:
        """Return whether the vendor itself keeps a denied tool call from running."""
        if (
            self._announces_first
            or tool in self._prompted_tools
            or (tool.startswith(MCP_PREFIX) and self._is_tool_of_prompted_server(tool))
        ):
            return True
        tool = TOOL_ALIASES.get(tool, tool)
        allowed_tools = self.policy.only_tools
        if (
            allowed_tools is not None
            and tool not in allowed_tools
            and self._is_sent_to_vendor(PermissionRule(tool))
        ):
            return True
        return any(
            self._is_sent_to_vendor(rule)
            for rule in self.policy.restricting_rules
            if rule.content is None and _is_about_tool(rule, tool)
        )

    def _is_tool_of_prompted_server(self, tool: str) -> bool:
        """Return whether the calls of an MCP tool run only after a permission response, because the
        calls of all tools of its server do.
        """
        if MCP_PREFIX in self._prompted_tools:
            return True
        return any(
            PermissionRule(name).matches_tool(tool)
            for name in self._prompted_tools
            if name.startswith(MCP_PREFIX)
        )

    def _matches_restriction(
        self,
        rule: PermissionRule,
        tool: str,
        tool_input: Mapping[str, Any],
        effects: ToolCallEffects,
    ) -> bool:
        """Return whether a deny or ask rule that names arguments matches a tool call or may match
        it.
        """
        is_about_tool = _is_about_tool(rule, tool, is_restriction=tool.startswith(MCP_PREFIX))
        is_about_files = rule.tool in ("Edit", "Read")
        if not (is_about_tool or is_about_files):
            return False
        if effects.line is not None and not effects.line.is_complete:
            return True
        if is_about_files or tool in CHANGE_TOOLS or tool in READ_TOOLS:
            accesses = effects.file_accesses
            if rule.tool == "Edit":
                accesses = tuple(access for access in accesses if access.is_change)
            return any(self._matches_access(rule, access) for access in accesses)
        if effects.line is not None:
            return _matches_shell_line(rule, tool_input, effects)
        return _matches_argument(rule, tool_input)

    def _matches_access(self, rule: PermissionRule, access: FileAccess) -> bool:
        if access.path is None or matches_restricted_path(rule, access.path, self._workspace):
            return True
        if not access.includes_content:
            return False
        return can_match_inside_folder(rule, access.path, self._workspace)

    def _find_allow_rule(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        effects: ToolCallEffects,
        rules: tuple[PermissionRule, ...],
    ) -> PermissionRule | None:
        """Return the first rule that certainly allows a tool call, or None.

        As in the real claude, no rule allows changes to files that can make programs run. No rule
        applies to a call without a tool name, because such a rule would allow any tool. Only a hook
        can allow such a call, because the hook has seen the call itself.
        """
        tool = TOOL_ALIASES.get(tool, tool)
        if tool in CHANGE_TOOLS and any(
            access.path is None or self._workspace.is_protected_path(access.path)
            for access in effects.file_accesses
        ):
            return None
        if tool == UNNAMED_TOOL:
            rules = tuple(rule for rule in rules if rule.source == HOOK_SOURCE)
        return next(
            (rule for rule in rules if self._matches_allow_rule(rule, tool, tool_input, effects)),
            None,
        )

    def _matches_allow_rule(
        self,
        rule: PermissionRule,
        tool: str,
        tool_input: Mapping[str, Any],
        effects: ToolCallEffects,
    ) -> bool:
        """Return whether an allow rule certainly matches a tool call."""
        if rule.content is None:
            return rule.matches_tool(tool)
        if (rule.tool == "Edit" and tool in CHANGE_TOOLS) or (
            rule.tool == "Read" and tool in READ_TOOLS
        ):
            return all(
                access.path is not None and allows_path(rule, access.path, self._workspace)
                for access in effects.file_accesses
            )
        if not rule.matches_tool(tool):
            return False
        if tool != BASH_TOOL:
            return _allows_url(rule, tool_input)
        if rule.content != tool_input.get("command"):
            return False
        return not tool_input.get("directory")

    def _is_read_only_call(self, tool: str, effects: ToolCallEffects) -> bool:
        """Return whether a tool call changes nothing, so that the permission mode plan may run it."""
        if effects.line is not None:
            return self._is_line_allowed(effects, PLAN_MODE)
        if tool in CHANGE_TOOLS:
            return False
        return not tool.startswith(MCP_PREFIX)

    def _decide_by_mode(self, tool: str, effects: ToolCallEffects, mode: str) -> "DecisionOutcome":
        tool = TOOL_ALIASES.get(tool, tool)
        if mode == BYPASS_MODE or tool in CONVERSATION_TOOLS:
            return "allow"
        if effects.line is not None:
            if self._is_line_allowed(effects, mode):
                return "allow"
            if mode == PLAN_MODE:
                return "deny"
            return "ask"
        uses_files = tool in READ_TOOLS
        if tool in CHANGE_TOOLS and mode == EDIT_MODE:
            uses_files = True
        if uses_files and all(map(self._needs_no_prompt, effects.file_accesses)):
            return "allow"
        return "ask"

    def _needs_no_prompt(self, access: FileAccess) -> bool:
        """Return whether access to a file needs no prompt. The file must be inside the workspace,
        and must not be protected if it is changed.
        """
        if access.path is None:
            return False
        if not self._workspace.is_path_inside(access.path):
            return False
        if not access.is_change:
            return True
        return not self._workspace.is_protected_path(access.path)

    def _is_line_allowed(
        self, effects: ToolCallEffects, mode: str, allow_rules: tuple[PermissionRule, ...] = ()
    ) -> bool:
        """Return whether a line of shell code can run without a prompt."""
        line = effects.line
        if line is None or not line.is_plain:
            return False
        words = [word for command in line.commands for word in command.words]
        if len(line.commands) > 1 and any(get_command_row(word).changes_paths for word in words):
            return False
        accepts_edits = mode == EDIT_MODE
        return all(
            self._is_redirect_allowed(part, accepts_edits)
            if isinstance(part, ShellRedirect)
            else self._is_command_allowed(part, accepts_edits, allow_rules)
            for part in line.parts
        )

    def _is_command_allowed(
        self,
        shell_command: ShellCommand,
        accepts_edits: bool,
        allow_rules: tuple[PermissionRule, ...],
    ) -> bool:
        command = strip_command_wrappers(shell_command)
        if command is None:
            return False
        if any(
            _matches_text(rule.content, command.text)
            for rule in allow_rules
            if rule.tool == BASH_TOOL and rule.content
        ):
            return True
        reads_only = is_read_only(command)
        if not (reads_only or (accepts_edits and is_safe_edit_command(command))):
            return False
        if command.row.prints_arguments:
            return True
        return all(
            operand is not None
            and self._needs_no_prompt(
                FileAccess(not reads_only, self._workspace.resolve_file_path(operand))
            )
            for operand in list_path_operands(command)
        )

    def _is_redirect_allowed(self, redirect: ShellRedirect, accepts_edits: bool) -> bool:
        if redirect.path in OUTPUT_DEVICES:
            return True
        if redirect.path is None:
            return False
        path = self._workspace.resolve_file_path(redirect.path)
        if path is None or not self._needs_no_prompt(FileAccess(redirect.is_write, path)):
            return False
        if not redirect.is_write or accepts_edits:
            return True
        return any(
            allows_path(rule, path, self._workspace)
            for rule in self.policy.allow
            if rule.tool == "Edit" and rule.content is not None
        )


def _is_about_tool(rule: PermissionRule, tool: str, *, is_restriction: bool = True) -> bool:
    """Return whether a deny or ask rule applies to a tool. A rule for Bash applies to every shell
    tool.
    """
    if rule.tool == BASH_TOOL and tool in SHELL_TOOLS:
        return True
    return rule.matches_tool(tool, is_restriction=is_restriction)


def _matches_shell_line(
    rule: PermissionRule, tool_input: Mapping[str, Any], effects: ToolCallEffects
) -> bool:
    content = rule.content_text
    if _matches_text(content, str(tool_input.get("command"))):
        return True
    return any(_matches_command(content, command) for command in effects.commands)


def _matches_command(content: str, command: ShellCommand) -> bool:
    """Return whether a deny or ask rule matches a shell command.

    The rule is compared with the command's text, and with the same text after the folders in the
    program's path are removed. A word that only the shell knows may match any text.
    """
    words = [command.name if any(command.words[:1]) else None, *command.words[1:]]
    literal_words = words[: words.index(None)] if None in words else words
    text = " ".join(word for word in literal_words if word is not None)
    if _matches_text(content, command.text) or _matches_text(content, text):
        return True
    if len(literal_words) == len(words):
        return False
    literal_prefix = content.removesuffix(":*").partition("*")[0]
    if literal_prefix.startswith(text + " "):
        return True
    if (text + " ").startswith(literal_prefix):
        return True
    return not text


def _matches_text(content: str, text: str) -> bool:
    """Return whether the text in a rule's parentheses matches a command: exactly, as a prefix (`git
    push:*`), or as a pattern with stars.
    """
    if content.endswith(":*"):
        if text == content[:-2]:
            return True
        return text.startswith(content[:-2] + " ")
    if content.endswith(" *") and "*" not in content[:-2]:
        if text == content[:-2]:
            return True
        return text.startswith(content[:-1])
    if "*" in content:
        return fnmatchcase(text, content.replace("[", "[[]").replace("?", "[?]"))
    return text == content


def _matches_argument(rule: PermissionRule, tool_input: Mapping[str, Any]) -> bool:
    """Return whether a deny or ask rule matches a tool call's URL or another argument, or may match
    it.
    """
    content = rule.content_text
    if content.startswith(DOMAIN_PREFIX):
        host = parse_url_host(tool_input.get("url"))
        domain = content[len(DOMAIN_PREFIX) :].lower()
        if host is None:
            return True
        if host == domain:
            return True
        if not domain.startswith("*."):
            return False
        return host.endswith(domain[1:])
    texts = [value for value in tool_input.values() if isinstance(value, str)]
    if not texts:
        return True
    return any(_matches_text(content, value) for value in texts)


def _allows_url(rule: PermissionRule, tool_input: Mapping[str, Any]) -> bool:
    """Return whether an allow rule matches a tool call's URL."""
    content = rule.content_text
    if not content.startswith(DOMAIN_PREFIX):
        return False
    return parse_url_host(tool_input.get("url")) == content[len(DOMAIN_PREFIX) :].lower()


def parse_url_host(url: object) -> str | None:
    """Return the host of a URL, or None if two programs might parse the URL differently."""
    import re

    lower_url = ""
    if isinstance(url, str):
        lower_url = url.lower()
    match = re.match(r"https?://([a-z0-9.-]+)(:[0-9]+)?([/?#]|$)", lower_url, re.ASCII)
    if match:
        return match[1].rstrip(".")
    return None

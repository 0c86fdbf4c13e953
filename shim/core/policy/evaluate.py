"""The verdict on a call: what the real claude would do with it under the same flags and settings.

Deny goes before ask, ask before allow, allow before the mode. A rule binds what a call does,
whatever its tool is.
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
from shim.core.policy.paths import allows_path, can_match_inside_folder, matches_restricted_path
from shim.core.policy.policy import (
    BYPASS_MODE,
    MCP_PREFIX,
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
OUTPUT_COMMANDS = ("echo", "printf")  # their words are no paths
DOMAIN_PREFIX = "domain:"
HOOK_SOURCE = "a hook"
# later paths of a line may mean something else behind them
_PATH_CHANGING_COMMANDS = frozenset(("cd", "pushd", "popd", "mv", "cp"))
OUTPUT_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr")


class PolicyEvaluator:
    """Judges calls by the rules of a policy. It is loaded behind the child's start, and only where
    it is needed.

    can_ask            the vendor asks about calls, so that a rule which asks is heard
    asks_for_all       no mode spares a question, only a rule does
    is_sent_to_vendor  whether the vendor was told of a rule about a whole tool, so that it answers
                       such a call itself
    announces_first    the vendor says a call before our hook has judged it
    prompted_tools     tools whose calls wait for an answer before they run; "mcp__" stands for
                       those of all servers
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
        """What becomes of a call that is asked about before it runs. Nobody is asked in the mode
        dontAsk.

        A hook that has `hook_allows_call` a call counts as a rule about its tool; one that
        `hook_requires_prompt` goes before rules that allow.
        """
        decision = self.find_restricting_decision(tool, tool_input)
        if decision is None:
            decision = (
                PolicyDecision("ask", HOOK_SOURCE)
                if hook_requires_prompt
                else self._evaluate_allow_rules(tool, tool_input, mode, hook_allows_call)
            )
        return (
            decision._replace(outcome="deny")
            if decision.outcome == "ask" and mode == "dontAsk"
            else decision
        )

    def _evaluate_allow_rules(
        self, tool: str, tool_input: Mapping[str, Any], mode: str, allowed_by_hook: bool
    ) -> PolicyDecision:
        """The verdict of the rules that allow, and of the mode."""
        effects = analyze_tool_call(tool, tool_input, self._workspace)
        rules = (
            (*self.policy.allow, PermissionRule(TOOL_ALIASES.get(tool, tool), source=HOOK_SOURCE))
            if allowed_by_hook
            else self.policy.allow
        )
        allow_rule = self._find_allow_rule(tool, tool_input, effects, rules)
        if allow_rule is not None and (mode != "plan" or self._is_read_only_call(tool, effects)):
            return PolicyDecision("allow", str(allow_rule))
        accepts_edits = mode == "acceptEdits"
        is_allowed_by_rules = mode != "plan" and self._is_line_allowed(
            effects, allows_changes=accepts_edits, uses_rules=True
        )
        if is_allowed_by_rules and not self._is_line_allowed(
            effects, allows_changes=accepts_edits, uses_rules=False
        ):
            return PolicyDecision("allow", "--allowedTools")
        if self._asks_for_all:
            return PolicyDecision("ask", mode, is_by_rule=False)
        return PolicyDecision(self._decide_by_mode(tool, effects, mode), mode, is_by_rule=False)

    def find_restricting_decision(
        self, tool: str, tool_input: Mapping[str, Any]
    ) -> PolicyDecision | None:
        """The verdict of the rules that narrow; None where no such rule is about the call. No mode
        overrules them.
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
                    if rule.matches_tool(tool, is_restriction=True) or (
                        rule.tool == BASH_TOOL and tool in SHELL_TOOLS
                    ):
                        return PolicyDecision(outcome, str(rule))
                    continue
                effects = effects or analyze_tool_call(tool, tool_input, self._workspace)
                if self._matches_restriction(rule, tool, tool_input, effects):
                    return PolicyDecision(outcome, str(rule))
        return None

    def is_hidden_tool(self, tool: str) -> bool:
        """Whether a tool's calls and results are left out of the stream."""
        return tool in self.policy.hidden_tools

    def is_rule_violation(self, tool: str, tool_input: Mapping[str, Any]) -> bool:
        """Whether a call breaks a rule, and nobody was asked or will be: the turn is stopped when
        it is seen.
        """
        restriction = self.find_restricting_decision(tool, tool_input)
        return restriction is not None and (restriction.outcome == "deny" or not self._can_ask)

    def is_denial_enforced_by_vendor(self, tool: str) -> bool:
        """Whether the result of a denied call is waited for: the vendor answers it, and does not
        run it.
        """
        if (
            self._announces_first
            or tool in self._prompted_tools
            or (MCP_PREFIX in self._prompted_tools and tool.startswith(MCP_PREFIX))
        ):
            return True
        tool, allowed_tools = TOOL_ALIASES.get(tool, tool), self.policy.only_tools
        if (
            allowed_tools is not None
            and tool not in allowed_tools
            and self._is_sent_to_vendor(PermissionRule(tool))
        ):
            return True
        return any(
            rule.content is None
            and (
                rule.matches_tool(tool, is_restriction=True)
                or (rule.tool == BASH_TOOL and tool in SHELL_TOOLS)
            )
            and self._is_sent_to_vendor(rule)
            for rule in self.policy.restricting_rules
        )

    def _matches_restriction(
        self,
        rule: PermissionRule,
        tool: str,
        tool_input: Mapping[str, Any],
        effects: ToolCallEffects,
    ) -> bool:
        """Whether a rule that narrows is about a call. What cannot be told is taken for it."""
        if rule.tool == "Edit" and any(
            access.is_change and self._matches_access(rule, access)
            for access in effects.file_accesses
        ):
            return True
        if rule.tool == "Read" and any(
            self._matches_access(rule, access) for access in effects.file_accesses
        ):
            return True
        if not (
            rule.matches_tool(tool, is_restriction=tool.startswith(MCP_PREFIX))
            or (rule.tool == BASH_TOOL and tool in SHELL_TOOLS)
        ):
            return (
                rule.tool in ("Edit", "Read")
                and effects.line is not None
                and not effects.line.is_complete
            )
        if tool in SHELL_TOOLS:
            return (
                effects.line is None
                or not effects.line.is_complete
                or _matches_shell_line(rule, tool_input, effects)
            )
        if tool in CHANGE_TOOLS or tool in READ_TOOLS:
            return any(self._matches_access(rule, access) for access in effects.file_accesses)
        return _matches_argument(rule, tool_input)

    def _matches_access(self, rule: PermissionRule, access: FileAccess) -> bool:
        if access.path is None or matches_restricted_path(rule, access.path, self._workspace):
            return True
        return access.includes_content and can_match_inside_folder(
            rule, access.path, self._workspace
        )

    def _find_allow_rule(
        self,
        tool: str,
        tool_input: Mapping[str, Any],
        effects: ToolCallEffects,
        rules: tuple[PermissionRule, ...],
    ) -> PermissionRule | None:
        """The rule that allows a call beforehand. A call that a rule only might mean is not
        allowed.

        No rule allows a change of what makes programs run, as in the real one. A rule about a tool
        without a name would allow every such tool; a hook has seen the call that it allows.
        """
        tool = TOOL_ALIASES.get(tool, tool)
        if tool in CHANGE_TOOLS and any(
            access.path is None or self._workspace.is_protected_path(access.path)
            for access in effects.file_accesses
        ):
            return None
        if tool == UNNAMED_TOOL:
            rules = tuple(rule for rule in rules if rule.source == HOOK_SOURCE)
        for rule in rules:
            if rule.content is None:
                is_allowed = rule.matches_tool(tool)
            elif tool == BASH_TOOL:
                is_same_command = rule.content == tool_input.get("command") and not tool_input.get(
                    "directory"
                )
                is_allowed = rule.matches_tool(tool) and is_same_command
            elif (rule.tool == "Edit" and tool in CHANGE_TOOLS) or (
                rule.tool == "Read" and tool in READ_TOOLS
            ):
                is_allowed = all(
                    access.path is not None and allows_path(rule, access.path, self._workspace)
                    for access in effects.file_accesses
                )
            else:
                is_allowed = rule.matches_tool(tool) and _allows_url(rule, tool_input)
            if is_allowed:
                return rule
        return None

    def _is_read_only_call(self, tool: str, effects: ToolCallEffects) -> bool:
        """Whether a call only looks at things, so that a plan may have it."""
        if effects.line is not None:
            return self._is_line_allowed(effects, allows_changes=False, uses_rules=False)
        return tool not in CHANGE_TOOLS and not tool.startswith(MCP_PREFIX)

    def _decide_by_mode(self, tool: str, effects: ToolCallEffects, mode: str) -> "DecisionOutcome":
        tool = TOOL_ALIASES.get(tool, tool)
        if mode == BYPASS_MODE or tool in CONVERSATION_TOOLS:
            return "allow"
        accepts_edits = mode == "acceptEdits"
        if effects.line is not None:
            is_harmless = self._is_line_allowed(
                effects, allows_changes=accepts_edits, uses_rules=False
            )
            return "allow" if is_harmless else "deny" if mode == "plan" else "ask"
        if tool in READ_TOOLS or (tool in CHANGE_TOOLS and accepts_edits):
            return (
                "allow"
                if all(self._needs_no_prompt(access) for access in effects.file_accesses)
                else "ask"
            )
        return "ask"

    def _needs_no_prompt(self, access: FileAccess) -> bool:
        """Whether a file is one that needs no question: it is inside, and a change of it gives
        nobody more.
        """
        return (
            access.path is not None
            and self._workspace.is_path_inside(access.path)
            and not (access.is_change and self._workspace.is_protected_path(access.path))
        )

    def _is_line_allowed(
        self, effects: ToolCallEffects, *, allows_changes: bool, uses_rules: bool
    ) -> bool:
        """Whether all that a shell's line does needs no question."""
        line = effects.line
        if line is None or not line.is_plain:
            return False
        if len(line.commands) > 1 and any(
            not _PATH_CHANGING_COMMANDS.isdisjoint(command.words) for command in line.commands
        ):
            return False  # what follows means other paths
        return all(
            self._is_redirect_allowed(part, allows_changes)
            if isinstance(part, ShellRedirect)
            else self._is_command_allowed(part, allows_changes, uses_rules)
            for part in line.parts
        )

    def _is_command_allowed(
        self, shell_command: ShellCommand, allows_changes: bool, uses_rules: bool
    ) -> bool:
        command = strip_command_wrappers(shell_command)
        if command is None:
            return False
        if uses_rules and any(
            rule.tool == BASH_TOOL and rule.content and _matches_text(rule.content, command.text)
            for rule in self.policy.allow
        ):
            return True
        reads_only = is_read_only(command)
        if not (reads_only or (allows_changes and is_safe_edit_command(command))):
            return False
        return command.words[0] in OUTPUT_COMMANDS or all(
            operand is not None
            and self._needs_no_prompt(
                FileAccess(not reads_only, self._workspace.resolve_file_path(operand))
            )
            for operand in list_path_operands(command)
        )

    def _is_redirect_allowed(self, redirect: ShellRedirect, allows_changes: bool) -> bool:
        if redirect.path is None:
            return False
        if redirect.path in OUTPUT_DEVICES:
            return True
        path = self._workspace.resolve_file_path(redirect.path)
        if path is None:
            return False
        if not redirect.is_write or allows_changes:
            return self._needs_no_prompt(FileAccess(redirect.is_write, path))
        return self._needs_no_prompt(FileAccess(True, path)) and any(
            rule.tool == "Edit"
            and rule.content is not None
            and allows_path(rule, path, self._workspace)
            for rule in self.policy.allow
        )


def _matches_shell_line(
    rule: PermissionRule, tool_input: Mapping[str, Any], effects: ToolCallEffects
) -> bool:
    content = rule.content or ""
    return _matches_text(content, str(tool_input.get("command"))) or any(
        _matches_command(content, command) for command in effects.commands
    )


def _matches_command(content: str, command: ShellCommand) -> bool:
    """Whether a rule that narrows is about a command: as it stands, by its bare name, or by words
    nobody can tell.
    """
    words = [
        command.words[0].rpartition("/")[2] if command.words and command.words[0] else None,
        *command.words[1:],
    ]
    literal_words = words[: words.index(None)] if None in words else words
    text = " ".join(word for word in literal_words if word is not None)
    if _matches_text(content, command.text) or _matches_text(content, text):
        return True
    if len(literal_words) == len(words):
        return False
    literal_prefix = content.removesuffix(":*").partition("*")[0]
    return (
        literal_prefix.startswith(text + " ") or (text + " ").startswith(literal_prefix) or not text
    )


def _matches_text(content: str, text: str) -> bool:
    """Whether a rule's words are about a command: all of it, its beginning (`git push:*`), or a
    pattern with stars.
    """
    if content.endswith(":*"):
        return text == content[:-2] or text.startswith(content[:-2] + " ")
    if content.endswith(" *") and "*" not in content[:-2]:
        return text == content[:-2] or text.startswith(content[:-1])
    if "*" in content:
        return fnmatchcase(text, content.replace("[", "[[]").replace("?", "[?]"))
    return text == content


def _matches_argument(rule: PermissionRule, tool_input: Mapping[str, Any]) -> bool:
    """Whether a rule that narrows is about a call by its address or another argument. What cannot
    be told is.
    """
    content = rule.content or ""
    if content.startswith(DOMAIN_PREFIX):
        host = parse_url_host(tool_input.get("url"))
        domain = content[len(DOMAIN_PREFIX) :].lower()
        return (
            host is None
            or host == domain
            or (domain.startswith("*.") and host.endswith(domain[1:]))
        )
    texts = [value for value in tool_input.values() if isinstance(value, str)]
    return not texts or any(_matches_text(content, value) for value in texts)


def _allows_url(rule: PermissionRule, tool_input: Mapping[str, Any]) -> bool:
    """Whether a rule allows a call by its address."""
    content = rule.content or ""
    return (
        content.startswith(DOMAIN_PREFIX)
        and parse_url_host(tool_input.get("url")) == content[len(DOMAIN_PREFIX) :].lower()
    )


def parse_url_host(url: object) -> str | None:
    """The host of an address; None for an address that two programs may read differently."""
    import re

    lower_url = url.lower() if isinstance(url, str) else ""
    match = re.match(r"https?://([a-z0-9.-]+)(:[0-9]+)?([/?#]|$)", lower_url, re.ASCII)
    return match[1].rstrip(".") if match else None

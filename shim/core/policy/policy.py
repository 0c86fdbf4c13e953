"""Permission rules in Claude's syntax, and the policy that a conversation's rules form.

A rule names a tool, and optionally the arguments of its calls: `Bash(git push:*)`,
`Edit(./secret/**)`, `mcp__server__*`, `WebFetch`. The same policy, with Claude's meaning, is
applied to every vendor.
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from shim.core.reading.typed import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Literal

    from shim.core.policy.settings_hooks import SettingsHook

    DecisionOutcome = Literal["allow", "ask", "deny"]


SUBAGENT_TOOL = "Task"
# The shim's own MCP server, whose tool starts the subagents that a frontend defines. The tool counts
# as Claude's tool for subagents.
AGENT_SERVER = "claudeagents"
AGENT_TOOL = f"mcp__{AGENT_SERVER}__{SUBAGENT_TOOL}"
# The tool names that frontends read, each with the name of the same tool in rules.
TOOL_ALIASES = {"Agent": SUBAGENT_TOOL, AGENT_TOOL: SUBAGENT_TOOL}
MATCH_ALL_CONTENTS = (None, "", "*", ":*")
MCP_PREFIX = "mcp__"
UNNAMED_TOOL = "unknown"  # stands for the missing tool name of a call
ANY_TOOL = "*"
# the characters that Claude allows in a tool name
ALLOWED_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def split_into_word_set(words: str) -> frozenset[str]:
    """Return the words of a text as a set. This is a short way to write tables of words."""
    return frozenset(words.split())


def normalize_mcp_name(name: str) -> str:
    """Return an MCP server's name as Claude spells it in tool names: `my server` becomes
    `my_server`.
    """
    return "".join([letter if letter in ALLOWED_NAME_CHARS else "_" for letter in name])


@lru_cache(maxsize=1000)  # a session uses the same few names repeatedly
def normalize_tool_name(name: str) -> str:
    """Return Claude's name for a tool. In an MCP tool's name, each character that Claude does not
    allow is replaced with `_`.

    `mcp__my server.x__do it` becomes `mcp__my_server_x__do_it`, as in the real claude's tool calls,
    rules and hooks.
    """
    if name == AGENT_TOOL:
        return SUBAGENT_TOOL
    if name.startswith(MCP_PREFIX):
        return normalize_mcp_name(name)
    return name


class PermissionRule(NamedTuple):
    """A permission rule.

    tool     Claude's name for a tool, or an MCP server: `mcp__server`, `mcp__server__*`
    content  the text in parentheses; None if the rule applies to every call of the tool
    base     the folder for paths that begin with one slash; "" for the working directory
    source   where the rule was set: a flag such as "--disallowedTools", or a file; used in messages
    """

    tool: str
    content: str | None = None
    base: str = ""
    source: str = ""

    def __str__(self) -> str:
        if self.content is None:
            return self.tool
        return f"{self.tool}({self.content})"

    @property
    def content_text(self) -> str:
        """The text in parentheses, or "" if there is none."""
        if self.content is None:
            return ""
        return self.content

    def matches_tool(self, tool: str, *, is_restriction: bool = False) -> bool:
        """Return whether the rule applies to the calls of a tool, regardless of their arguments. If
        `is_restriction` is set, a star in the rule's tool name matches any text.

        In a deny or ask rule, an MCP server's name may also be spelled as in the server's
        configuration. In the real claude, a rule with this spelling has no effect, but applying the
        restriction is safer. An allow rule with this spelling is not applied.
        """
        tool = normalize_tool_name(TOOL_ALIASES.get(tool, tool))
        rule_tool = self.tool
        if rule_tool == ANY_TOOL:
            return is_restriction
        if is_restriction and rule_tool.startswith(MCP_PREFIX):
            rule_tool = "*".join(map(normalize_mcp_name, rule_tool.split("*")))
        if is_restriction and "*" in rule_tool:
            from fnmatch import fnmatchcase

            if fnmatchcase(tool, rule_tool):
                return True
        if rule_tool.startswith(MCP_PREFIX):
            server = rule_tool.removesuffix("__*")
            if server.count("__") == 1 and tool.startswith(server + "__"):
                return True
        return tool == rule_tool

    def is_about_server(self, server_names: Iterable[str]) -> bool:
        """Return whether the rule names one of these MCP servers, or a tool of it. Return False if
        the name may also be that of a tool of another server, such as `a__b` for `mcp__a__b__c`.
        """
        tool = normalize_mcp_name(self.tool)
        for name in server_names:
            server = f"{MCP_PREFIX}{normalize_mcp_name(name)}"
            if tool == server:
                return True
            if tool.startswith(f"{server}__") and "__" not in tool.removeprefix(f"{server}__"):
                return True
        return False


class UnsupportedRule(NamedTuple):
    """An allow rule or a settings key that has no effect, with its source and the reason."""

    what: str
    source: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Return the rule's entry in `init.shim.not_honoured`."""
        return self._asdict()


def parse_permission_rule(text: str, base: str = "", source: str = "") -> PermissionRule:
    """Parse a permission rule. A text with unmatched parentheses becomes a rule for a tool that
    does not exist.
    """
    name, bracket, bracket_text = text.partition("(")
    if not bracket or not bracket_text.endswith(")"):
        return PermissionRule(TOOL_ALIASES.get(text, text), None, base, source)
    content = bracket_text[:-1]
    return PermissionRule(
        TOOL_ALIASES.get(name, name),
        None if content in MATCH_ALL_CONTENTS else content,
        base,
        source,
    )


def parse_permission_rules(
    texts: Iterable[str], base: str = "", source: str = ""
) -> tuple[PermissionRule, ...]:
    return tuple(parse_permission_rule(text, base, source) for text in texts)


# Changes to these files need a prompt in every permission mode except bypassPermissions. The files
# can make programs run or grant permissions.
PROTECTED_NAMES = split_into_word_set("""
    .git .claude .vscode .idea .husky .devcontainer .bashrc .bash_profile .bash_login .bash_aliases .profile .zshrc
    .zprofile .zshenv .zlogin .gitconfig .gitmodules .mcp.json .claude.json .ripgreprc .envrc .npmrc .yarnrc
    .pre-commit-config.yaml .qwen .gemini .codex .opencode opencode.json opencode.jsonc
""")
# The folders of the shim's settings (on Linux and macOS) and of stored flags for resumed sessions.
SHIM_FOLDERS = ("/.config/shim/", "/Library/Application Support/shim/", "/.local/state/shim/")


class Workspace(NamedTuple):
    """The folders in which a turn may work.

    `directories` are the folders besides the working directory. `resolve_links` is a function that
    resolves the symbolic links in a path. The core does no I/O of its own, so the caller passes
    this function.
    """

    cwd: str
    user_home: str = ""
    directories: tuple[str, ...] = ()
    resolve_links: Callable[[str], str] = lambda path: path

    def make_path_absolute(self, path: str, cwd: str | None = None) -> str:
        return posixpath.normpath(self._join_path(path, cwd))

    def _join_path(self, path: str, cwd: str | None) -> str:
        if path == "~" or path.startswith("~/"):
            path = self.user_home + path[1:]
        return posixpath.join(cwd or self.cwd, path)

    def resolve_file_path(self, path: str, cwd: str | None = None) -> str | None:
        """Return the absolute path of a file. Return None if a symbolic link before `..` would lead
        a shell to another file.
        """
        absolute_path = self.make_path_absolute(path, cwd)
        if ".." not in path.split("/"):
            return absolute_path
        real_path = posixpath.normpath(self.resolve_links(self._join_path(path, cwd)))
        if real_path == posixpath.normpath(self.resolve_links(absolute_path)):
            return absolute_path
        return None

    def list_equivalent_paths(self, path: str) -> tuple[str, ...]:
        """Return a path, and also the path without symbolic links if that differs."""
        real_path = self.resolve_links(path)
        if real_path == path:
            return (path,)
        return (path, real_path)

    def is_path_inside(self, path: str) -> bool:
        """Return whether a path is in one of the workspace's folders both before and after its
        symbolic links are resolved.
        """
        roots = [
            root
            for directory in (self.cwd, *self.directories)
            for root in self.list_equivalent_paths(self.make_path_absolute(directory))
        ]
        return all(
            any(is_path_below(spelling, root) for root in roots)
            for spelling in self.list_equivalent_paths(path)
        )

    def is_protected_path(self, path: str) -> bool:
        """Return whether a change to a file could make programs run or grant permissions."""
        spellings = [f"{spelling.lower()}/" for spelling in self.list_equivalent_paths(path)]
        return any(
            any(shim_folder.lower() in spelling for shim_folder in SHIM_FOLDERS)
            or not PROTECTED_NAMES.isdisjoint(spelling.split("/"))
            for spelling in spellings
        )


def is_path_below(path: str, folder: str) -> bool:
    if path == folder:
        return True
    return path.startswith(folder.rstrip("/") + "/")


BYPASS_MODE = "bypassPermissions"
EDIT_MODE = "acceptEdits"
PLAN_MODE = "plan"
PERMISSION_MODES = ("default", PLAN_MODE, EDIT_MODE, "dontAsk", "auto", BYPASS_MODE)
PROMPTLESS_MODES = ("plan", "dontAsk")  # the permission modes in which no prompt can allow a change
# the source of a rule that the user added during the conversation
ANSWER_SOURCE = "an answer"
# the source of the rules in the current controller's flag settings, which can be replaced
FLAGS_SOURCE = "flag settings"
# the tool whose call contains the answer for --json-schema; no rule removes this tool
STRUCTURED_OUTPUT_TOOL = "StructuredOutput"
MAX_ADDED_RULES = 1000  # the limit for allow rules from answers; the latest rules are kept
MAX_RESTRICTING_RULES = 10_000


def resolve_permission_mode(requested_mode: str | None, *, skips_permissions: bool) -> str:
    """Return the permission mode of a turn. `--dangerously-skip-permissions` means
    bypassPermissions, and `manual` means default.
    """
    if skips_permissions:
        return BYPASS_MODE
    if requested_mode in (None, "", "manual"):
        return "default"
    return str(requested_mode)


class PolicyDecision(NamedTuple):
    """The decision about a tool call."""

    outcome: "DecisionOutcome"
    reason: str  # the rule's text, or the permission mode if no rule matches
    is_by_rule: bool = True


class Policy:
    """The permission rules of one conversation.

    only_tools    the tools that `--tools` permits; None for all tools
    hidden_tools  tools whose calls and results are left out of the output stream
    hooks         the settings' hooks that run before a tool call
    workspace     the folders in which the conversation may work

    The permission mode is not part of the policy, because the mode may change between two calls.
    """

    def __init__(
        self,
        *,
        workspace: Workspace,
        only_tools: Iterable[str] | None = None,
        deny: Iterable[PermissionRule] = (),
        ask: Iterable[PermissionRule] = (),
        allow: Iterable[PermissionRule] = (),
        hidden_tools: Iterable[str] = (),
        hooks: "Iterable[SettingsHook]" = (),
    ) -> None:
        self.workspace = workspace
        if only_tools is None:
            self.only_tools = None
        else:
            self.only_tools = frozenset(TOOL_ALIASES.get(name, name) for name in only_tools)
        self.deny = tuple(deny)
        self.ask = tuple(ask)
        self.allow = tuple(allow)
        self.hidden_tools = frozenset(hidden_tools)
        self.hooks = tuple(hooks)

    def __bool__(self) -> bool:
        if self.has_restrictions:
            return True
        return bool(self.hidden_tools)

    @property
    def has_restrictions(self) -> bool:
        """Whether the policy may stop a tool call that the permission mode alone would allow."""
        if self.only_tools is not None:
            return True
        return any((self.deny, self.ask, self.hooks))

    @property
    def has_rules(self) -> bool:
        if self.has_restrictions:
            return True
        return bool(self.allow)

    @property
    def mcp_server_names_in_rules(self) -> list[str]:
        """The names of the MCP servers that occur in rules."""
        rules = (*self.deny, *self.ask, *self.allow)
        names = [
            rule.tool.removeprefix(MCP_PREFIX).partition("__")[0]
            for rule in rules
            if rule.tool.startswith(MCP_PREFIX)
        ]
        return [name for name in names if name and "*" not in name]

    @property
    def restricting_rules(self) -> tuple[PermissionRule, ...]:
        """The deny and ask rules. They keep matching tool calls from running without a prompt."""
        return self.deny + self.ask

    @property
    def removed_tools(self) -> tuple[str, ...]:
        """The tools whose calls are all denied."""
        return tuple(sorted({rule.tool for rule in self.deny if rule.content is None}))

    def list_visible_tools(self, tools: Iterable[str]) -> list[str]:
        """Return the tools that the `init` message may list. A rule that names arguments does not
        remove its tool from the list (contract F8).
        """
        deny_rules = [rule for rule in self.deny if rule.content is None]
        return [
            name
            for name in tools
            if name not in self.hidden_tools
            and (
                name == STRUCTURED_OUTPUT_TOOL
                or not any(rule.matches_tool(name, is_restriction=True) for rule in deny_rules)
            )
            and (
                self.only_tools is None
                or TOOL_ALIASES.get(name, name) in self.only_tools
                or name == STRUCTURED_OUTPUT_TOOL
            )
        ]

    def remove_rules(
        self, kind: "DecisionOutcome", rules: Iterable[PermissionRule] | None = None
    ) -> None:
        """Remove rules that were added by the user's answers: either the given rules, or all rules
        of a kind.
        """
        removed = None
        if rules is not None:
            removed = {(rule.tool, rule.content) for rule in rules}

        def filter_rules(rules: tuple[PermissionRule, ...]) -> tuple[PermissionRule, ...]:
            return tuple(
                rule
                for rule in rules
                if rule.source != ANSWER_SOURCE
                or (removed is not None and (rule.tool, rule.content) not in removed)
            )

        if kind == "allow":
            self.allow = filter_rules(self.allow)
        elif kind == "ask":
            self.ask = filter_rules(self.ask)
        else:
            self.deny = filter_rules(self.deny)

    def remove_working_directories(self, directories: Iterable[str]) -> None:
        """Remove folders from the workspace."""
        removed = frozenset(directories)
        self.workspace = self.workspace._replace(
            directories=tuple(
                directory for directory in self.workspace.directories if directory not in removed
            )
        )

    def with_restricting_rules(
        self, rules: Mapping[str, Iterable[PermissionRule]], source: str
    ) -> "Policy":
        """Return a copy of the policy with these "deny" and "ask" rules. They replace the rules
        that have the same source.
        """
        import copy

        policy = copy.copy(self)
        policy.deny = _limit_rules(
            (*(rule for rule in self.deny if rule.source != source), *rules.get("deny", ()))
        )
        policy.ask = _limit_rules(
            (*(rule for rule in self.ask if rule.source != source), *rules.get("ask", ()))
        )
        return policy

    def with_permissions(
        self, allow: Iterable[PermissionRule] = (), directories: Iterable[str] = ()
    ) -> "Policy":
        """Return a copy of the policy with additional allow rules and working directories."""
        import copy

        policy = copy.copy(self)
        policy.allow = (*self.allow, *allow)
        policy.add_working_directories(directories)
        return policy

    def add_working_directories(self, directories: Iterable[str]) -> None:
        """Add folders to the workspace."""
        all_directories = dict.fromkeys((*self.workspace.directories, *directories))
        self.workspace = self.workspace._replace(
            directories=tuple(all_directories)[-MAX_ADDED_RULES:]
        )

    def add_rules(self, rules: Mapping[str, Iterable[PermissionRule]]) -> None:
        """Add the "allow", "ask" and "deny" rules from a user's answer."""
        self.allow = (*self.allow, *rules.get("allow", ()))[-MAX_ADDED_RULES:]
        self.ask = _limit_rules((*self.ask, *rules.get("ask", ())))
        self.deny = _limit_rules((*self.deny, *rules.get("deny", ())))


def _limit_rules(rules: tuple[PermissionRule, ...]) -> tuple[PermissionRule, ...]:
    """Return the rules unchanged if there are few enough to check. Otherwise return a single rule
    that applies to every tool.
    """
    if len(rules) <= MAX_RESTRICTING_RULES:
        return rules
    return (PermissionRule(ANY_TOOL, source="too many rules"),)

"""Permission rules as Claude writes them: `Bash(git push:*)`, `Edit(./secret/**)`,
`mcp__server__*`, `WebFetch`.
"""

from collections.abc import Iterable
from functools import lru_cache

from shim.core.reading.typed import NamedTuple

# One tool, two names. The first is what the frontend reads.
TOOL_ALIASES = {"Agent": "Task"}
MATCH_ALL_CONTENTS = (None, "", "*", ":*")
MCP_PREFIX = "mcp__"
SUBAGENT_TOOL = "Task"
UNNAMED_TOOL = "unknown"  # the tool of a call whose vendor names none
ANY_TOOL = "*"
# characters of a tool's name
ALLOWED_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def split_into_word_set(words: str) -> frozenset[str]:
    """The words of a text, for a table."""
    return frozenset(words.split())


def normalize_mcp_name(name: str) -> str:
    """A name of MCP as it stands in the name of a tool: `my server` is `my_server`."""
    return "".join([letter if letter in ALLOWED_NAME_CHARS else "_" for letter in name])


@lru_cache(maxsize=1000)  # a session uses the same few names again and again
def normalize_tool_name(name: str) -> str:
    """Return Claude's name of a tool. In the name of an MCP tool, characters that Claude does not
    allow become `_`.

    `mcp__my server.x__do it` becomes `mcp__my_server_x__do_it`, as in the real claude's calls,
    rules and hooks.
    """
    return normalize_mcp_name(name) if name.startswith(MCP_PREFIX) else name


class PermissionRule(NamedTuple):
    """One rule.

    tool     a tool in Claude's words, or a server of MCP: `mcp__server`, `mcp__server__*`
    content  what is between the brackets; None where a rule is about every call of the tool
    base     the folder that a path beginning with one slash is relative to; "" for the working
             directory
    source   the place that the rule comes from, for a sentence: "--disallowedTools", a file
    """

    tool: str
    content: str | None = None
    base: str = ""
    source: str = ""

    def __str__(self) -> str:
        return self.tool if self.content is None else f"{self.tool}({self.content})"

    def matches_tool(self, tool: str, *, is_restriction: bool = False) -> bool:
        """Return whether the rule is about a tool, whatever its content. If it `is_restriction`, a
        star matches anything.

        A rule that narrows may also spell the server as in its configuration. The real claude would
        match such a rule with no tool, but it is safer to apply a rule that forbids. A rule that
        allows is not applied.
        """
        tool, rule_tool = normalize_tool_name(TOOL_ALIASES.get(tool, tool)), self.tool
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
            return tool == rule_tool or (server.count("__") == 1 and tool.startswith(server + "__"))
        return tool == rule_tool


class UnsupportedRule(NamedTuple):
    """A rule that allows, or a key of the settings, which has no effect; where it comes from, and
    why it has none.
    """

    what: str
    source: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """The same for `init.shim.list_unsupported_rules`."""
        return self._asdict()


def parse_permission_rule(text: str, base: str = "", source: str = "") -> PermissionRule:
    """The rule that a text says. A text with a broken bracket is a name that no tool has."""
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

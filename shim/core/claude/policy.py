"""Which tools are listed, allowed, denied or hidden in a turn, by Claude's names (surface page, permission modes)."""

from collections.abc import Iterable, Mapping

from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Literal

    Verdict = Literal["allow", "deny", "hide"]

ALLOWED_RULES = 1000  # the last ones are kept; each comes from a person's answer

MODES = ("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions")


def permission_mode(asked: str | None, *, skip: bool) -> str:
    """The mode of a turn: `--dangerously-skip-permissions` is bypassPermissions, `manual` another word for default."""
    if skip:
        return "bypassPermissions"
    return "default" if asked in (None, "", "manual") else str(asked)


STRUCTURED = "StructuredOutput"  # the call that carries an answer to --json-schema; no rule takes it away

# The argument that a rule's specifier is about: `Bash(rm *)` looks at the command, `Read(./secret/**)` at the path.
_SPECIFIED = {
    "Bash": "command",
    "WebFetch": "url",
    "Glob": "pattern",
    "Grep": "path",
    "NotebookEdit": "notebook_path",
}


def split_rule(rule: str) -> tuple[str, str | None]:
    """`Bash(rm *)` → ("Bash", "rm *"); `Read` → ("Read", None)."""
    name, bracket, rest = rule.partition("(")
    if not bracket or not rest.endswith(")"):
        return rule, None
    return name, rest[:-1]


class Policy:
    """The rules of one turn.

    `only` are the tools that `--tools` left (None: all), `denied` the rules of `--disallowedTools` and of the
    settings, `hidden` the tools whose calls and results are left out of the stream, `allowed` the rules of
    `--allowedTools`: calls that need no question.
    """

    def __init__(
        self,
        *,
        only: Iterable[str] | None = None,
        denied: Iterable[str] = (),
        hidden: Iterable[str] = (),
        allowed: Iterable[str] = (),
    ) -> None:
        self.only = None if only is None else frozenset(only)
        self.hidden = frozenset(hidden)
        rules = [split_rule(rule) for rule in denied]
        self.denied = frozenset(name for name, specifier in rules if specifier in (None, "", "*", ":*"))
        self._specified = [(name, specifier) for name, specifier in rules if specifier and name not in self.denied]
        self._allowed = [split_rule(rule) for rule in allowed]

    def __bool__(self) -> bool:
        return bool(self.only is not None or self.denied or self.hidden or self._specified)

    def listed(self, tools: Iterable[str]) -> list[str]:
        """The tools that `init` may name. A rule with a specifier leaves its tool in the list (contract F8)."""
        return [
            name
            for name in tools
            if name not in self.denied
            and name not in self.hidden
            and (self.only is None or name in self.only or name == STRUCTURED)
        ]

    def verdict(self, name: str, arguments: Mapping[str, Any]) -> "Verdict":
        """The verdict on a call that the vendor makes although it was told not to."""
        if name in self.hidden:
            return "hide"
        if name in self.denied or (self.only is not None and name not in self.only and name != STRUCTURED):
            return "deny"
        for rule_name, specifier in self._specified:
            value = arguments.get(_SPECIFIED.get(name, "file_path"))
            parts = _commands(value) if name == "Bash" and isinstance(value, str) else [value]
            if rule_name == name and any(_matches(specifier, part) for part in parts):
                return "deny"
        return "allow"

    def allow(self, rules: Iterable[str]) -> None:
        """Add rules that need no question. A denied call stays denied."""
        self._allowed += [split_rule(rule) for rule in rules]
        del self._allowed[:-ALLOWED_RULES]

    def permits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a rule allows a call beforehand. A call that a rule only might mean is not allowed."""
        if self.verdict(name, arguments) != "allow":
            return False
        for rule_name, specifier in self._allowed:
            if rule_name != name:
                continue
            if specifier in (None, "", "*", ":*"):
                return True
            value = arguments.get(_SPECIFIED.get(name, "file_path"))
            if not isinstance(value, str) or ".." in value or not _SEVERAL.isdisjoint(value):
                continue
            if _covers(str(specifier), value):
                return True
        return False


# What makes one shell command several, or another than it looks: a rule about a command's beginning says nothing of it.
_SEVERAL = frozenset(";&|<>$`\n\r(){}\\")


def _matches(specifier: str, value: object) -> bool:
    """Whether a denying specifier matches an argument. One that cannot be read matches (never wider)."""
    if not isinstance(value, str):
        return True
    if specifier.startswith("domain:"):
        return specifier[7:] in value
    # The base of a path is unknown here (working directory, home, settings), so the path may begin anywhere.
    path = next((specifier[len(root) :] for root in _ROOTS if specifier.startswith(root)), specifier)
    return _covers(specifier, value) or _fits(value, path) or _fits(value, "*/" + path)


_ROOTS = ("./", "~/", "//", "/")
_HOST = r"(?a)https?://([\w.-]+)(?::\d+)?(?:[/?#]|\Z)"


def _covers(specifier: str, value: str) -> bool:
    """Whether an argument is exactly what a specifier says."""
    if specifier.endswith(":*"):
        prefix = specifier[:-2]
        return value == prefix or value.startswith(prefix + " ")
    if specifier.startswith("domain:"):
        import re

        host = re.match(_HOST, value)
        return host is not None and host[1] == specifier[7:]
    return _fits(value, specifier)


def _fits(value: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(value, pattern)


def _commands(line: str) -> list[str]:
    """A shell's line and every part that may be a command, so that no rule is evaded by joining commands."""
    import re

    return [line, *(part.strip() for part in re.split(_BETWEEN, line.replace("\t", " ")))]


_BETWEEN = r"[;&|\n\r(){}`]+"

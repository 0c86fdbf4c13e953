"""Paths of rules: Git's patterns for ignored files, with Claude's four roots.

`//x` is a path from the root, `~/x` one from home, `/x` one from the rule's own folder, `x` and
`./x` one from the working directory (permission-parity page; each form was asked of the real
claude).
"""

import posixpath
from functools import lru_cache

from shim.core.policy.acts import CHANGE_TOOLS, READ_TOOLS
from shim.core.policy.place import Workspace, is_below
from shim.core.policy.rules import Rule
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import PathSpec

MAX_COMPILED_PATTERNS = 1000  # compiled ones that are kept


def matches_path(rule: Rule, path: str, place: Workspace) -> bool:
    """Whether a rule that narrows is about an absolute path, or about where its links lead.

    A pattern that cannot be read is about everything.
    """
    root, pattern = _split_pattern(rule, place)
    spec = _compile_pattern(pattern)
    return spec is None or any(
        _matches_spec(spec, pattern, name, base)
        for base in place.list_spellings(root or "/")
        for name in place.list_spellings(path)
        if is_below(name, base)
    )


def allows_path(rule: Rule, path: str, place: Workspace) -> bool:
    """Whether a rule that allows is about a path by its name, and also by where its links lead."""
    root, pattern = _split_pattern(rule, place)
    spec = _compile_pattern(pattern)
    if spec is None or not root:
        return False
    return all(
        any(
            is_below(name, base) and _matches_spec(spec, pattern, name, base)
            for base in place.list_spellings(root)
        )
        for name in place.list_spellings(path)
    )


def _matches_spec(spec: "PathSpec[Any]", pattern: str, name: str, base: str) -> bool:
    if name == base:
        return pattern in ("/", "/**", "**", "*")
    return spec.match_file(name[len(base) :].lstrip("/"))


def can_match_inside(rule: Rule, folder: str, place: Workspace) -> bool:
    """Whether a rule may be about something inside a folder: a search through the folder would show
    it.
    """
    root, pattern = _split_pattern(rule, place)
    before, star, _ = pattern.partition("*")
    fixed = (posixpath.dirname(before) if star else before) if "/" in pattern.rstrip("/") else ""
    start = posixpath.normpath(root + "/" + fixed)
    return any(
        is_below(start, name) or is_below(name, start) for name in place.list_spellings(folder)
    )


def _split_pattern(rule: Rule, place: Workspace) -> tuple[str, str]:
    """The folder that a rule's path begins in, "" for a home that is not known, and Git's pattern
    below that folder.
    """
    said = (rule.content or "").strip()
    if said.startswith("//"):
        root, pattern = "/", "/" + said.lstrip("/")
    elif said == "~" or said.startswith("~/"):
        root, pattern = place.user_home, said[1:] or "/"
    elif said.startswith("/"):
        root, pattern = rule.base or place.cwd, said
    else:
        root, pattern = place.cwd, said.removeprefix("./")
        if pattern.startswith("../"):
            root, pattern = "/", posixpath.join(place.cwd, pattern)
    fixed, star, rest = pattern.partition("*")
    if "//" in fixed or "./" in fixed:
        tail = "/" if fixed.endswith("/") else ""
        pattern = posixpath.normpath(fixed) + tail + star + rest
    # "secret/**" is the folder itself too, and then no slash holds it to the root any more, as in
    # the real one.
    return root, pattern.removesuffix("/**") or "/**"


def resolve_rule_path(rule: Rule, folder: str) -> Rule:
    """A rule that was said where `folder` is the working directory, so that it means the same in
    any other.
    """
    said = (rule.content or "").strip()
    if (
        rule.tool not in (*READ_TOOLS, *CHANGE_TOOLS)
        or not said
        or said.startswith(("//", "~/"))
        or said == "~"
    ):
        return rule
    root, pattern = folder, said.removeprefix("./")
    if said.startswith("/"):
        root, pattern = rule.base or folder, said[1:]
    elif pattern.startswith("../"):
        while pattern.startswith("../"):
            root, pattern = posixpath.dirname(root), pattern[3:]
    elif "/" not in pattern.removesuffix("/**").rstrip("/"):
        pattern = f"**/{pattern}"  # no slash holds it to the folder
    escaped = "".join(f"\\{letter}" if letter in "*?[\\" else letter for letter in root.rstrip("/"))
    return rule._replace(content=f"/{escaped}/{pattern}", base="")


@lru_cache(MAX_COMPILED_PATTERNS)
def _compile_pattern(pattern: str) -> "PathSpec[Any] | None":
    """The pattern, compiled; None for one that cannot be read."""
    import re

    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return None

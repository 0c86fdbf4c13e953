"""Paths of rules: Git's patterns for ignored files, with Claude's four roots.

`//x` is a path from the root, `~/x` one from home, `/x` one from the rule's own folder, `x` and
`./x` one from the working directory (permission-parity page; each form was asked of the real
claude).
"""

import posixpath
from functools import lru_cache

from shim.core.policy.call_effects import CHANGE_TOOLS, READ_TOOLS
from shim.core.policy.policy import PermissionRule, Workspace, is_path_below
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import PathSpec

MAX_COMPILED_PATTERNS = 1000  # compiled ones that are kept


def matches_restricted_path(rule: PermissionRule, path: str, workspace: Workspace) -> bool:
    """Whether a rule that narrows is about an absolute path, or about where its links lead.

    A pattern that cannot be read is about everything.
    """
    root, pattern = _split_pattern(rule, workspace)
    spec = _compile_pattern(pattern)
    return spec is None or any(
        _matches_spec(spec, pattern, spelling, root_spelling)
        for root_spelling in workspace.list_equivalent_paths(root or "/")
        for spelling in workspace.list_equivalent_paths(path)
        if is_path_below(spelling, root_spelling)
    )


def allows_path(rule: PermissionRule, path: str, workspace: Workspace) -> bool:
    """Whether a rule that allows is about a path by its name, and also by where its links lead."""
    root, pattern = _split_pattern(rule, workspace)
    spec = _compile_pattern(pattern)
    if spec is None or not root:
        return False
    return all(
        any(
            is_path_below(spelling, root_spelling)
            and _matches_spec(spec, pattern, spelling, root_spelling)
            for root_spelling in workspace.list_equivalent_paths(root)
        )
        for spelling in workspace.list_equivalent_paths(path)
    )


def _matches_spec(spec: "PathSpec[Any]", pattern: str, path: str, root: str) -> bool:
    if path == root:
        return pattern in ("/", "/**", "**", "*")
    return spec.match_file(path[len(root) :].lstrip("/"))


def can_match_inside_folder(rule: PermissionRule, folder: str, workspace: Workspace) -> bool:
    """Whether a rule may be about something inside a folder: a search through the folder would show
    it.
    """
    root, pattern = _split_pattern(rule, workspace)
    literal_text, star, _ = pattern.partition("*")
    literal_path = (
        (posixpath.dirname(literal_text) if star else literal_text)
        if "/" in pattern.rstrip("/")
        else ""
    )
    start_folder = posixpath.normpath(root + "/" + literal_path)
    return any(
        is_path_below(start_folder, spelling) or is_path_below(spelling, start_folder)
        for spelling in workspace.list_equivalent_paths(folder)
    )


def _split_pattern(rule: PermissionRule, workspace: Workspace) -> tuple[str, str]:
    """The folder that a rule's path begins in, "" for a home that is not known, and Git's pattern
    below that folder.
    """
    content = (rule.content or "").strip()
    if content.startswith("//"):
        root, pattern = "/", "/" + content.lstrip("/")
    elif content == "~" or content.startswith("~/"):
        root, pattern = workspace.user_home, content[1:] or "/"
    elif content.startswith("/"):
        root, pattern = rule.base or workspace.cwd, content
    else:
        root, pattern = workspace.cwd, content.removeprefix("./")
        if pattern.startswith("../"):
            root, pattern = "/", posixpath.join(workspace.cwd, pattern)
    literal_text, star, suffix = pattern.partition("*")
    if "//" in literal_text or "./" in literal_text:
        tail = "/" if literal_text.endswith("/") else ""
        pattern = posixpath.normpath(literal_text) + tail + star + suffix
    # "secret/**" is the folder itself too, and then no slash holds it to the root any more, as in
    # the real one.
    return root, pattern.removesuffix("/**") or "/**"


def resolve_rule_path(rule: PermissionRule, folder: str) -> PermissionRule:
    """A rule that was said where `folder` is the working directory, so that it means the same in
    any other.
    """
    content = (rule.content or "").strip()
    if (
        rule.tool not in (*READ_TOOLS, *CHANGE_TOOLS)
        or not content
        or content.startswith(("//", "~/"))
        or content == "~"
    ):
        return rule
    root, pattern = folder, content.removeprefix("./")
    if content.startswith("/"):
        root, pattern = rule.base or folder, content[1:]
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

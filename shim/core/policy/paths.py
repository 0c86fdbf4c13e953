"""Matches file paths against permission rules. A rule's path is a gitignore pattern that is
relative to one of four folders.

`//x` starts at the root, `~/x` at the home folder, `/x` at the rule's own folder, and `x` and `./x`
at the working directory. The meaning of each form was measured with the real claude.
"""

import posixpath
from functools import lru_cache

from shim.core.policy.call_effects import CHANGE_TOOLS, READ_TOOLS
from shim.core.policy.policy import PermissionRule, Workspace, is_path_below
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import PathSpec

MAX_COMPILED_PATTERNS = 1000  # the size of the pattern cache


def matches_restricted_path(rule: PermissionRule, path: str, workspace: Workspace) -> bool:
    """Return whether a deny or ask rule matches an absolute path, either as it is or after its
    symbolic links are resolved.

    A pattern that cannot be parsed matches every path.
    """
    root, pattern = _split_pattern(rule, workspace)
    spec = _compile_pattern(pattern)
    if spec is None:
        return True
    return any(
        _matches_spec(spec, pattern, spelling, root_spelling)
        for root_spelling in workspace.list_equivalent_paths(root or "/")
        for spelling in workspace.list_equivalent_paths(path)
        if is_path_below(spelling, root_spelling)
    )


def allows_path(rule: PermissionRule, path: str, workspace: Workspace) -> bool:
    """Return whether an allow rule matches an absolute path both as it is and after its symbolic
    links are resolved.
    """
    root, pattern = _split_pattern(rule, workspace)
    spec = _compile_pattern(pattern)
    if spec is None or not root:
        return False
    return all(
        any(
            _matches_spec(spec, pattern, spelling, root_spelling)
            for root_spelling in workspace.list_equivalent_paths(root)
            if is_path_below(spelling, root_spelling)
        )
        for spelling in workspace.list_equivalent_paths(path)
    )


def _matches_spec(spec: "PathSpec[Any]", pattern: str, path: str, root: str) -> bool:
    if path == root:
        return pattern in ("/", "/**", "**", "*")
    return spec.match_file(path[len(root) :].lstrip("/"))


def can_match_inside_folder(rule: PermissionRule, folder: str, workspace: Workspace) -> bool:
    """Return whether a rule may match a file inside a folder. A search in the folder could show
    that file's content.
    """
    root, pattern = _split_pattern(rule, workspace)
    literal_text, star, _ = pattern.partition("*")
    if "/" not in pattern.rstrip("/"):
        literal_path = ""
    elif star:
        literal_path = posixpath.dirname(literal_text)
    else:
        literal_path = literal_text
    start_folder = posixpath.normpath(root + "/" + literal_path)
    return any(
        is_path_below(start_folder, spelling) or is_path_below(spelling, start_folder)
        for spelling in workspace.list_equivalent_paths(folder)
    )


def _split_pattern(rule: PermissionRule, workspace: Workspace) -> tuple[str, str]:
    """Split a rule's path into the folder at which it starts and the gitignore pattern below that
    folder.

    The folder is "" if the path starts at the home folder and the home folder is unknown.
    """
    content = rule.content_text.strip()
    if content.startswith("//"):
        root = "/"
        pattern = "/" + content.lstrip("/")
    elif content == "~" or content.startswith("~/"):
        root = workspace.user_home
        pattern = content[1:]
        if not pattern:
            pattern = "/"
    elif content.startswith("/"):
        root = rule.base
        if not root:
            root = workspace.cwd
        pattern = content
    else:
        root = workspace.cwd
        pattern = content.removeprefix("./")
        if pattern.startswith("../"):
            root = "/"
            pattern = posixpath.join(workspace.cwd, pattern)
    literal_text, star, suffix = pattern.partition("*")
    if "//" in literal_text or "./" in literal_text:
        tail = ""
        if literal_text.endswith("/"):
            tail = "/"
        pattern = posixpath.normpath(literal_text) + tail + star + suffix
    # As in the real claude, "secret/**" also matches the folder "secret" itself, at any depth below
    # the root.
    return root, pattern.removesuffix("/**") or "/**"


def resolve_rule_path(rule: PermissionRule, folder: str) -> PermissionRule:
    """Return a copy of a rule that does not depend on the working directory. The copy means in
    every folder what `rule` means in the working directory `folder`.
    """
    content = rule.content_text.strip()
    if (
        rule.tool not in (*READ_TOOLS, *CHANGE_TOOLS)
        or not content
        or content.startswith(("//", "~/"))
        or content == "~"
    ):
        return rule
    root = folder
    pattern = content.removeprefix("./")
    if content.startswith("/"):
        root = rule.base
        if not root:
            root = folder
        pattern = content[1:]
    elif pattern.startswith("../"):
        while pattern.startswith("../"):
            root = posixpath.dirname(root)
            pattern = pattern[3:]
    elif "/" not in pattern.removesuffix("/**").rstrip("/"):
        pattern = f"**/{pattern}"  # a pattern without a slash also matches in subfolders
    escaped = "".join(f"\\{letter}" if letter in "*?[\\" else letter for letter in root.rstrip("/"))
    return rule._replace(content=f"/{escaped}/{pattern}", base="")


@lru_cache(MAX_COMPILED_PATTERNS)
def _compile_pattern(pattern: str) -> "PathSpec[Any] | None":
    """Return the compiled gitignore pattern, or None if the pattern cannot be parsed."""
    import re

    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return None

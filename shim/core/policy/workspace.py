"""Where a turn works: the folders that paths of rules and of calls are relative to."""

import posixpath
from collections.abc import Callable

from shim.core.policy.rules import split_into_word_set
from shim.core.reading.typed import NamedTuple

# A change of these is asked for in every mode but the widest: they make programs run, or give
# permissions.
PROTECTED_NAMES = split_into_word_set("""
    .git .claude .vscode .idea .husky .devcontainer .bashrc .bash_profile .bash_login .bash_aliases .profile .zshrc
    .zprofile .zshenv .zlogin .gitconfig .gitmodules .mcp.json .claude.json .ripgreprc .envrc .npmrc .yarnrc
    .pre-commit-config.yaml .qwen .gemini .codex .opencode opencode.json opencode.jsonc
""")
# Our settings, on a Mac too, and the flags with which sessions go on.
SHIM_FOLDERS = ("/.config/shim/", "/Library/Application Support/shim/", "/.local/state/shim/")


class Workspace(NamedTuple):
    """Where a turn works: what paths are relative to.

    `directories` are those that it may work in besides the working directory. `resolve_links`
    resolves the links of a path; the core itself looks at no file.
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
        """The absolute path of a file; None where a link stands before `..`, so that a shell comes
        to another one.
        """
        absolute_path = self.make_path_absolute(path, cwd)
        if ".." not in path.split("/"):
            return absolute_path
        real_path = posixpath.normpath(self.resolve_links(self._join_path(path, cwd)))
        return (
            absolute_path
            if real_path == posixpath.normpath(self.resolve_links(absolute_path))
            else None
        )

    def list_equivalent_paths(self, path: str) -> tuple[str, ...]:
        """A path as it is said, and the path that it leads to."""
        real_path = self.resolve_links(path)
        return (path,) if real_path == path else (path, real_path)

    def is_path_inside(self, path: str) -> bool:
        """Whether a path is in a folder of this turn, also where its links lead."""
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
        """Whether a file makes programs run, or gives permissions."""
        spellings = [f"{spelling.lower()}/" for spelling in self.list_equivalent_paths(path)]
        return any(
            any(shim_folder.lower() in spelling for shim_folder in SHIM_FOLDERS)
            or not PROTECTED_NAMES.isdisjoint(spelling.split("/"))
            for spelling in spellings
        )


def is_path_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")

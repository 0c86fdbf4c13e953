"""Which rule would have let a call run: for the answer "always", and for the hint behind a denied call."""

import os
import posixpath
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from shim.core.policy.acts import CHANGERS, READERS, SHELL
from shim.core.policy.judge import Judge
from shim.core.policy.place import Place, below
from shim.core.policy.policy import Policy
from shim.core.policy.rules import read_rule


def granting_rule(tool: str, arguments: Mapping[str, Any], cwd: str) -> str | None:
    """The narrowest rule of use that lets a call run in the mode default; None where no rule is known to do it."""
    place = Place(cwd, os.path.expanduser("~"), (), os.path.realpath)
    for rule in _candidates(tool, arguments, cwd):
        policy = Policy(place=place, allow=(read_rule(rule),))
        if Judge(policy, asks_all=True).verdict(tool, arguments, "default").decided == "allow":
            return rule
    return None


def _candidates(tool: str, arguments: Mapping[str, Any], cwd: str) -> list[str]:
    if tool == SHELL:
        command = arguments.get("command")
        exact = isinstance(command, str) and not set(command) & set("*\n")  # a star would allow more than this command
        return [f"{SHELL}({command})"] if exact else []
    path = next(
        (value for key in ("file_path", "notebook_path", "path") if isinstance(value := arguments.get(key), str)), ""
    )
    if tool in CHANGERS or tool in READERS:
        kind = "Edit" if tool in CHANGERS else "Read"
        path = posixpath.normpath(posixpath.join(cwd, path))
        return [f"{kind}(./**)"] if below(path, cwd) else [f"{kind}(/{path})"] if not set(path) & set("*?[!\\") else []
    url = arguments.get("url")
    host = urlsplit(url).hostname if tool == "WebFetch" and isinstance(url, str) else None
    return [f"WebFetch(domain:{host})"] if host else [tool]

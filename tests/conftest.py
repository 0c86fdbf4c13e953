"""Fixtures and hooks for all tests."""

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sweeps
import typer
from box import TIMEOUT_S, Box
from fork_worker import use_forked_hosts
from hypothesis import HealthCheck, settings
from memory_box import MemoryBox
from suite_lock import SuiteBusyError, lock_path, take_suite_lock

from shim import adapters
from shim.core.adapter.adapter import Adapter
from shim.process import watchdog
from shim.profiles.load import profile_file
from shim.state import profile_files
from shim.state.own_profiles import BUNDLED_VENDORS

# The examples are always the same, even on a slow machine. A test may use more of them
# (`sweeps.limit_examples`).
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=SLOW
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=25)
# A bundled profile is compiled only once.
adapters.profile_loaders[0] = functools.cache(adapters.profile_loaders[0])
# Its TOML is parsed only once for all state folders.
profile_file.parse_profile_toml = profile_files.parse_profile_toml = functools.cache(
    profile_file.parse_profile_toml
)
load_uncached_vendor = profile_files.load_adapter_from_profile


def load_vendor(name: str, path: str, environment: Mapping[str, str], trace: Any = None) -> Adapter:
    """Return the adapter of a profile. A bundled profile is compiled once for all state folders."""
    if (
        trace is None
        and path == BUNDLED_VENDORS.get(name)
        and path not in profile_files._bundled_profiles
    ):
        return adapters.profile_loaders[0](name, path)
    return load_uncached_vendor(name, path, environment, trace)


profile_files.load_adapter_from_profile = load_vendor
# The parser of all commands is built only once.
typer.main.get_command = functools.cache(typer.main.get_command)
# If a watchdog does not exit in time, Python prints a warning, possibly during another test.
watchdog.EXIT_TIMEOUT_S = TIMEOUT_S

# The tests use their own terminals, or none. These variables describe the terminal of the person who runs
# them.
for name in ("TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)

# Under nohup, or in the background of a shell, signals are ignored. Programs that the tests start inherit
# SIG_IGN, but not a handler.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every sweep over everything: `make full`")
    parser.addoption(
        "--alone", action="store_true", help="wait for other complete runs: `make test`, `make e2e`"
    )
    parser.addoption(
        "--fixture",
        default="",
        metavar="NAME",
        help="loops run over fixtures with NAME in their name",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Apply options before any test module is imported, because a module may depend on them."""
    sweeps.full, sweeps.only = config.getoption("full"), config.getoption("fixture")
    settings.load_profile("steady" if sweeps.full else "quick")
    if not sweeps.full:
        use_forked_hosts()


@pytest.hookimpl(tryfirst=True)  # before xdist starts its workers
def pytest_sessionstart(session: pytest.Session) -> None:
    """Wait until another complete run of this user has ended."""
    config = session.config
    if not config.getoption("alone") or hasattr(config, "workerinput"):
        return
    report = functools.partial(print, file=sys.stderr, flush=True)
    try:
        config.suite_lock = take_suite_lock(lock_path(), report)  # type: ignore[attr-defined]
    except SuiteBusyError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.hookimpl(tryfirst=True)  # before `-k` and `-m` are applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that cover a rule of the contract (`-k contract` runs them), and leave out
    tests that only `make full` runs.
    """
    from tests.test_contract import NAMED

    for item in items:
        if f"{item.path.name}::{getattr(item, 'originalname', item.name)}" in NAMED:
            item.add_marker("contract")
    if not sweeps.full:
        later = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=later)


def pytest_collection_finish() -> None:
    """Exclude modules and items from later garbage collections, because they exist until the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Remove the profiles of the test's settings. Otherwise later tests would read them again for
    each vendor.
    """
    if len(adapters.profile_loaders) > 1:
        del adapters.profile_loaders[1:]
        adapters.VENDORS.clear()
        adapters.VENDORS.update(BUNDLED_VENDORS)


@pytest.fixture
def real_box(tmp_path: Path) -> Iterator[Box]:
    """Yield a box for real processes, with its own home, state folder and PATH."""
    box = Box(tmp_path)
    yield box
    box.close()


@pytest.fixture
def box(real_box: Box) -> Box:
    """Return `real_box`. A test module may replace this fixture with `quick_box` or `memory_box`."""
    return real_box


@pytest.fixture
def memory_box(tmp_path: Path) -> Iterator[MemoryBox]:
    """Yield a box whose programs and drop-in run in this process."""
    box = MemoryBox(tmp_path)
    yield box
    box.close()


@pytest.fixture
def quick_box(request: pytest.FixtureRequest) -> Box:
    """Return `memory_box`. With `--full`, return `real_box`, to show that the results are the same."""
    box: Box = request.getfixturevalue("real_box" if sweeps.full else "memory_box")
    return box


@pytest.fixture
def real_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start real host processes instead of forks, for tests of the start itself."""
    from shim.bridge import launch

    monkeypatch.setattr(
        launch, "_spawn_host", getattr(launch._spawn_host, "really", launch._spawn_host)
    )


@pytest.fixture
def local_box(real_box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Yield `real_box`, with its environment and working directory in this process. Restore the
    signal handlers.
    """
    for name in list(os.environ):
        if name.startswith(("SHIM_", "CLAUDE", "ANTHROPIC_", "XDG_")):
            monkeypatch.delenv(name)
    for name, value in real_box.build_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(real_box.cwd)
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield real_box
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def shim(
    local_box: Box, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, bytes, str]]:
    """Run `shim ARGS` in this process, in a wide terminal without colors. Return the exit status,
    stdout and stderr.
    """
    from shim.commands.cli import run_shim

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run_command(*args: str) -> tuple[int, bytes, str]:
        with pytest.raises(SystemExit) as exit_info:
            run_shim(list(args))
            raise SystemExit(0)
        output = capfdbinary.readouterr()
        return int(exit_info.value.code or 0), output.out, output.err.decode()

    return run_command


@pytest.fixture
def anyio_backend() -> str:
    """Use anyio's own plugin with asyncio only, because the drop-in runs on asyncio."""
    return "asyncio"

"""The diagnosis of the machine: settings, state, PATH, the `claude` that PATH finds, the vendor
that is chosen.
"""

import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec

from shim import __version__
from shim.bridge import registry
from shim.bridge.gateway.tokens import TokenFile
from shim.bridge.link import connect_to_session_blocking
from shim.bridge.registry import SessionRecord
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding
from shim.commands.sessions.serve import NEEDED
from shim.conversation.decide import Start
from shim.conversation.drivers.dry_launcher import DryLauncher
from shim.core.adapter.routing import listed
from shim.core.bridge.frames import WATCH
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.io.log import open_log
from shim.process.find_program import ignored_path, is_ours
from shim.process.install import found_first, read_installed, uncompiled
from shim.recording.open_recorder import unrecordable
from shim.state.config import Settings, load, state_directory
from shim.state.files import find_fault, private_directory, remove, write_file
from shim.state.own_vendors import check_names

WELCOME_SECONDS = 2.0  # for a host to say welcome, which takes a millisecond
ASKED = 20  # hosts that are asked
LISTED = 5  # sessions that are named
START_SECONDS = 10.0  # for `claude --version`, which takes 20 ms
TRIAL = ".doctor"  # a file that is written and removed again


def look_at_machine(settings: Settings, environment: Mapping[str, str], cwd: str) -> list[Finding]:
    """All findings but those of the settings file, in the order in which a person reads them."""
    return [
        _state(environment),
        *_log(settings),
        *_recordings(settings, environment),
        *look_at_bridge(environment),
        *look_at_gateway(environment),
        *(
            Finding(NOTE, f"the entry {entry or '(empty)'} of PATH is not searched: {why}")
            for entry, why in ignored_path(environment, cwd)
        ),
        *_claude(environment),
        _bytecode(),
    ]


def read_settings(environment: Mapping[str, str]) -> tuple[Settings | None, Finding]:
    """The settings as a turn reads them; None where a mistake in them refuses every turn."""
    try:
        settings = load(Invocation(), environment)
        check_names(settings)
    except FrontendError as error:
        return None, Finding(PROBLEM, str(error), error.hint or "correct it: every turn is refused")
    if os.path.exists(settings.path):
        return settings, Finding(OK, f"settings: {settings.path}")
    return settings, Finding(NOTE, f"settings: {settings.path} (it does not exist, and need not)")


def refusal(environment: Mapping[str, str], vendor: str | None = None) -> ShimError | None:
    """Why a turn of `vendor`, by default of the one that answers, would be refused; None if it
    would not.

    The turn is prepared by the code of every turn, up to the command that would be started.
    """
    path = found_first("claude", environment.get("PATH", ""))
    baked = read_installed(path)[1] if path and is_ours(path) else {}
    invocation = Invocation(prompt="hello", print_mode=True).with_flags(shim_vendor=vendor)
    try:
        Start(invocation, baked, launches=DryLauncher).plan()
    except ShimError as error:
        return error
    return None


def chosen_vendors(settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The vendors that answer by default: of SHIM_VENDOR, else of the installed `claude`, else of
    the settings.
    """
    if named := environment.get("SHIM_VENDOR"):
        return () if named.startswith("replay:") else listed(named)
    path = found_first("claude", environment.get("PATH", ""))
    baked = read_installed(path)[1].get("vendor") if path and is_ours(path) else None
    return listed(baked) if baked else settings.vendor


def _state(environment: Mapping[str, str]) -> Finding:
    """Whether state can be kept. Without it no session can be resumed, and every program is probed
    again.
    """
    state = state_directory(environment)
    folder = os.path.join(state, "probes")
    lost = "sessions cannot be resumed"
    if not private_directory(folder):
        path, error = find_fault(folder)
        if error is not None:
            text = f"nothing is kept, so {lost}: {path} cannot be created: {error.strerror}"
            return Finding(PROBLEM, text, "set SHIM_STATE to a folder that you can write to")
        text = f"nothing is kept, so {lost}: {path} must be your own folder that only you may enter"
        return Finding(
            PROBLEM, text, f"run `chmod 700 {path}`, or name another folder in SHIM_STATE"
        )
    if not write_file(folder, TRIAL, b""):
        text = f"nothing is kept, so {lost}: nothing can be written to {folder}"
        return Finding(PROBLEM, text, "free some space, or name another folder in SHIM_STATE")
    remove(os.path.join(folder, TRIAL))
    return Finding(OK, f"state: {state}, which only you may enter")


def _log(settings: Settings) -> list[Finding]:
    """Whether the log can be opened, which a turn does first."""
    if not settings.log:
        return []
    path = settings.log.partition(":")[2]
    there = os.path.lexists(path)
    try:
        open_log(settings.log)
    except FrontendError as error:
        return [
            Finding(
                PROBLEM,
                str(error),
                error.hint or "name another file in `log`: every turn is refused",
            )
        ]
    if path and not there:
        os.unlink(path)
    return [Finding(OK, f"the log goes to {path or 'stderr'}")]


def _recordings(settings: Settings, environment: Mapping[str, str]) -> list[Finding]:
    """Whether a run can be recorded where it would be."""
    place = environment.get("SHIM_RECORD") or settings.record
    if not place:
        return []
    why = unrecordable(place)
    if not why:
        return [Finding(OK, f"runs are recorded in {place}")]
    level = PROBLEM if settings.record_strict else WARNING
    return [
        Finding(
            level,
            f"runs cannot be recorded in {place}: {why}",
            "name another file or folder in `record`",
        )
    ]


def look_at_bridge(environment: Mapping[str, str]) -> list[Finding]:
    """The sessions that live on their own: how many, those whose host died, and hosts that do not
    answer.
    """
    known = registry.list_sessions(environment)
    if not known:
        return [Finding(NOTE, "no session lives on its own: `claude --bg PROMPT` begins one")]
    living = [one for one in known if one.is_running]
    found = [
        Finding(OK, f"sessions on their own: {len(living)} alive, {len(known) - len(living)} ended")
    ]
    if died := [
        one.short_id for one in known if one.metadata.get("detail") == registry.HOST_DIED_DETAIL
    ]:
        fix = "`claude respawn ID` goes on with one, `claude rm ID` forgets it"
        found.append(Finding(WARNING, f"the host of a session died: {_some(died)}", fix))
    if deaf := [one.short_id for one in living[:ASKED] if not _answers(one, environment)]:
        found.append(
            Finding(
                WARNING,
                f"the host of a session gives no answer: {_some(deaf)}",
                "`claude stop ID` ends it",
            )
        )
    if older := [one.short_id for one in living if one.metadata.get("version") != __version__]:
        fix = "`claude respawn ID` begins it again with this version"
        found.append(
            Finding(NOTE, f"the host of a session is of another version: {_some(older)}", fix)
        )
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (
        f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    )


def _answers(one: SessionRecord, environment: Mapping[str, str]) -> bool:
    try:
        with connect_to_session_blocking(
            one.session_id, environment, role=WATCH, timeout_s=WELCOME_SECONDS, replay=False
        ):
            return True
    except ShimError:
        return False


def look_at_gateway(environment: Mapping[str, str]) -> list[Finding]:
    """Whether a browser can be served, and whether the token is anybody else's to read."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    kept = TokenFile(environment)
    if kept.is_readable_by_others:
        fix = "run `shim bridge token --new` and `shim bridge token --watch --new`"
        return [
            Finding(PROBLEM, "the tokens of `shim bridge serve` can be read by other users", fix)
        ]
    if missing:
        fix = "pip install 'claude-shim[web]'" if kept.exists else ""
        text = f"no browser can be served: {', '.join(missing)} of the extra claude-shim[web] is missing"
        return [Finding(WARNING if kept.exists else NOTE, text, fix)]
    token = "its token is kept" if kept.exists else "its token is made when it is first asked for"
    return [Finding(OK, f"`shim bridge serve` can serve a browser, {token}")]


def _claude(environment: Mapping[str, str]) -> list[Finding]:
    """What a frontend starts when it calls `claude`."""
    path = found_first("claude", environment.get("PATH", ""))
    if path is None:
        return [Finding(NOTE, "PATH finds no claude", "`shim install` writes one")]
    if not is_ours(path):
        fix = "run `shim install` and put its folder before this one on PATH, or give its path to your frontend"
        return [Finding(NOTE, f"PATH finds {path}, which is not ours", fix)]
    python, baked = read_installed(path)
    if not os.access(python, os.X_OK):
        text = f"PATH finds {path}, which runs {python or 'nothing'}, which does not exist"
        return [Finding(PROBLEM, text, "run `shim install` again")]
    if wrong := _does_not_start(path):
        text = f"PATH finds {path}, which is ours and does not start: {wrong}"
        return [Finding(PROBLEM, text, "install claude-shim again, and run `shim install`")]
    said = ", ".join(f"{name} {value}" for name, value in baked.items())
    return [Finding(OK, f"PATH finds {path}, which is ours" + (f" ({said})" if said else ""))]


def _does_not_start(path: str) -> str:
    """Why an installed file does not even say its version; "" where it does."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    return "" if done.returncode == 0 else said[:200] or f"exit {done.returncode}"


def _bytecode() -> Finding:
    """Whether Python has to compile modules of ours whenever it starts."""
    missing = uncompiled()
    if not missing:
        return Finding(OK, "every module has its bytecode")
    text = f"the bytecode of {len(missing)} of our modules is missing or stale ({missing[0]}): turns start more slowly"
    return Finding(
        WARNING, text, "run `shim install` again, or `make setup` in a checkout, as its owner"
    )

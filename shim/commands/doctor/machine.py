"""The diagnosis of the machine: settings, state, PATH, the `claude` that PATH finds, the vendor that is chosen."""

import os
from collections.abc import Mapping

from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError
from shim.core.vendor.routing import listed
from shim.process.find_program import ignored_path, is_ours
from shim.process.install import found_first, read_installed, uncompiled
from shim.state.config import Settings, config_directory, load, state_directory
from shim.state.files import fault, private_directory, remove, write_file
from shim.state.own_vendors import check_names

TRIAL = ".doctor"  # a file that is written and removed again


def look_at_machine(settings: Settings, environment: Mapping[str, str], cwd: str) -> list[Finding]:
    """All findings, in the order in which a person reads them."""
    return [
        _settings_file(environment),
        _state(environment),
        *_recordings(settings, environment),
        *(
            Finding(NOTE, f"the entry {entry or '(empty)'} of PATH is not searched: {why}")
            for entry, why in ignored_path(environment, cwd)
        ),
        *_claude(environment),
        _bytecode(),
    ]


def read_settings(environment: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """The settings as a turn reads them, with the mistake that would refuse every turn."""
    try:
        settings = load(Invocation(), environment)
        check_names(settings)
        return settings, []
    except FrontendError as error:
        return Settings(), [Finding(PROBLEM, str(error), error.hint or "correct it: every turn is refused")]


def chosen_vendors(settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The vendors that answer by default: of SHIM_VENDOR, else of the installed `claude`, else of the settings."""
    if named := environment.get("SHIM_VENDOR"):
        return () if named.startswith("replay:") else listed(named)
    path = found_first("claude", environment.get("PATH", ""))
    baked = read_installed(path)[1].get("vendor") if path and is_ours(path) else None
    return listed(baked) if baked else settings.vendor


def _settings_file(environment: Mapping[str, str]) -> Finding:
    path = environment.get("SHIM_CONFIG") or os.path.join(config_directory(environment), "config.toml")
    return Finding(OK, f"settings: {path}" + ("" if os.path.exists(path) else " (it does not exist)"))


def _state(environment: Mapping[str, str]) -> Finding:
    """Whether state can be kept. Without it no session can be resumed, and every program is probed again."""
    state = state_directory(environment)
    folder = os.path.join(state, "probes")
    lost = "sessions cannot be resumed"
    if not private_directory(folder):
        path = fault(folder)
        text = f"nothing is kept, so {lost}: {path} must be your own folder that only you may enter"
        return Finding(PROBLEM, text, f"run `chmod 700 {path}`, or name another folder in SHIM_STATE")
    if not write_file(folder, TRIAL, b""):
        text = f"nothing is kept, so {lost}: nothing can be written to {folder}"
        return Finding(PROBLEM, text, "free some space, or name another folder in SHIM_STATE")
    remove(os.path.join(folder, TRIAL))
    return Finding(OK, f"state: {state}, which only you may enter")


def _recordings(settings: Settings, environment: Mapping[str, str]) -> list[Finding]:
    place = environment.get("SHIM_RECORD") or settings.record
    if not place:
        return []
    folder = place if os.path.isdir(place) else os.path.dirname(os.path.abspath(place))
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if os.path.isdir(folder) and os.access(folder, os.W_OK):
        return [Finding(OK, f"runs are recorded in {place}")]
    level = PROBLEM if settings.record_strict else WARNING
    return [Finding(level, f"runs cannot be recorded in {place}", "name another folder in `record`")]


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
    said = ", ".join(f"{name} {value}" for name, value in baked.items())
    return [Finding(OK, f"PATH finds {path}, which is ours" + (f" ({said})" if said else ""))]


def _bytecode() -> Finding:
    """Whether Python has to compile modules of ours whenever it starts."""
    missing = uncompiled()
    if not missing:
        return Finding(OK, "every module has its bytecode")
    text = f"the bytecode of {len(missing)} of our modules is missing or stale ({missing[0]}): turns start more slowly"
    return Finding(WARNING, text, "run `shim install` again, or `make setup` in a checkout, as its owner")

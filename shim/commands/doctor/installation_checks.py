"""Checks the machine for `shim doctor`: settings, state folder, PATH, the `claude` on PATH, and the
default vendor.
"""

import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec

from shim import __version__
from shim.bridge import registry
from shim.bridge.client import connect_to_session_blocking
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.bridge.listings import iterate_machine_listings
from shim.bridge.registry import SessionRecord
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, DiagnosisFinding
from shim.commands.sessions.serve import REQUIRED_PACKAGES
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.startup import prepare_conversation
from shim.core.bridge.frames import WATCH
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import parse_vendor_list
from shim.core.errors import FrontendError, ShimError
from shim.io.stderr import open_log
from shim.process.find_program import is_drop_in_script, list_ignored_path_entries
from shim.process.install import (
    describe_missing_python,
    find_first_program_on_path,
    list_uncompiled_modules,
    read_drop_in_settings,
)
from shim.process.installation import build_install_hint, find_checkout
from shim.recording.open_recorder import explain_unrecordable_path
from shim.state.config import ShimSettings, get_state_dir, load_shim_settings
from shim.state.files import ensure_private_dir, find_unusable_dir, remove_file, write_state_file
from shim.state.machines import build_check_command, load_machines, select_machines
from shim.state.own_profiles import check_vendor_names_in_settings

WELCOME_TIMEOUT_S = 2.0  # for a host's `welcome` frame, which takes a millisecond
MAX_PROBED_HOSTS = 20  # host processes that are contacted
MAX_LISTED_SESSIONS = 5  # sessions that a finding names
START_TIMEOUT_S = 10.0  # for `claude --version`, which takes 20 ms
TRIAL_FILE = ".doctor"  # a file that is written and removed to test the folder


def check_machine_setup(
    settings: ShimSettings, environment: Mapping[str, str], cwd: str
) -> list[DiagnosisFinding]:
    """Return all findings about the machine in reading order, except the finding about the settings
    file.
    """
    return [
        _check_state_folder(environment),
        *_check_log(settings),
        *_check_recording(settings, environment),
        *check_background_sessions(environment),
        *check_other_machines(settings, environment),
        *check_gateway_tokens(environment),
        *(
            DiagnosisFinding(NOTE, f"PATH entry {entry or '(empty)'} is ignored because {reason}")
            for entry, reason in list_ignored_path_entries(environment, cwd)
        ),
        *_check_claude(environment),
        _check_bytecode(),
    ]


def load_and_check_settings(
    environment: Mapping[str, str],
) -> tuple[ShimSettings | None, DiagnosisFinding]:
    """Return the settings for turns, with a finding about them. The settings are None if they
    contain an error that makes every turn fail.
    """
    try:
        settings = load_shim_settings(Invocation(), environment)
        check_vendor_names_in_settings(settings)
    except FrontendError as error:
        return None, DiagnosisFinding(
            PROBLEM,
            str(error),
            error.hint or "correct the settings: until then every turn is refused",
        )
    if os.path.exists(settings.path):
        return settings, DiagnosisFinding(OK, f"settings: {settings.path}")
    return settings, DiagnosisFinding(NOTE, f"settings: {settings.path} (not created; optional)")


def find_test_turn_startup_error(
    environment: Mapping[str, str], vendor: str | None = None
) -> ShimError | None:
    """Return the error that a turn with `vendor` would fail with at its start, or None. Without
    `vendor`, check the default vendor.

    The turn is prepared by the same code as a real turn. Only the last step, starting the command,
    is left out.
    """
    invocation = Invocation(prompt="hello", print_mode=True, shim_vendor=vendor)
    try:
        prepare_conversation(
            invocation, _read_installed_options(environment), launcher_class=DryRunLauncher
        ).plan_first_child_launch()
    except ShimError as error:
        return error
    return None


def list_default_vendors(settings: ShimSettings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the default vendors from SHIM_VENDOR, from the installed `claude`, or from the
    settings.
    """
    if vendor_variable := environment.get("SHIM_VENDOR"):
        if vendor_variable.startswith("replay:"):
            return ()
        return parse_vendor_list(vendor_variable)
    installed_vendor = _read_installed_options(environment).get("vendor")
    if installed_vendor:
        return parse_vendor_list(installed_vendor)
    return settings.vendor


def _read_installed_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the drop-in on PATH, or {} if `claude` is another program."""
    path = find_first_program_on_path("claude", environment.get("PATH", ""))
    if path and is_drop_in_script(path):
        return read_drop_in_settings(path)[1]
    return {}


def _check_state_folder(environment: Mapping[str, str]) -> DiagnosisFinding:
    """Check whether state can be stored. Without state, no session can be resumed, and every vendor
    program is probed again.
    """
    state = get_state_dir(environment)
    folder = os.path.join(state, "probes")
    consequence = "sessions cannot be resumed"
    if not ensure_private_dir(folder):
        path, error = find_unusable_dir(folder)
        if error is not None:
            text = (
                f"state cannot be stored, so {consequence}: {path} cannot be created: "
                f"{error.strerror}"
            )
            return DiagnosisFinding(PROBLEM, text, "set SHIM_STATE to a writable folder")
        text = (
            f"state cannot be stored, so {consequence}: {path} must be owned by you and "
            "private (mode 0700)"
        )
        return DiagnosisFinding(
            PROBLEM, text, f"run `chmod 700 {path}`, or set SHIM_STATE to another folder"
        )
    if not write_state_file(folder, TRIAL_FILE, b""):
        text = f"state cannot be stored, so {consequence}: cannot write to {folder}"
        return DiagnosisFinding(
            PROBLEM, text, "free some space, or set SHIM_STATE to another folder"
        )
    remove_file(os.path.join(folder, TRIAL_FILE))
    return DiagnosisFinding(OK, f"state: {state} (private, mode 0700)")


def _check_log(settings: ShimSettings) -> list[DiagnosisFinding]:
    """Check whether the log file can be opened. Every turn opens it first."""
    if not settings.log:
        return []
    path = settings.log.partition(":")[2]
    existed = os.path.lexists(path)
    try:
        open_log(settings.log)
    except FrontendError as error:
        return [
            DiagnosisFinding(
                PROBLEM,
                str(error),
                error.hint or "set `log` to another file: until then every turn is refused",
            )
        ]
    if path and not existed:
        os.unlink(path)
    return [DiagnosisFinding(OK, f"log: {path or 'stderr'}")]


def _check_recording(
    settings: ShimSettings, environment: Mapping[str, str]
) -> list[DiagnosisFinding]:
    """Check whether recordings can be written to their folder."""
    path = environment.get("SHIM_RECORD") or settings.record
    if not path:
        return []
    reason = explain_unrecordable_path(path)
    if not reason:
        return [DiagnosisFinding(OK, f"runs are recorded to {path}")]
    level = WARNING
    if settings.record_strict:
        level = PROBLEM
    return [
        DiagnosisFinding(
            level,
            f"runs cannot be recorded to {path}: {reason}",
            "set `record` to another file or folder",
        )
    ]


def check_other_machines(
    settings: ShimSettings, environment: Mapping[str, str]
) -> list[DiagnosisFinding]:
    """Check the machines of the settings file: which answer, and which have another version."""
    if not settings.path:
        return []  # another finding reports that the settings file cannot be loaded
    try:
        load_machines(environment)
    except FrontendError as error:
        return [DiagnosisFinding(PROBLEM, str(error), error.hint)]
    findings = []
    machines = select_machines(None, environment)
    for listing in iterate_machine_listings(machines, environment, includes_ended=False):
        name = listing.machine.name
        if listing.problem:
            hint = f"try `{build_check_command(listing.machine)}`"
            finding = DiagnosisFinding(
                WARNING, f"the machine {name} does not answer: {listing.problem}", hint
            )
        elif listing.version != __version__:
            version = "an unknown version"
            if listing.version:
                version = f"version {listing.version}"
            finding = DiagnosisFinding(NOTE, f"the machine {name} has {version} of the shim")
        else:
            count = len(listing.sessions)
            finding = DiagnosisFinding(OK, f"the machine {name} answers: {count} running sessions")
        findings.append(finding)
    return findings


def check_background_sessions(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check the background sessions: how many there are, which have a dead host process, and which
    hosts do not respond.
    """
    try:
        sessions = registry.list_sessions(environment)
    except registry.SessionScanError as error:
        return [DiagnosisFinding(PROBLEM, str(error))]
    if not sessions:
        return [DiagnosisFinding(NOTE, "no background sessions; `claude --bg PROMPT` starts one")]
    running = [session for session in sessions if session.is_running]
    findings = [
        DiagnosisFinding(
            OK, f"background sessions: {len(running)} running, {len(sessions) - len(running)} ended"
        )
    ]
    crashed = [
        session
        for session in sessions
        if session.metadata.get("detail") == registry.HOST_DIED_DETAIL
    ]
    silent = [
        session for session in running[:MAX_PROBED_HOSTS] if not _is_answering(session, environment)
    ]
    other_version = [
        session for session in running if session.metadata.get("version") != __version__
    ]
    for level, problem, affected, fix in (
        (
            WARNING,
            "the host process of a session crashed",
            crashed,
            "`claude respawn ID` restarts a session, `claude rm ID` removes it",
        ),
        (
            WARNING,
            "the host process of a session does not respond",
            silent,
            "`claude stop ID` stops the session",
        ),
        (
            NOTE,
            "the host process of a session runs another version of claude-shim",
            other_version,
            "`claude respawn ID` restarts the session with this version",
        ),
    ):
        if affected:
            findings.append(DiagnosisFinding(level, f"{problem}: {_format_ids(affected)}", fix))
    return findings


def _format_ids(sessions: list[SessionRecord]) -> str:
    ids = ", ".join(session.short_id for session in sessions[:MAX_LISTED_SESSIONS])
    if len(sessions) <= MAX_LISTED_SESSIONS:
        return ids
    return f"{ids} and {len(sessions) - MAX_LISTED_SESSIONS} more"


def _is_answering(session: SessionRecord, environment: Mapping[str, str]) -> bool:
    try:
        with connect_to_session_blocking(
            session.session_id, environment, role=WATCH, timeout_s=WELCOME_TIMEOUT_S, replay=False
        ):
            return True
    except ShimError:
        return False


def check_gateway_tokens(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check whether the gateway can be used, and whether other users can read its token."""
    missing = [package for package in REQUIRED_PACKAGES if find_spec(package) is None]
    token_file = GatewayTokenFile(environment)
    if token_file.is_readable_by_others:
        fix = "run `shim bridge token --new` and `shim bridge token --watch --new`"
        return [
            DiagnosisFinding(PROBLEM, "other users can read the tokens of `shim bridge serve`", fix)
        ]
    if missing:
        text = f"the web UI is not available: {', '.join(missing)} is not installed"
        return [DiagnosisFinding(WARNING, text, build_install_hint())]
    token_text = "a token is created on first use"
    if token_file.exists:
        token_text = "a token exists"
    return [DiagnosisFinding(OK, f"`shim bridge serve` is available; {token_text}")]


def _check_claude(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check which program frontends start as `claude`."""
    path = find_first_program_on_path("claude", environment.get("PATH", ""))
    if path is None:
        return [DiagnosisFinding(NOTE, "no claude on PATH", "`shim install` installs the drop-in")]
    if not is_drop_in_script(path):
        fix = (
            "run `shim install` and put its folder first on PATH, or configure your frontend to run "
            "the drop-in"
        )
        return [
            DiagnosisFinding(
                NOTE, f"the claude on PATH is {path}, which is not claude-shim's drop-in", fix
            )
        ]
    python, installed_options = read_drop_in_settings(path)
    if not os.access(python, os.X_OK):
        text = f"the claude on PATH is {path}, but {describe_missing_python(python)}"
        return [DiagnosisFinding(PROBLEM, text, "run `shim install` again")]
    if start_error := _find_start_error(path):
        text = f"the claude on PATH is {path}, claude-shim's drop-in, which fails to start: {start_error}"
        return [DiagnosisFinding(PROBLEM, text, f"{build_install_hint()} and then `shim install`")]
    options_text = ", ".join(f"{name} {value}" for name, value in installed_options.items())
    return [
        DiagnosisFinding(
            OK,
            f"the claude on PATH is {path}, claude-shim's drop-in"
            + (f" ({options_text})" if options_text else ""),
        )
    ]


def _find_start_error(path: str) -> str:
    """Return the error that an installed file fails with when its version is requested, or ""."""
    try:
        result = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    first_line = result.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    if result.returncode == 0:
        return ""
    return first_line[:200] or f"exit {result.returncode}"


def _check_bytecode() -> DiagnosisFinding:
    """Check whether Python has to compile modules of the shim at every start."""
    missing = list_uncompiled_modules()
    if not missing:
        return DiagnosisFinding(OK, "all modules are compiled")
    text = (
        f"{len(missing)} modules of claude-shim are not compiled or out of date "
        f"({missing[0]}); turns start more slowly"
    )
    make_setup = ""
    if checkout := find_checkout():
        make_setup = f", or `make setup` in {checkout}"
    return DiagnosisFinding(
        WARNING, text, f"as the owner of the files, run `shim install` again{make_setup}"
    )

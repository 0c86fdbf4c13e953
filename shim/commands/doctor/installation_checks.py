"""The diagnosis of the machine: settings, state, PATH, the `claude` on PATH, and the chosen vendor."""

import os
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec

from shim import __version__
from shim.bridge import registry
from shim.bridge.client import connect_to_session_blocking
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.bridge.registry import SessionRecord
from shim.commands.doctor.findings import NOTE, OK, PROBLEM, WARNING, DiagnosisFinding
from shim.commands.sessions.serve import REQUIRED_PACKAGES
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.startup import prepare_conversation
from shim.core.bridge.frames import WATCH
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.models import parse_vendor_list
from shim.core.errors import FrontendError, ShimError
from shim.io.stderr import open_log
from shim.process.find_program import is_drop_in_script, list_ignored_path_entries
from shim.process.install import (
    find_first_program_on_path,
    list_uncompiled_modules,
    read_drop_in_settings,
)
from shim.recording.open_recorder import explain_unrecordable_path
from shim.state.config import ShimSettings, get_state_dir, load_shim_settings
from shim.state.files import ensure_private_dir, find_unusable_dir, remove_file, write_state_file
from shim.state.own_profiles import check_vendor_names_in_settings

WELCOME_TIMEOUT_S = 2.0  # for a host to say welcome, which takes a millisecond
MAX_PROBED_HOSTS = 20  # hosts that are asked
MAX_LISTED_SESSIONS = 5  # sessions that are named
START_TIMEOUT_S = 10.0  # for `claude --version`, which takes 20 ms
TRIAL_FILE = ".doctor"  # a file that is written and removed again


def check_machine_setup(
    settings: ShimSettings, environment: Mapping[str, str], cwd: str
) -> list[DiagnosisFinding]:
    """Return all findings but those about the settings file, in reading order."""
    return [
        _check_state_folder(environment),
        *_check_log(settings),
        *_check_recording(settings, environment),
        *check_background_sessions(environment),
        *check_gateway_tokens(environment),
        *(
            DiagnosisFinding(
                NOTE, f"the entry {entry or '(empty)'} of PATH is not searched: {reason}"
            )
            for entry, reason in list_ignored_path_entries(environment, cwd)
        ),
        *_check_claude(environment),
        _check_bytecode(),
    ]


def load_and_check_settings(
    environment: Mapping[str, str],
) -> tuple[ShimSettings | None, DiagnosisFinding]:
    """Return the settings of a turn, or None if an error in them refuses every turn."""
    try:
        settings = load_shim_settings(Invocation(), environment)
        check_vendor_names_in_settings(settings)
    except FrontendError as error:
        return None, DiagnosisFinding(
            PROBLEM, str(error), error.hint or "correct it: every turn is refused"
        )
    if os.path.exists(settings.path):
        return settings, DiagnosisFinding(OK, f"settings: {settings.path}")
    return settings, DiagnosisFinding(
        NOTE, f"settings: {settings.path} (it does not exist, and need not)"
    )


def find_test_turn_startup_error(
    environment: Mapping[str, str], vendor: str | None = None
) -> ShimError | None:
    """Return why a turn of `vendor`, by default of the default vendor, would be refused, or None.

    The turn is prepared by the code of every turn, up to the command that would be started.
    """
    path = find_first_program_on_path("claude", environment.get("PATH", ""))
    installed_options = read_drop_in_settings(path)[1] if path and is_drop_in_script(path) else {}
    invocation = Invocation(prompt="hello", print_mode=True, shim_vendor=vendor)
    try:
        prepare_conversation(
            invocation, installed_options, launcher_class=DryRunLauncher
        ).plan_first_child_launch()
    except ShimError as error:
        return error
    return None


def list_default_vendors(settings: ShimSettings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the default vendors: from SHIM_VENDOR, from the installed `claude`, or from the
    settings.
    """
    if vendor_variable := environment.get("SHIM_VENDOR"):
        return () if vendor_variable.startswith("replay:") else parse_vendor_list(vendor_variable)
    path = find_first_program_on_path("claude", environment.get("PATH", ""))
    installed_vendor = (
        read_drop_in_settings(path)[1].get("vendor") if path and is_drop_in_script(path) else None
    )
    return parse_vendor_list(installed_vendor) if installed_vendor else settings.vendor


def _check_state_folder(environment: Mapping[str, str]) -> DiagnosisFinding:
    """Check whether state can be stored. Without it no session can be resumed, and every program is
    asked again.
    """
    state = get_state_dir(environment)
    folder = os.path.join(state, "probes")
    consequence = "sessions cannot be resumed"
    if not ensure_private_dir(folder):
        path, error = find_unusable_dir(folder)
        if error is not None:
            text = f"nothing is kept, so {consequence}: {path} cannot be created: {error.strerror}"
            return DiagnosisFinding(
                PROBLEM, text, "set SHIM_STATE to a folder that you can write to"
            )
        text = f"nothing is kept, so {consequence}: {path} must be your own folder that only you may enter"
        return DiagnosisFinding(
            PROBLEM, text, f"run `chmod 700 {path}`, or name another folder in SHIM_STATE"
        )
    if not write_state_file(folder, TRIAL_FILE, b""):
        text = f"nothing is kept, so {consequence}: nothing can be written to {folder}"
        return DiagnosisFinding(
            PROBLEM, text, "free some space, or name another folder in SHIM_STATE"
        )
    remove_file(os.path.join(folder, TRIAL_FILE))
    return DiagnosisFinding(OK, f"state: {state}, which only you may enter")


def _check_log(settings: ShimSettings) -> list[DiagnosisFinding]:
    """Check whether the log can be opened, which a turn does first."""
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
                error.hint or "name another file in `log`: every turn is refused",
            )
        ]
    if path and not existed:
        os.unlink(path)
    return [DiagnosisFinding(OK, f"the log goes to {path or 'stderr'}")]


def _check_recording(
    settings: ShimSettings, environment: Mapping[str, str]
) -> list[DiagnosisFinding]:
    """Check whether a run can be recorded in its folder."""
    path = environment.get("SHIM_RECORD") or settings.record
    if not path:
        return []
    reason = explain_unrecordable_path(path)
    if not reason:
        return [DiagnosisFinding(OK, f"runs are recorded in {path}")]
    level = PROBLEM if settings.record_strict else WARNING
    return [
        DiagnosisFinding(
            level,
            f"runs cannot be recorded in {path}: {reason}",
            "name another file or folder in `record`",
        )
    ]


def check_background_sessions(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check the background sessions: how many there are, whose host has died, and which hosts do
    not answer.
    """
    sessions = registry.list_sessions(environment)
    if not sessions:
        return [
            DiagnosisFinding(NOTE, "no session lives on its own: `claude --bg PROMPT` begins one")
        ]
    running = [session for session in sessions if session.is_running]
    findings = [
        DiagnosisFinding(
            OK, f"sessions on their own: {len(running)} alive, {len(sessions) - len(running)} ended"
        )
    ]
    if crashed_ids := [
        session.short_id
        for session in sessions
        if session.metadata.get("detail") == registry.HOST_DIED_DETAIL
    ]:
        fix = "`claude respawn ID` goes on with one, `claude rm ID` forgets it"
        findings.append(
            DiagnosisFinding(
                WARNING, f"the host of a session died: {_format_names(crashed_ids)}", fix
            )
        )
    if silent_ids := [
        session.short_id
        for session in running[:MAX_PROBED_HOSTS]
        if not _is_answering(session, environment)
    ]:
        findings.append(
            DiagnosisFinding(
                WARNING,
                f"the host of a session gives no answer: {_format_names(silent_ids)}",
                "`claude stop ID` ends it",
            )
        )
    if outdated_ids := [
        session.short_id for session in running if session.metadata.get("version") != __version__
    ]:
        fix = "`claude respawn ID` begins it again with this version"
        findings.append(
            DiagnosisFinding(
                NOTE,
                f"the host of a session is of another version: {_format_names(outdated_ids)}",
                fix,
            )
        )
    return findings


def _format_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_LISTED_SESSIONS]) + (
        f" and {len(names) - MAX_LISTED_SESSIONS} more" if len(names) > MAX_LISTED_SESSIONS else ""
    )


def _is_answering(session: SessionRecord, environment: Mapping[str, str]) -> bool:
    try:
        with connect_to_session_blocking(
            session.session_id, environment, role=WATCH, timeout_s=WELCOME_TIMEOUT_S, replay=False
        ):
            return True
    except ShimError:
        return False


def check_gateway_tokens(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check whether a browser can be served, and whether another user can read the token."""
    missing = [package for package in REQUIRED_PACKAGES if find_spec(package) is None]
    token_file = GatewayTokenFile(environment)
    if token_file.is_readable_by_others:
        fix = "run `shim bridge token --new` and `shim bridge token --watch --new`"
        return [
            DiagnosisFinding(
                PROBLEM, "the tokens of `shim bridge serve` can be read by other users", fix
            )
        ]
    if missing:
        fix = "pip install 'claude-shim[web]'" if token_file.exists else ""
        text = f"no browser can be served: {', '.join(missing)} of the extra claude-shim[web] is missing"
        return [DiagnosisFinding(WARNING if token_file.exists else NOTE, text, fix)]
    token_text = (
        "its token is kept" if token_file.exists else "its token is made when it is first asked for"
    )
    return [DiagnosisFinding(OK, f"`shim bridge serve` can serve a browser, {token_text}")]


def _check_claude(environment: Mapping[str, str]) -> list[DiagnosisFinding]:
    """Check what a frontend starts when it calls `claude`."""
    path = find_first_program_on_path("claude", environment.get("PATH", ""))
    if path is None:
        return [DiagnosisFinding(NOTE, "PATH finds no claude", "`shim install` writes one")]
    if not is_drop_in_script(path):
        fix = "run `shim install` and put its folder before this one on PATH, or give its path to your frontend"
        return [DiagnosisFinding(NOTE, f"PATH finds {path}, which is not ours", fix)]
    python, installed_options = read_drop_in_settings(path)
    if not os.access(python, os.X_OK):
        text = f"PATH finds {path}, which runs {python or 'nothing'}, which does not exist"
        return [DiagnosisFinding(PROBLEM, text, "run `shim install` again")]
    if start_error := _find_start_error(path):
        text = f"PATH finds {path}, which is ours and does not start: {start_error}"
        return [
            DiagnosisFinding(PROBLEM, text, "install claude-shim again, and run `shim install`")
        ]
    options_text = ", ".join(f"{name} {value}" for name, value in installed_options.items())
    return [
        DiagnosisFinding(
            OK, f"PATH finds {path}, which is ours" + (f" ({options_text})" if options_text else "")
        )
    ]


def _find_start_error(path: str) -> str:
    """Return why an installed file does not report its version, or ""."""
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
    return "" if result.returncode == 0 else first_line[:200] or f"exit {result.returncode}"


def _check_bytecode() -> DiagnosisFinding:
    """Check whether Python must compile modules of the shim at each start."""
    missing = list_uncompiled_modules()
    if not missing:
        return DiagnosisFinding(OK, "every module has its bytecode")
    text = f"the bytecode of {len(missing)} of our modules is missing or stale ({missing[0]}): turns start more slowly"
    return DiagnosisFinding(
        WARNING, text, "run `shim install` again, or `make setup` in a checkout, as its owner"
    )

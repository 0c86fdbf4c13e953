"""Builds the diagnosis of `shim doctor`: what works on this machine, and how to fix the rest.

The version and the login of each installed program are checked again. No turn is started, and no
model is called.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from shim.adapters import VENDORS, get_adapter
from shim.commands.doctor.abilities import list_workspace_trust_args
from shim.commands.doctor.findings import (
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Diagnosis,
    DiagnosisFinding,
    VendorDiagnosis,
    has_no_problem,
)
from shim.commands.doctor.installation_checks import (
    check_machine_setup,
    find_test_turn_startup_error,
    list_default_vendors,
    load_and_check_settings,
)
from shim.commands.doctor.vendor_rows import (
    MAX_CONCURRENT_PROBES,
    can_ask_permission_in_conversation,
    check_probed_version,
    describe_missing_permission_prompts,
)
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.versions import VersionCheck, format_newest_tested_version
from shim.core.errors import ShimError, format_spelling_suggestion
from shim.process import probe as probes
from shim.process.environment import build_child_environment
from shim.process.find_program import list_ignored_path_entries
from shim.process.probe import ProgramProbe, create_program_probe, find_unsupported_argument
from shim.process.twin_vendors import choose_adapter_of_installed_cli
from shim.state import own_profiles
from shim.state.config import ShimSettings, VendorSettings
from shim.state.stored_versions import remove_executed_denied_call_records

EXAMPLE_VENDOR = "qwen"  # suggested if no vendor is installed
MAX_SHEBANG_BYTES = 256  # Linux does not read a longer shebang line


def build_diagnosis(
    vendor_names: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    timeout_s: float | None = None,
    login_error_messages: Mapping[str, str] = {},
) -> Diagnosis:
    """Check the machine and all vendors, or only the vendors in `vendor_names`. Raise FrontendError
    for an unknown vendor.

    The vendors in `vendor_names` are required, or the default vendors if no names are given. A
    failure of a required vendor is a problem; a failure of any other vendor is a warning.
    `timeout_s` limits how long each program may take to report its version. `login_error_messages`
    contains the vendors that were not logged in during their last run, with their messages.
    """
    for name in vendor_names:
        if name not in VENDORS:
            get_adapter(name)
    adapters, profile_errors = own_profiles.load_adapters_and_errors()
    loaded_settings, settings_finding = load_and_check_settings(environment)
    settings = loaded_settings or ShimSettings()
    required_names = tuple(vendor_names) or list_default_vendors(settings, environment)
    # SHIM_BIN only applies to the first required vendor.
    other_environment = {**environment, "SHIM_BIN": ""}

    def check_adapter(adapter: Adapter) -> VendorDiagnosis:
        if adapter.name in required_names[:1]:
            search_environment = environment
        else:
            search_environment = other_environment
        login_refusal = login_error_messages.get(adapter.name)
        return check_vendor(
            adapter,
            settings.get_vendor_settings(adapter.name),
            search_environment,
            cwd,
            is_required=adapter.name in required_names,
            timeout_s=timeout_s,
            login_error_message=login_refusal,
        )

    with ThreadPoolExecutor(MAX_CONCURRENT_PROBES) as pool:
        reports = list(
            pool.map(
                check_adapter,
                [adapters[name] for name in vendor_names or adapters if name in adapters],
            )
        )
    machine_findings = [settings_finding, *check_machine_setup(settings, environment, cwd)]
    if loaded_settings is not None and required_names:
        machine_findings += _add_refusals(required_names, vendor_names, reports, environment)
    for name, error in profile_errors.items():
        level = WARNING
        if not vendor_names or name in vendor_names:
            level = PROBLEM
        machine_findings.append(
            DiagnosisFinding(level, str(error), error.hint or "correct the file, or remove it")
        )
    if not vendor_names:
        if loaded_settings is not None or required_names:
            machine_findings += _check_choice(required_names, reports)
        reports = _downgrade_problems(required_names, reports)
    return Diagnosis(machine_findings, reports)


def _add_refusals(
    required_names: Sequence[str],
    names: Sequence[str],
    reports: Sequence[VendorDiagnosis],
    environment: Mapping[str, str],
) -> list[DiagnosisFinding]:
    """Add a finding to a required vendor's report if a turn with this vendor would fail. The
    finding is the error of that turn. Return the errors that do not belong to a single vendor.

    An error is only reported once.
    """
    reported_texts = {finding.text for report in reports for finding in report.findings}
    for report in reports:
        error = None
        if report.name in required_names:
            error = find_test_turn_startup_error(environment, report.name)
        if error is not None and str(error) not in reported_texts:
            reported_texts.add(str(error))
            report.findings.append(DiagnosisFinding(PROBLEM, str(error), error.hint))
    error = None
    if not names:
        error = find_test_turn_startup_error(environment)
    if (
        error is None
        or str(error) in reported_texts
        or any(name not in VENDORS for name in required_names)
    ):
        return []
    return [DiagnosisFinding(PROBLEM, str(error), error.hint)]


def _check_choice(
    required_names: Sequence[str], reports: Sequence[VendorDiagnosis]
) -> list[DiagnosisFinding]:
    """Return findings if no default vendor is set or a required vendor is unknown."""
    if not required_names:
        return [
            explain_missing_default_vendor(
                [report.name for report in reports if report.program not in (None, "bundled")]
            )
        ]
    fix = f"the vendors are: {', '.join(VENDORS)}"
    unknown = [name for name in required_names if name not in VENDORS]
    return [
        DiagnosisFinding(
            PROBLEM,
            f"unknown vendor {name[:40]!r}{format_spelling_suggestion(name, VENDORS)}",
            fix,
        )
        for name in unknown
    ]


def explain_missing_default_vendor(installed_vendors: Sequence[str]) -> DiagnosisFinding:
    """Return the finding for a user who has not set a default vendor. `installed_vendors` are the
    vendors whose programs were found.
    """
    if installed_vendors:
        fix = (
            f"set a default vendor with `shim install --vendor {installed_vendors[0]}`, SHIM_VENDOR or `vendor` in "
            "config.toml, or pass --shim-vendor for each run"
        )
        return DiagnosisFinding(
            WARNING, f"no default vendor is set; found on PATH: {', '.join(installed_vendors)}", fix
        )
    install_command = get_adapter(EXAMPLE_VENDOR).cli.install_command
    fix = (
        f"install a vendor, for example {EXAMPLE_VENDOR} with `{install_command}`; `shim install "
        "--vendor demo` needs no agent CLI"
    )
    return DiagnosisFinding(
        PROBLEM, "no default vendor is set, and no vendor's program was found on PATH", fix
    )


def _downgrade_problems(
    required_names: Sequence[str], reports: list[VendorDiagnosis]
) -> list[VendorDiagnosis]:
    """Turn problems into warnings if at least one required vendor works. In a fallback list, the
    next vendor answers when a vendor cannot start.
    """
    if not any(
        has_no_problem(report.findings) for report in reports if report.name in required_names
    ):
        return reports
    new_levels = {PROBLEM: WARNING}
    return [
        report._replace(
            findings=[
                finding._replace(level=new_levels.get(finding.level, finding.level))
                for finding in report.findings
            ]
        )
        for report in reports
    ]


class CheckedProgram(NamedTuple):
    """What the check of a vendor's program has found."""

    program: str | None = None  # the path of the program, or None if it is not installed
    version: str | None = None
    version_check: VersionCheck = VersionCheck()
    findings: Sequence[DiagnosisFinding] = ()


def check_vendor(
    adapter: Adapter,
    vendor_settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    is_required: bool = True,
    timeout_s: float | None = None,
    login_error_message: str | None = None,
) -> VendorDiagnosis:
    """Return the report about one vendor. If `is_required` is set, failures are problems.
    `timeout_s` and `login_error_message` are described in `build_diagnosis`.
    """
    adapter = choose_adapter_of_installed_cli(adapter, vendor_settings, environment, cwd).copy_with(
        name=adapter.name
    )
    findings = list[DiagnosisFinding]()
    note = adapter.cli.unreleased_note
    if note:
        findings.append(DiagnosisFinding(WARNING if is_required else NOTE, note))
    checked = CheckedProgram()
    if adapter.cli.bundled_module:
        checked = CheckedProgram("bundled")
    elif is_required or vendor_settings.bin or not note:
        checked = _check_program(
            adapter,
            vendor_settings,
            environment,
            cwd,
            is_required=is_required,
            timeout_s=timeout_s,
            login_error_message=login_error_message,
        )
    findings += checked.findings
    is_unattended = adapter.unattended and not checked.version_check.distrust
    if is_unattended and (is_required or checked.program is not None):
        unsupported_arg = find_unsupported_argument(adapter, vendor_settings, environment, cwd)
        findings.append(_build_unattended_finding(adapter, vendor_settings, unsupported_arg))
    if checked.program is not None:
        findings += _check_trust_prompt(adapter, vendor_settings)
    return VendorDiagnosis(
        adapter.name,
        checked.program,
        checked.version,
        adapter.version_probe.tested_range,
        adapter.version_probe.classify_version(checked.version),
        adapter.unattended or bool(checked.version_check.distrust),
        findings,
    )


def _check_program(
    adapter: Adapter,
    vendor_settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    is_required: bool,
    timeout_s: float | None,
    login_error_message: str | None,
) -> CheckedProgram:
    """Check that a vendor's program is installed and can run, then its version and its login."""
    level = WARNING
    if is_required:
        level = PROBLEM
    try:
        probe = create_program_probe(
            adapter,
            vendor_settings,
            environment,
            cwd,
            timeout_s or probes.INTERACTIVE_TIMEOUT_S,
        )
    except ShimError as error:
        missing_level = NOTE
        if is_required or vendor_settings.bin or vendor_settings.launcher:
            missing_level = level
        missing_program = DiagnosisFinding(missing_level, str(error), error.hint)
        ignored_programs = _list_ignored_programs(adapter, environment, cwd, level)
        return CheckedProgram(findings=[missing_program, *ignored_programs])
    child_environment = build_child_environment(adapter, vendor_settings, environment)
    findings = _check_interpreter(probe.program, child_environment, level)
    if findings or adapter.cli.unreleased_note:  # an unreleased program has no tested versions
        return CheckedProgram(probe.program, findings=findings)
    version = probe.ask_version(adapter.version_probe, refresh=True)
    if version:
        _cache_answers(adapter, probe, caches_models=is_required)
    version_check = check_probed_version(adapter, vendor_settings, probe, version)
    findings = _check_version_and_promises(
        adapter, vendor_settings, version_check, version, probe, level, environment
    )
    findings += _check_login(adapter, probe if version else None, login_error_message, level)
    return CheckedProgram(probe.program, version, version_check, findings)


def _cache_answers(adapter: Adapter, probe: ProgramProbe, *, caches_models: bool) -> None:
    """Ask the program what turns need to know. The probe stores the answers."""
    if adapter.cli.two_way_help_texts:
        probe.get_help_text()
    if caches_models:
        probe.cache_models(adapter.cli.model_probe)


def _check_version_and_promises(
    adapter: Adapter,
    vendor_settings: VendorSettings,
    version_check: VersionCheck,
    version: str | None,
    probe: ProgramProbe,
    level: str,
    environment: Mapping[str, str],
) -> list[DiagnosisFinding]:
    """Return the findings about a program's version, and about what its profile guarantees."""
    findings = []
    is_silent = version is None and not probe.has_answer
    # In all other cases, `_check_promises` reports the version.
    if is_silent or not version_check.distrust:
        findings += _check_version(adapter, version, probe, level)
    reason = version_check.distrust
    if is_silent:
        reason = "the program's version is not recognized"
    return findings + _check_promises(adapter, vendor_settings, version_check, reason, environment)


def _list_ignored_programs(
    adapter: Adapter, environment: Mapping[str, str], cwd: str, level: str
) -> list[DiagnosisFinding]:
    """Return findings about programs on PATH that have the vendor's name but are ignored."""
    findings = []
    for directory, reason in list_ignored_path_entries(environment, cwd):
        for name in adapter.programs:
            path = os.path.join(os.path.abspath(os.path.join(cwd, directory)), name)
            if os.path.isfile(path):
                text = f"{path} is on PATH but ignored: {reason}"
                findings.append(
                    DiagnosisFinding(
                        level,
                        text,
                        f"to use this program, set [vendors.{adapter.name}] bin = {path!r}",
                    )
                )
    return findings


def _check_interpreter(
    program: str, environment: Mapping[str, str], level: str
) -> list[DiagnosisFinding]:
    """Check that a script's interpreter is installed. For nearly all vendors, the interpreter is
    Node.
    """
    try:
        with open(program, "rb") as file:
            first_bytes = file.read(MAX_SHEBANG_BYTES)
    except OSError:
        return []
    args = []
    if first_bytes.startswith(b"#!"):
        args = first_bytes[2:].split(b"\n")[0].decode("utf-8", "replace").split()
    if not args:
        return []
    interpreter = args[0]
    if os.path.basename(interpreter) == "env":
        interpreter = next(
            (arg for arg in args[1:] if not arg.startswith("-") and "=" not in arg), ""
        )
    if not interpreter or shutil.which(interpreter, path=environment.get("PATH", os.defpath)):
        return []
    text = f"{program} needs {interpreter}, which is not on PATH"
    fix = "install Node.js, or put it on PATH"
    if interpreter != "node":
        fix = f"install {interpreter}, or reinstall the program"
    return [DiagnosisFinding(level, text, fix)]


def _check_version(
    adapter: Adapter, version: str | None, probe: ProgramProbe, level: str
) -> list[DiagnosisFinding]:
    version_probe = adapter.version_probe
    if version is None:
        if probe.cannot_run:
            return [
                DiagnosisFinding(
                    level,
                    f"the program cannot run: {probe.failure}",
                    "reinstall the program with its dependencies",
                )
            ]
        if probe.has_answer:
            fix = "the program is started with the flags of the newest tested version"
            output = probe.describe_version_failure(version_probe)
            text = f"the program's version is not recognized: {output}"
            return [DiagnosisFinding(WARNING, text, fix)]
        wait_hint = f"run `shim doctor {adapter.name} --wait 20` to wait longer"
        fix = f"{wait_hint}; until then the program gets the flags of the newest tested version"
        return [
            DiagnosisFinding(
                WARNING,
                "the program did not report a version: "
                f"{probe.describe_version_failure(version_probe)}",
                fix,
            )
        ]
    version_class = version_probe.classify_version(version)
    if version_class == "tested":
        return [DiagnosisFinding(OK, f"version {version} (tested: {version_probe.tested_range})")]
    if version_class == "unknown":
        return [DiagnosisFinding(NOTE, f"version {version} (its profile lists no tested versions)")]
    if version_class == "newer":
        fix = (
            "a newer version usually works; `shim show CAST` counts events that were not understood"
        )
        return [
            DiagnosisFinding(
                NOTE,
                f"version {version} is newer than the tested versions "
                f"({version_probe.tested_range})",
                fix,
            )
        ]
    fix = (
        "update the program if something fails; tested: "
        f"{format_newest_tested_version(version_probe.tested_range) or version_probe.tested_range} "
        "and older"
    )
    return [
        DiagnosisFinding(
            NOTE,
            f"version {version} is older than the tested versions ({version_probe.tested_range})",
            fix,
        )
    ]


def _check_promises(
    adapter: Adapter,
    vendor_settings: VendorSettings,
    version_check: VersionCheck,
    reason: str,
    environment: Mapping[str, str],
) -> list[DiagnosisFinding]:
    """Report whether the guarantees in the vendor's profile hold for this version. If they do not,
    `reason` is reported.

    Records of broken guarantees are removed, so that those versions are trusted again.
    """
    findings = []
    for promise in remove_executed_denied_call_records(adapter.name, environment):
        version_text = "the program"
        if promise.version:
            version_text = f"version {promise.version}"
        text = f"{version_text} ran a denied {promise.tool} call, so it was marked as untrusted"
        fix = "this version is trusted again; review the commands that it ran, or install another version"
        findings.append(DiagnosisFinding(WARNING, text, fix))
    if version_check.distrust:
        fix = (
            f"install a tested version{_format_install_command(adapter)}, or set "
            f"[vendors.{adapter.name}] trust_version = true in config.toml if you know "
            "that this program enforces permission rules"
        )
        text = (
            f"{reason}; the program may run tools without asking. Its sessions are marked "
            "unattended, and a turn is refused if it has a rule, a hook, permission "
            "prompts, or a mode other than default and bypassPermissions"
        )
        findings.append(DiagnosisFinding(WARNING, text, fix))
    elif vendor_settings.trust_version:
        findings.append(
            DiagnosisFinding(
                NOTE,
                "`trust_version = true`: any version is trusted to enforce permission rules",
            )
        )
    return findings


def _format_install_command(adapter: Adapter) -> str:
    if adapter.cli.install_command:
        return f" (`{adapter.cli.install_command}`)"
    return ""


def _build_unattended_finding(
    adapter: Adapter, vendor_settings: VendorSettings, missing_feature: str
) -> DiagnosisFinding:
    plan_hint = ""
    if "plan" in adapter.modes:
        plan_hint = ", or with `--permission-mode plan`"
    fix = f"run the vendor only where it can do no damage, such as in a container{plan_hint}"
    return DiagnosisFinding(
        NOTE,
        describe_missing_permission_prompts(
            adapter.name,
            asks_in_conversation=can_ask_permission_in_conversation(
                adapter, vendor_settings, missing_feature
            ),
            is_unsure=bool(adapter.child_input_ref),
        ),
        fix,
    )


def _check_trust_prompt(
    adapter: Adapter, vendor_settings: VendorSettings
) -> list[DiagnosisFinding]:
    """Check how the vendor starts without a permission mode, and whether it trusts the current
    folder.
    """
    findings = []
    if mode_args := adapter.modes.get("default"):
        findings.append(DiagnosisFinding(NOTE, f"default permission mode: {' '.join(mode_args)}"))
    if trust_args := list_workspace_trust_args(adapter):
        name = adapter.name
        args_text = " ".join(trust_args)
        if vendor_settings.trust:
            text = f"every folder is trusted: `trust = true` adds {args_text}"
            findings.append(
                DiagnosisFinding(
                    NOTE, text, f"to require trust again, remove `trust` under [vendors.{name}]"
                )
            )
        else:
            prompt_hint = ""
            if adapter.environment.trust_prompt_text:
                prompt_hint = f"; in an untrusted folder, the program prints “{adapter.environment.trust_prompt_text}”"
            text = f"the vendor decides which folders it trusts{prompt_hint}"
            fix = f"`trust = true` under [vendors.{name}] adds {args_text} and trusts every folder"
            findings.append(DiagnosisFinding(NOTE, text, fix))
    return findings


def _check_login(
    adapter: Adapter, probe: ProgramProbe | None, login_refusal: str | None, level: str
) -> list[DiagnosisFinding]:
    """Check whether the vendor is logged in, if the check costs nothing. `login_error_message` is
    the message from the vendor's newest recording.

    `probe` is None if the program does not report its version.
    """
    login_probe = adapter.cli.login_probe
    fix = adapter.login_hint or "log in to the program once"
    if login_probe.refusal_regex and probe is not None:
        refusal = probe.find_login_error(login_probe)
        if refusal:
            text = f"not logged in: “{refusal}”"
            return [
                DiagnosisFinding(WARNING, text, f"{fix}, unless {login_probe.login_exception}")
                if login_probe.login_exception
                else DiagnosisFinding(level, text, fix)
            ]
        if refusal is not None:
            return [
                DiagnosisFinding(OK, "logged in (credentials found; not verified against the API)")
            ]
    if login_refusal is not None:
        return [
            DiagnosisFinding(
                WARNING, f"not logged in at the last recorded run: “{login_refusal}”", fix
            )
        ]
    reason_text = ""
    if login_probe.refusal_regex and probe is not None:
        reason_text = f": {probe.failure}"
    text = f"whether the program is logged in is unknown until a turn runs{reason_text}"
    if adapter.login_hint:
        return [DiagnosisFinding(NOTE, text, f"if the program is not logged in: {fix}")]
    return []

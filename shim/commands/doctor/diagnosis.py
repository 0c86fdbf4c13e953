"""The diagnosis of `shim doctor`: what works on this machine, and what to do about the rest.

Each program that is found is asked for its version and its login again. No turn is started and no
model is asked.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from shim.adapters import VENDORS, get_adapter
from shim.commands.doctor.abilities import list_trust_args
from shim.commands.doctor.capabilities import (
    MAX_CONCURRENT_PROBES,
    can_ask_in_conversation,
    describe_unattended,
    evaluate_probed_version,
)
from shim.commands.doctor.findings import (
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Diagnosis,
    DiagnosisFinding,
    VendorReport,
    has_no_problem,
)
from shim.commands.doctor.machine import (
    check_machine,
    check_settings,
    find_refusal,
    list_default_vendors,
)
from shim.core.adapter.promises import describe_answer
from shim.core.adapter.vendor import Adapter
from shim.core.adapter.versions import VersionCheck, format_newest_tested
from shim.core.errors import ShimError, format_suggestion
from shim.process import probe as probes
from shim.process.environment import build_child_environment
from shim.process.find_program import list_ignored_path_entries
from shim.process.probe import ProgramProbe, create_probe, find_unknown_argument
from shim.process.version_check import find_installed_adapter
from shim.state import own_vendors
from shim.state.broken_promises import clear_broken_promises
from shim.state.config import Settings, VendorSettings

EXAMPLE_VENDOR = "qwen"  # the vendor that a person without any is told to install
MAX_SHEBANG_BYTES = 256  # Linux reads no more of the first line


def build_diagnosis(
    names: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    seconds: float | None = None,
    logins: Mapping[str, str] = {},
) -> Diagnosis:
    """Check everything, or the vendors called `names`. FrontendError for an unknown vendor.

    A failure is a problem only for these vendors, or without `names` for the one that answers by
    default; for others it is a warning. `seconds` bounds the wait for a program's version. `logins`
    are the vendors that were not logged in when they last ran, with their words for it.
    """
    for name in names:
        if name not in VENDORS:
            get_adapter(name)
    vendors, mistakes = own_vendors.load_all_adapters()
    good, about_settings = check_settings(environment)
    settings = good or Settings()
    wanted = tuple(names) or list_default_vendors(settings, environment)
    other = {**environment, "SHIM_BIN": ""}  # it names the program of a turn's first vendor only

    def look(vendor: Adapter) -> VendorReport:
        searched = environment if vendor.name in wanted[:1] else other
        told = logins.get(vendor.name)
        return check_vendor(
            vendor,
            settings.get_vendor_settings(vendor.name),
            searched,
            cwd,
            wanted=vendor.name in wanted,
            seconds=seconds,
            told=told,
        )

    with ThreadPoolExecutor(MAX_CONCURRENT_PROBES) as pool:
        reports = list(
            pool.map(look, [vendors[name] for name in names or vendors if name in vendors])
        )
    machine = [about_settings, *check_machine(settings, environment, cwd)]
    if good is not None and wanted:
        machine += _add_refusals(wanted, names, reports, environment)
    for name, error in mistakes.items():
        level = PROBLEM if not names or name in names else WARNING
        machine.append(
            DiagnosisFinding(level, str(error), error.hint or "correct the file, or remove it")
        )
    if not names:
        machine += _check_choice(wanted, reports) if good is not None or wanted else []
        reports = _downgrade_problems(wanted, reports)
    return Diagnosis(machine, reports)


def _add_refusals(
    wanted: Sequence[str],
    names: Sequence[str],
    reports: Sequence[VendorReport],
    environment: Mapping[str, str],
) -> list[DiagnosisFinding]:
    """Add to the reports why turns of their vendors would be refused. Returns what would refuse one
    of no vendor's.

    What was found already is not said again.
    """
    told = {finding.text for report in reports for finding in report.findings}
    for report in reports:
        error = find_refusal(environment, report.name) if report.name in wanted else None
        if error is not None and str(error) not in told:
            told.add(str(error))
            report.findings.append(DiagnosisFinding(PROBLEM, str(error), error.hint))
    error = None if names else find_refusal(environment)
    if error is None or str(error) in told or any(name not in VENDORS for name in wanted):
        return []
    return [DiagnosisFinding(PROBLEM, str(error), error.hint)]


def _check_choice(wanted: Sequence[str], reports: Sequence[VendorReport]) -> list[DiagnosisFinding]:
    """What is wrong with the choice of a vendor."""
    if not wanted:
        return [
            explain_missing_choice(
                [report.name for report in reports if report.program not in (None, "bundled")]
            )
        ]
    fix = f"known are: {', '.join(VENDORS)}"
    unknown = [name for name in wanted if name not in VENDORS]
    return [
        DiagnosisFinding(
            PROBLEM,
            f"the chosen vendor {name[:40]!r} is unknown{format_suggestion(name, VENDORS)}",
            fix,
        )
        for name in unknown
    ]


def explain_missing_choice(found: Sequence[str]) -> DiagnosisFinding:
    """What a person is told who has chosen no vendor; `found` are the vendors whose program is
    there.
    """
    if found:
        fix = f"`shim install --vendor {found[0]}`, SHIM_VENDOR, `vendor` in config.toml, or --shim-vendor for each run"
        return DiagnosisFinding(WARNING, f"no vendor is chosen; found: {', '.join(found)}", fix)
    install = get_adapter(EXAMPLE_VENDOR).cli.install_command
    fix = f"install one, for example {EXAMPLE_VENDOR} with `{install}`; `shim install --vendor demo` needs none"
    return DiagnosisFinding(
        PROBLEM, "no vendor is chosen, and no program of any vendor was found on PATH", fix
    )


def _downgrade_problems(wanted: Sequence[str], reports: list[VendorReport]) -> list[VendorReport]:
    """Turn problems into warnings if one vendor of the list works: the next one answers where one
    cannot start.
    """
    if not any(report.name in wanted and has_no_problem(report.findings) for report in reports):
        return reports
    milder = {PROBLEM: WARNING}
    return [
        report._replace(
            findings=[
                one._replace(level=milder.get(one.level, one.level)) for one in report.findings
            ]
        )
        for report in reports
    ]


def check_vendor(
    vendor: Adapter,
    own: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    wanted: bool = True,
    seconds: float | None = None,
    told: str | None = None,
) -> VendorReport:
    """The report of one vendor. `wanted`: a failure is a problem. `seconds` and `told` as
    `diagnose` has them.
    """
    vendor = find_installed_adapter(vendor, own, environment, cwd)._replace(name=vendor.name)
    program, version, findings = (
        "bundled" if vendor.cli.bundled_module else None,
        None,
        list[DiagnosisFinding](),
    )
    level = PROBLEM if wanted else WARNING
    check = VersionCheck()
    if vendor.cli.unreleased_note:
        findings.append(DiagnosisFinding(WARNING if wanted else NOTE, vendor.cli.unreleased_note))
    if program is None and (wanted or own.bin or not vendor.cli.unreleased_note):
        try:
            probe = create_probe(
                vendor, own, environment, cwd, seconds or probes.INTERACTIVE_TIMEOUT_S
            )
        except ShimError as error:
            missing = level if wanted or own.bin or own.launcher else NOTE
            findings.append(DiagnosisFinding(missing, str(error), error.hint))
            findings += _list_ignored_programs(vendor, environment, cwd, level)
        else:
            program = probe.program
            findings += _check_interpreter(
                program, build_child_environment(vendor, own, environment), level
            )
            if not findings:
                version = probe.ask_version(vendor.version_probe, refresh=True)
                if vendor.cli.two_way_help_texts and version:
                    probe.get_help_text()  # remembered for turns
                if wanted and version:
                    probe.cache_models(vendor.cli.model_probe)
                check = evaluate_probed_version(vendor, own, probe, version)
                is_silent = version is None and not probe.has_answer
                if is_silent or not check.distrust:  # else `_promises` says what was found
                    findings += _check_version(vendor, version, probe, level)
                reason = "its version is not recognised" if is_silent else check.distrust
                findings += _check_promises(vendor, own, check, reason, environment)
                findings += _check_login(vendor, probe if version else None, told, level)
    if vendor.unattended and not check.distrust and (wanted or program is not None):
        findings.append(
            _build_unattended_finding(
                vendor, own, find_unknown_argument(vendor, own, environment, cwd)
            )
        )
    if program is not None:
        findings += _check_trust_prompt(vendor, own)
    place = vendor.version_probe.classify_version(version)
    unattended = vendor.unattended or bool(check.distrust)
    return VendorReport(
        vendor.name,
        program,
        version,
        vendor.version_probe.tested_range,
        place,
        unattended,
        findings,
    )


def _list_ignored_programs(
    vendor: Adapter, environment: Mapping[str, str], cwd: str, level: str
) -> list[DiagnosisFinding]:
    """Programs of the vendor's name that are on PATH and are ignored (threats: working directory)."""
    found = []
    for directory, why in list_ignored_path_entries(environment, cwd):
        for name in vendor.programs:
            path = os.path.join(os.path.abspath(os.path.join(cwd, directory)), name)
            if os.path.isfile(path):
                text = f"{path} is on PATH and is not used: {why}"
                found.append(
                    DiagnosisFinding(
                        level, text, f"to use it, set [vendors.{vendor.name}] bin = {path!r}"
                    )
                )
    return found


def _check_interpreter(
    program: str, environment: Mapping[str, str], level: str
) -> list[DiagnosisFinding]:
    """A program that is a script without its interpreter, which is Node for nearly all vendors."""
    try:
        with open(program, "rb") as file:
            head = file.read(MAX_SHEBANG_BYTES)
    except OSError:
        return []
    words = (
        head[2:].split(b"\n")[0].decode("utf-8", "replace").split()
        if head.startswith(b"#!")
        else []
    )
    if not words:
        return []
    needed = words[0]
    if os.path.basename(needed) == "env":
        needed = next(
            (word for word in words[1:] if not word.startswith("-") and "=" not in word), ""
        )
    if not needed or shutil.which(needed, path=environment.get("PATH", os.defpath)):
        return []
    text = f"{program} needs {needed}, which is not on PATH"
    fix = (
        "install Node.js, or put it on PATH"
        if needed == "node"
        else f"install {needed}, or the program again"
    )
    return [DiagnosisFinding(level, text, fix)]


def _check_version(
    vendor: Adapter, version: str | None, probe: ProgramProbe, level: str
) -> list[DiagnosisFinding]:
    how = vendor.version_probe
    asked = " ".join((os.path.basename(probe.program), *how.args))
    if version is None:
        if probe.cannot_run:
            return [
                DiagnosisFinding(
                    level,
                    f"it cannot be run: {probe.failure}",
                    "install it again, with all that it needs",
                )
            ]
        if probe.has_answer:
            fix = "it is started with the flags of the newest tested version"
            text = f"its version is not recognised: {describe_answer(asked, probe.failure)}"
            return [DiagnosisFinding(WARNING, text, fix)]
        wait = f"`shim doctor {vendor.name} --wait 20` waits longer"
        fix = f"{wait}; until then it is started with the flags of the newest tested version"
        return [
            DiagnosisFinding(
                WARNING, f"it did not name its version: `{asked}`: {probe.failure}", fix
            )
        ]
    place = how.classify_version(version)
    if place == "tested":
        return [DiagnosisFinding(OK, f"version {version} was tested ({how.tested_range})")]
    if place == "unknown":
        return [
            DiagnosisFinding(NOTE, f"version {version}; its description names no tested versions")
        ]
    if place == "newer":
        fix = "newer than tested, so it will most likely work; `shim show CAST` counts events that were not understood"
        return [
            DiagnosisFinding(
                NOTE, f"version {version} is newer than what was tested ({how.tested_range})", fix
            )
        ]
    fix = f"if something goes wrong, update it; tested: {format_newest_tested(how.tested_range) or how.tested_range} and below"
    return [
        DiagnosisFinding(
            NOTE, f"version {version} is older than what was tested ({how.tested_range})", fix
        )
    ]


def _check_promises(
    vendor: Adapter,
    own: VendorSettings,
    check: VersionCheck,
    reason: str,
    environment: Mapping[str, str],
) -> list[DiagnosisFinding]:
    """Report whether the profile's promises hold for the version, and the `reason` if they do not.

    Records of broken promises are cleared, so that their versions are trusted again.
    """
    findings = []
    for promise in clear_broken_promises(vendor.name, environment):
        version = f"version {promise.version}" if promise.version else "it"
        text = f"{version} ran a call of {promise.tool} that was denied, so it was not trusted any more"
        fix = "it is trusted again from now on; check what it ran, or install another version"
        findings.append(DiagnosisFinding(WARNING, text, fix))
    if check.distrust:
        fix = (
            f"install a tested version{_format_install_command(vendor)}, or set [vendors.{vendor.name}] trust_version = true "
            "in config.toml if you know that this program keeps permission rules"
        )
        text = (
            f"{reason}; it may run tools without asking, so its sessions are unattended, and a turn is refused "
            "if it has a rule, a hook, permission prompts, or another mode than default and bypassPermissions"
        )
        findings.append(DiagnosisFinding(WARNING, text, fix))
    elif own.trust_version:
        findings.append(
            DiagnosisFinding(
                NOTE,
                "`trust_version = true`: any version of it is trusted to keep permission rules",
            )
        )
    return findings


def _format_install_command(vendor: Adapter) -> str:
    return f" (`{vendor.cli.install_command}`)" if vendor.cli.install_command else ""


def _build_unattended_finding(vendor: Adapter, own: VendorSettings, lacks: str) -> DiagnosisFinding:
    plan = ", or with `--permission-mode plan`" if "plan" in vendor.modes else ""
    fix = f"let it work only where nothing can be lost{plan}"
    return DiagnosisFinding(
        NOTE,
        describe_unattended(
            vendor.name,
            asks_in_conversation=can_ask_in_conversation(vendor, own, lacks),
            is_unsure=bool(vendor.child_input_ref),
        ),
        fix,
    )


def _check_trust_prompt(vendor: Adapter, own: VendorSettings) -> list[DiagnosisFinding]:
    """How it is started without a permission mode, and whether its trust gate is open."""
    found = []
    if mode := vendor.modes.get("default"):
        found.append(
            DiagnosisFinding(NOTE, f"without a permission mode it is started with {' '.join(mode)}")
        )
    if words := list_trust_args(vendor):
        name, opened = vendor.name, " ".join(words)
        if own.trust:
            text = f"every folder is trusted: `trust = true` adds {opened}"
            found.append(
                DiagnosisFinding(
                    NOTE, text, f"to close the gate again, remove `trust` under [vendors.{name}]"
                )
            )
        else:
            says = (
                f"; in other folders it says “{vendor.environment.trust_prompt_text}”"
                if vendor.environment.trust_prompt_text
                else ""
            )
            text = f"it decides by itself which folders it trusts{says}"
            fix = f"`trust = true` under [vendors.{name}] adds {opened} and trusts every folder"
            found.append(DiagnosisFinding(NOTE, text, fix))
    return found


def _check_login(
    vendor: Adapter, probe: ProgramProbe | None, told: str | None, level: str
) -> list[DiagnosisFinding]:
    """Whether it has a login, as far as that is free to ask; `told` are its words in its newest
    recording.

    `probe` is None for a program that does not even say its version.
    """
    how, fix = vendor.cli.login_probe, vendor.login_hint or "log in with it once"
    if how.refusal_regex and probe is not None:
        words = probe.find_missing_login(how)
        if words:
            text = f"it is not logged in: “{words}”"
            return [
                DiagnosisFinding(WARNING, text, f"{fix}, unless {how.login_exception}")
                if how.login_exception
                else DiagnosisFinding(level, text, fix)
            ]
        if words is not None:
            return [
                DiagnosisFinding(
                    OK, "it finds a login; whether that still holds shows when it asks its model"
                )
            ]
    if told is not None:
        return [
            DiagnosisFinding(
                WARNING, f"it was not logged in when it was last recorded: “{told}”", fix
            )
        ]
    why = f": {probe.failure}" if how.refusal_regex and probe is not None else ""
    text = f"whether it is logged in shows when it runs{why}"
    return [DiagnosisFinding(NOTE, text, f"if it is not: {fix}")] if vendor.login_hint else []

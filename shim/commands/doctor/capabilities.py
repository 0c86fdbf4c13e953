"""What each vendor can do here: the rows of `shim vendors`."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shim.commands.doctor.abilities import EMULATED, NO, YES, collect_abilities
from shim.core.adapter.promises import describe_broken_promise, evaluate_version, has_promises
from shim.core.adapter.vendor import Adapter
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.account import escape_control_chars
from shim.io.raw_output import warn
from shim.process import probe as probes
from shim.process.probe import ProgramProbe, create_probe, find_unknown_argument
from shim.process.version_check import describe_failure, find_installed_adapter
from shim.state import own_vendors
from shim.state.broken_promises import find_broken_promise
from shim.state.config import ONE_WAY, Settings, VendorSettings, load_config

MAX_CONCURRENT_PROBES = (
    4  # programs that are asked at the same time; most of them are Node, and slow to start
)
NEVER_ASKS_TEXT = "{name} asks nobody: it runs every tool that it has, in every session"
UNKNOWN_ASKING_TEXT = "{name} may run tools without asking: its profile does not say about which ones it asks (`asks` in [acp])"
ONE_SHOT_UNATTENDED_TEXT = (
    "{name} asks nobody about one message; in a conversation a frontend is asked"
)


def describe_unattended(name: str, *, asks_in_conversation: bool, is_unsure: bool = False) -> str:
    """What a person should know of a vendor that runs its tools unasked; `talks`: not where a
    frontend holds a talk.

    `unsure`: it may ask, but its profile does not say about what.
    """
    return (
        UNKNOWN_ASKING_TEXT
        if is_unsure
        else ONE_SHOT_UNATTENDED_TEXT
        if asks_in_conversation
        else NEVER_ASKS_TEXT
    ).format(name=name)


def can_ask_in_conversation(vendor: Adapter, own: VendorSettings, lacks: str = "") -> bool:
    """Whether a frontend that holds a conversation is asked, though one message asks nobody.

    `lacks` is what the installed version would need for that and has not.
    """
    return (
        vendor.cli.build_two_way is not None
        and own.driver != ONE_WAY
        and not (lacks and own.driver is None)
    )


def describe_vendors(environment: Mapping[str, str], cwd: str) -> list[dict[str, Any]]:
    """One row for each vendor, as `describe` has it. A vendor that cannot be read is named on
    stderr.

    SHIM_BIN is ignored, because it names the program of one turn's vendor.
    """
    try:
        settings = load_config(Invocation(), environment)
    except FrontendError as error:
        warn(escape_control_chars(f"{error}\n"))
        settings = Settings()
    searched = {name: value for name, value in environment.items() if name != "SHIM_BIN"}
    vendors = own_vendors.load_readable_adapters().values()
    with ThreadPoolExecutor(MAX_CONCURRENT_PROBES) as pool:
        return list(
            pool.map(
                lambda vendor: describe_vendor(
                    vendor, settings.get_vendor_settings(vendor.name), searched, cwd
                ),
                vendors,
            )
        )


def describe_vendor(
    vendor: Adapter, own: VendorSettings, environment: Mapping[str, str], cwd: str
) -> dict[str, Any]:
    """The row of one vendor.

    program                     the path where its program was found, None if it was not found
    version, tested, place      what the program says, the range that was tried, and where the
                                version stands in it
    can, emulated, cannot       names of abilities
    modes, refused              permission modes
    unattended, talks           it asks nobody about one message; a frontend that holds a
                                conversation is asked
    distrust                    why the promises of its profile do not hold for this version, or ""
    unsure                      it may ask, but its profile does not say about what
    driven, lacks               what one process serves; what a version lacks that could serve a
                                conversation
    install                     the command that installs it, "" where none is known
    """
    vendor = find_installed_adapter(vendor, own, environment, cwd)._replace(name=vendor.name)
    program = "bundled" if vendor.cli.bundled_module else None
    version, lacks, check = None, "", VersionCheck()
    if program is None and not vendor.cli.unreleased_note:
        try:
            probe = create_probe(vendor, own, environment, cwd, probes.INTERACTIVE_TIMEOUT_S)
            program, version = probe.program, probe.ask_version(vendor.version_probe)
            check = evaluate_probed_version(vendor, own, probe, version)
            broken = find_broken_promise(vendor.name, version, environment)
            if broken is not None:
                check = check._replace(
                    distrust=describe_broken_promise(vendor, version, broken.tool)
                )
            if vendor.cli.two_way_help_texts:
                # remembered, so that a turn knows whether this version can be driven two-way
                probe.get_help_text()
            lacks = find_unknown_argument(vendor, own, environment, cwd)
        except ShimError:
            pass
    able = collect_abilities(vendor)
    return {
        "name": vendor.name,
        "program": program,
        "version": version,
        "tested": vendor.version_probe.tested_range,
        "place": vendor.version_probe.classify_version(version),
        "driven": describe_process_use(vendor, own, lacks),
        "lacks": lacks,
        "distrust": check.distrust,
        "unsure": vendor.unattended and bool(vendor.child_input_ref),
        **{
            key: [name for name, how in able.items() if how == wanted]
            for key, wanted in _ABILITY_COLUMNS.items()
        },
        "modes": list(vendor.modes),
        "refused": [mode for mode in PERMISSION_MODES if mode not in vendor.modes],
        "unattended": vendor.unattended or bool(check.distrust),
        "talks": can_ask_in_conversation(vendor, own, lacks) and not check.distrust,
        "note": vendor.cli.unreleased_note,
        "install": vendor.cli.install_command,
    }


def evaluate_probed_version(
    vendor: Adapter, own: VendorSettings, probe: ProgramProbe, version: str | None
) -> VersionCheck:
    """Return what the version that a probe has read means for the promises of a vendor."""
    if own.trust_version or not has_promises(vendor):
        return VersionCheck(version)
    problem = describe_failure(
        (probe.program,), vendor.version_probe, probe.failure, has_answer=probe.has_answer
    )
    return evaluate_version(vendor, version, problem)


_ABILITY_COLUMNS = {"can": YES, "emulated": EMULATED, "cannot": NO}


def describe_process_use(vendor: Adapter, own: VendorSettings, lacks: str = "") -> str:
    """What one process of the vendor serves: a conversation or a message."""
    two_way = (
        can_ask_in_conversation(vendor, own, lacks)
        or vendor.cli.always_keeps_child
        or (bool(vendor.child_input_ref) and own.driver != ONE_WAY)
    )
    return (
        "one process a conversation" if two_way or vendor.passthrough else "one process a message"
    )

"""The rows of `shim vendors`: what each vendor can do here."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shim.commands.doctor.abilities import EMULATED, NO, YES, collect_adapter_abilities
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.promises import (
    check_vendor_version,
    describe_executed_denied_call,
    has_tested_versions,
)
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.diagnostics import escape_control_chars
from shim.io.stderr import warn
from shim.process import probe as probes
from shim.process.probe import ProgramProbe, create_program_probe, find_unsupported_argument
from shim.process.version_check import choose_adapter_of_installed_cli, describe_version_failure
from shim.state import own_profiles
from shim.state.config import ONE_WAY, ShimSettings, VendorSettings, load_shim_settings
from shim.state.stored_versions import find_executed_denied_call

# The number of programs that are asked at the same time. Most of them are slow to start, because
# they run in Node.
MAX_CONCURRENT_PROBES = 4
NEVER_ASKS_TEXT = "{name} never asks for permission: all of its tools run automatically"
UNKNOWN_ASKING_TEXT = (
    "{name} may run tools without asking: its profile does not state which tools it asks "
    "about (`asks` in [acp])"
)
ONE_SHOT_UNATTENDED_TEXT = "{name} asks for permission in conversations, not in one-shot mode"


def describe_missing_permission_prompts(
    name: str, *, asks_in_conversation: bool, is_unsure: bool = False
) -> str:
    """Return what a person should know about a vendor that runs its tools without asking.

    `asks_in_conversation`: it asks in a conversation. `is_unsure`: it may ask, but its profile does
    not say about which calls.
    """
    if is_unsure:
        template = UNKNOWN_ASKING_TEXT
    elif asks_in_conversation:
        template = ONE_SHOT_UNATTENDED_TEXT
    else:
        template = NEVER_ASKS_TEXT
    return template.format(name=name)


def can_ask_permission_in_conversation(
    adapter: Adapter, vendor_settings: VendorSettings, missing_cli_feature: str = ""
) -> bool:
    """Return whether a vendor that does not ask in one-shot mode asks in a conversation.

    `missing_feature` is a feature that the installed version lacks for that.
    """
    if not adapter.cli.has_two_way:
        return False
    if vendor_settings.driver == ONE_WAY:
        return False
    return not (missing_cli_feature and vendor_settings.driver is None)


def build_vendor_table_rows(environment: Mapping[str, str], cwd: str) -> list[dict[str, Any]]:
    """Return one row for each vendor. A vendor that cannot be read is named on stderr.

    SHIM_BIN is ignored, because it names the program of one turn's vendor.
    """
    try:
        settings = load_shim_settings(Invocation(), environment)
    except FrontendError as error:
        warn(escape_control_chars(f"{error}\n"))
        settings = ShimSettings()
    search_environment = {name: value for name, value in environment.items() if name != "SHIM_BIN"}
    adapters = own_profiles.load_valid_adapters().values()
    with ThreadPoolExecutor(MAX_CONCURRENT_PROBES) as pool:
        return list(
            pool.map(
                lambda adapter: build_vendor_row(
                    adapter, settings.get_vendor_settings(adapter.name), search_environment, cwd
                ),
                adapters,
            )
        )


def build_vendor_row(
    adapter: Adapter, vendor_settings: VendorSettings, environment: Mapping[str, str], cwd: str
) -> dict[str, Any]:
    """Build the row of one vendor.

    program                     the path of its program, None if it was not found
    version, tested, place      the reported version, the tested range, and the position of the
                                version in that range
    can, emulated, cannot       names of abilities
    modes, refused              permission modes
    unattended, talks           it does not ask in one-shot mode; it asks in a conversation
    distrust                    why the promises of its profile do not hold for this version, or ""
    unsure                      it may ask, but its profile does not say about which calls
    driven, lacks               what one process serves; the feature that the version lacks to serve
                                a conversation
    install                     the command that installs it, "" if none is known
    """
    adapter = choose_adapter_of_installed_cli(adapter, vendor_settings, environment, cwd).copy_with(
        name=adapter.name
    )
    program = None
    if adapter.cli.bundled_module:
        program = "bundled"
    version = None
    missing_feature = ""
    version_check = VersionCheck()
    if program is None and not adapter.cli.unreleased_note:
        try:
            probe = create_program_probe(
                adapter, vendor_settings, environment, cwd, probes.INTERACTIVE_TIMEOUT_S
            )
            program = probe.program
            version = probe.ask_version(adapter.version_probe)
            version_check = check_probed_version(adapter, vendor_settings, probe, version)
            broken_promise = find_executed_denied_call(adapter.name, version, environment)
            if broken_promise is not None:
                version_check = version_check._replace(
                    distrust=describe_executed_denied_call(adapter, version, broken_promise.tool)
                )
            if adapter.cli.two_way_help_texts:
                # The help is stored, so that a turn knows whether this version supports two-way
                # mode.
                probe.get_help_text()
            missing_feature = find_unsupported_argument(adapter, vendor_settings, environment, cwd)
        except ShimError:
            pass
    abilities_by_name = collect_adapter_abilities(adapter)
    return {
        "name": adapter.name,
        "program": program,
        "version": version,
        "tested": adapter.version_probe.tested_range,
        "place": adapter.version_probe.classify_version(version),
        "driven": describe_process_lifetime(adapter, vendor_settings, missing_feature),
        "lacks": missing_feature,
        "distrust": version_check.distrust,
        "unsure": adapter.unattended and bool(adapter.child_input_ref),
        **{
            key: [name for name, support in abilities_by_name.items() if support == expected]
            for key, expected in _ABILITY_COLUMNS.items()
        },
        "modes": list(adapter.modes),
        "refused": [mode for mode in PERMISSION_MODES if mode not in adapter.modes],
        "unattended": adapter.unattended or bool(version_check.distrust),
        "talks": can_ask_permission_in_conversation(adapter, vendor_settings, missing_feature)
        and not version_check.distrust,
        "note": adapter.cli.unreleased_note,
        "install": adapter.cli.install_command,
    }


def check_probed_version(
    adapter: Adapter, vendor_settings: VendorSettings, probe: ProgramProbe, version: str | None
) -> VersionCheck:
    """Return what the version that a probe has read means for the promises of a vendor."""
    if vendor_settings.trust_version or not has_tested_versions(adapter):
        return VersionCheck(version)
    problem = describe_version_failure(
        (probe.program,), adapter.version_probe, probe.failure, has_answer=probe.has_answer
    )
    return check_vendor_version(adapter, version, problem)


_ABILITY_COLUMNS = {"can": YES, "emulated": EMULATED, "cannot": NO}


def describe_process_lifetime(
    adapter: Adapter, vendor_settings: VendorSettings, missing_cli_feature: str = ""
) -> str:
    """Return what one process of the vendor serves: a conversation or a message."""
    keeps_process = (
        can_ask_permission_in_conversation(adapter, vendor_settings, missing_cli_feature)
        or adapter.cli.always_keeps_child
        or (bool(adapter.child_input_ref) and vendor_settings.driver != ONE_WAY)
    )
    if keeps_process or adapter.passthrough:
        return "one process per conversation"
    return "one process per message"

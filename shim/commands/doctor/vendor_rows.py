"""Builds the rows of `shim vendors`, which describe what each vendor supports on this machine."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shim.commands.doctor.abilities import EMULATED, NO, YES, collect_adapter_abilities
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.untrusted_versions import describe_executed_denied_call
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn
from shim.process import probe as probes
from shim.process.probe import ProgramProbe, create_program_probe, find_unsupported_argument
from shim.process.twin_vendors import choose_adapter_of_installed_cli
from shim.state import own_profiles
from shim.state.config import ONE_WAY, ShimSettings, VendorSettings, load_shim_settings
from shim.state.stored_versions import find_executed_denied_call

# The number of vendor programs that are probed at the same time.
# Most of them start slowly, because they run in Node.
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
    """Return a warning about a vendor that may run tools without asking for permission.

    If `asks_in_conversation` is set, the vendor asks in conversations but not in one-shot mode. If
    `is_unsure` is set, the vendor's profile does not state which tool calls need permission.
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
    """Return whether a vendor that does not ask for permission in one-shot mode asks in
    conversations.

    `missing_cli_feature` names a feature that conversations need and the installed version lacks,
    or is "".
    """
    if not adapter.cli.has_two_way:
        return False
    if vendor_settings.driver == ONE_WAY:
        return False
    return not (missing_cli_feature and vendor_settings.driver is None)


def build_vendor_table_rows(environment: Mapping[str, str], cwd: str) -> list[dict[str, Any]]:
    """Return one row per vendor. An error in the settings is reported on stderr.

    SHIM_BIN is ignored, because it names the program for a single turn's vendor.
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

    program                 the path of the vendor's program, None if it was not found
    version, tested, place  the reported version, the tested range, and the version's position:
                            `tested`, `newer`, `older` or `unknown`
    can, emulated, cannot   names of abilities
    modes, refused          supported and unsupported permission modes
    unattended              the vendor does not ask for permission in one-shot mode
    talks                   the vendor asks for permission in conversations
    distrust                why the guarantees in the profile do not hold for this version, or ""
    unsure                  the vendor may ask, but its profile does not state for which tool calls
    driven                  what one process serves: a conversation or a message
    lacks                   the feature that this version needs to serve a conversation, or ""
    install                 the command that installs the vendor, "" if unknown
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
                # The program's help text is cached.
                # Turns read in the cached text whether this version supports two-way mode.
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
    """Check whether the guarantees in a vendor's profile hold for the version that a probe found."""
    if vendor_settings.trust_version or not adapter.version_probe.tested_range:
        return VersionCheck(version)
    problem = probe.describe_version_failure(adapter.version_probe)
    return adapter.version_probe.check_version(adapter.name, version, problem)


_ABILITY_COLUMNS = {"can": YES, "emulated": EMULATED, "cannot": NO}


def describe_process_lifetime(
    adapter: Adapter, vendor_settings: VendorSettings, missing_cli_feature: str = ""
) -> str:
    """Return whether each process of the vendor serves a conversation or a single message."""
    if (
        can_ask_permission_in_conversation(adapter, vendor_settings, missing_cli_feature)
        or adapter.cli.always_keeps_child
        or (adapter.child_input_ref and vendor_settings.driver != ONE_WAY)
        or adapter.passthrough
    ):
        return "one process per conversation"
    return "one process per message"

"""Recognizes the installed program of two vendors whose programs have the same name."""

from collections.abc import Mapping

from shim.adapters import get_adapter
from shim.core.adapter.adapter import Adapter
from shim.core.errors import ShimError
from shim.process.environment import build_child_environment
from shim.process.find_program import find_program, resolve_command_prefix
from shim.state.config import TWIN_VENDORS, VendorSettings
from shim.state.stored_versions import find_stored_vendor_version


def choose_adapter_of_installed_cli(
    adapter: Adapter,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    without_passthrough: bool = False,
    cache_only: bool = False,
) -> Adapter:
    """Return the adapter for the installed program: the given adapter, or the adapter for the other
    vendor whose program has the same name.
    """
    if adapter.name not in TWIN_VENDORS:
        return adapter
    twin_adapter = get_adapter(TWIN_VENDORS[adapter.name], without_passthrough=without_passthrough)
    try:
        program = find_program(adapter, settings, environment, cwd)
        command = [*resolve_command_prefix(settings.launcher, environment, cwd), program]
    except ShimError:
        return adapter  # the turn reports the error
    if find_stored_vendor_version(twin_adapter.version_probe, command, environment):
        return twin_adapter
    if cache_only or find_stored_vendor_version(adapter.version_probe, command, environment):
        return adapter
    # Most starts end before this import, which would delay the child.
    from shim.process.probe import VERSION_TIMEOUT_S, ProgramProbe

    probe = ProgramProbe(
        command,
        environment,
        build_child_environment(twin_adapter, settings, environment),
        VERSION_TIMEOUT_S,
    )
    if probe.ask_version(twin_adapter.version_probe):
        return twin_adapter
    return adapter

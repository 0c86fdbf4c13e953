"""Checks the version of an installed program, and whether the guarantees of the vendor's profile
hold for this version.

Every start of a child waits for this check. Therefore a known version is read from a small file,
without importing `shim.process.probe`. The program is asked for its version only if this file is
missing or the program has changed.
"""

import os
from collections.abc import Mapping, Sequence

from shim.adapters import get_adapter
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.promises import (
    check_vendor_version,
    describe_executed_denied_call,
    describe_unexpected_version_output,
    has_tested_versions,
    mark_version_distrusted,
)
from shim.core.adapter.versions import VersionCheck, VersionProbe
from shim.core.errors import ShimError
from shim.process.environment import build_child_environment
from shim.process.find_program import find_program, resolve_command_prefix
from shim.state.config import TWIN_VENDORS, VendorSettings
from shim.state.stored_versions import find_executed_denied_call, find_stored_vendor_version

# If the program does not answer in time, a turn that needs the profile's guarantees is refused.
# `cline --version` (3.0.65) takes 1.6 s of CPU time. It took 9.6 s with seven busy processes per
# core, and more than 10 s with ten.
VERSION_TIMEOUT_S = 20.0


def check_installed_version(
    adapter: Adapter,
    command: Sequence[str],
    environment: Mapping[str, str],
    child_environment: Mapping[str, str],
    *,
    is_trusted: bool = False,
    cache_only: bool = False,
) -> VersionCheck:
    """Check whether the guarantees of a vendor's profile hold for the installed version.

    command            the program with its command prefix
    child_environment  the environment variables for the vendor's children
    is_trusted         the user has declared that any version can be trusted
    cache_only         no program is started, and an unknown version is assumed to be tested
    """
    if adapter.cli.replayed_vendor:
        return VersionCheck()
    if is_trusted or not has_tested_versions(adapter):
        version_check = VersionCheck(
            find_stored_vendor_version(adapter.version_probe, command, environment)
        )
    else:
        version_check = _check_version(
            adapter, command, environment, child_environment, cache_only=cache_only
        )
    broken_promise = find_executed_denied_call(adapter.name, version_check.version, environment)
    if broken_promise is None:
        return version_check
    return mark_version_distrusted(
        version_check,
        describe_executed_denied_call(adapter, version_check.version, broken_promise.tool),
    )


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
    from shim.process.probe import ProgramProbe

    probe = ProgramProbe(
        command,
        environment,
        build_child_environment(twin_adapter, settings, environment),
        VERSION_TIMEOUT_S,
    )
    if probe.ask_version(twin_adapter.version_probe):
        return twin_adapter
    return adapter


def _check_version(
    adapter: Adapter,
    command: Sequence[str],
    environment: Mapping[str, str],
    child_environment: Mapping[str, str],
    *,
    cache_only: bool,
) -> VersionCheck:
    version_probe = adapter.version_probe
    if version := find_stored_vendor_version(version_probe, command, environment):
        return check_vendor_version(adapter, version, "")
    from shim.process.probe import ProgramProbe

    probe = ProgramProbe(
        command, environment, child_environment, VERSION_TIMEOUT_S, cache_only=cache_only
    )
    version = probe.ask_version(version_probe)
    if version is None and probe.is_answer_missing:
        return VersionCheck(note="not cached; a turn reads it from the program first")
    return check_vendor_version(
        adapter,
        version,
        describe_version_failure(
            command, version_probe, probe.failure, has_answer=probe.has_answer
        ),
    )


def describe_version_failure(
    command: Sequence[str], version_probe: VersionProbe, failure: str, *, has_answer: bool
) -> str:
    """Describe why a program's version could not be determined."""
    question = " ".join((os.path.basename(command[-1]), *version_probe.args))
    if has_answer:
        return describe_unexpected_version_output(question, failure)
    return f"`{question}`: {failure or 'the program printed nothing'}"

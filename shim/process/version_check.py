"""The version of the program that a turn starts, and whether the profile's promises hold for this
version.

Every start of a child waits for this check. So a known version is read from a small file, without
importing `shim.process.probe`. The program is started for its version only if that file is missing
or the program has changed.
"""

import os
from collections.abc import Mapping, Sequence

from shim.adapters import get_adapter
from shim.core.adapter.promises import (
    describe_answer,
    describe_broken_promise,
    evaluate_version,
    has_promises,
    withdraw_promises,
)
from shim.core.adapter.vendor import Adapter
from shim.core.adapter.versions import VersionCheck, VersionProbe
from shim.core.errors import ShimError
from shim.process.environment import build_child_environment
from shim.process.find_program import find_command_prefix, find_program
from shim.state.broken_promises import find_broken_promise
from shim.state.config import TWIN_VENDORS, VendorSettings
from shim.state.known_versions import find_stored_version

# If the program does not answer in time, a turn that needs its promises is refused. cline 3.0.65
# needs 1.6 s of CPU for `--version`: with seven busy processes for each core it took 9.6 s, and
# with ten more than 10 s.
VERSION_TIMEOUT_S = 20.0


def check_installed_version(
    vendor: Adapter,
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    is_trusted: bool = False,
    cache_only: bool = False,
) -> VersionCheck:
    """Return what the installed version means for the promises of a vendor.

    `command` is the program, after the words of its launcher if there is one. `variables` are the
    environment of its children. `trusted`: the user vouches for any version. `remembered`: no
    program is started, and an unknown version counts as tested.
    """
    if vendor.cli.replayed_vendor:
        return VersionCheck()
    if is_trusted or not has_promises(vendor):
        check = VersionCheck(find_stored_version(vendor.version_probe, command, environment))
    else:
        check = _check_version(vendor, command, environment, variables, remembered=cache_only)
    broken = find_broken_promise(vendor.name, check.version, environment)
    if broken is None:
        return check
    return withdraw_promises(check, describe_broken_promise(vendor, check.version, broken.tool))


def find_installed_adapter(
    vendor: Adapter,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    flat: bool = False,
    cache_only: bool = False,
) -> Adapter:
    """Return the vendor whose program is installed: this vendor, or its twin, whose program has the
    same name.
    """
    if vendor.name not in TWIN_VENDORS:
        return vendor
    twin = get_adapter(TWIN_VENDORS[vendor.name], flat=flat)
    try:
        program = find_program(vendor, settings, environment, cwd)
        command = [*find_command_prefix(settings.launcher, environment, cwd), program]
    except ShimError:
        return vendor  # the turn reports the error
    if find_stored_version(twin.version_probe, command, environment):
        return twin
    if cache_only or find_stored_version(vendor.version_probe, command, environment):
        return vendor
    from shim.process.probe import ProgramProbe

    probe = ProgramProbe(
        command,
        environment,
        build_child_environment(twin, settings, environment),
        VERSION_TIMEOUT_S,
    )
    return twin if probe.ask_version(twin.version_probe) else vendor


def _check_version(
    vendor: Adapter,
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    remembered: bool,
) -> VersionCheck:
    how = vendor.version_probe
    if version := find_stored_version(how, command, environment):
        return evaluate_version(vendor, version, "")
    from shim.process.probe import ProgramProbe

    probe = ProgramProbe(command, environment, variables, VERSION_TIMEOUT_S, cache_only=remembered)
    version = probe.ask_version(how)
    if version is None and probe.is_answer_missing:
        return VersionCheck(note="not remembered; a turn first asks the program for it")
    return evaluate_version(
        vendor, version, describe_failure(command, how, probe.failure, has_answer=probe.has_answer)
    )


def describe_failure(
    command: Sequence[str], how: VersionProbe, failure: str, *, has_answer: bool
) -> str:
    """Describe why a program's version is not recognised."""
    question = " ".join((os.path.basename(command[-1]), *how.args))
    if has_answer:
        return describe_answer(question, failure)
    return f"`{question}`: {failure or 'it printed nothing'}"

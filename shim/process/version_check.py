"""The version of the program that a turn starts, and whether its profile's promises hold for it.

Every start of a child waits for this, so a version that is known is read from a small file, without the imports of
`shim.process.probe`. A program is asked only if that file is missing, or was written for another state of the program.
"""

import os
from collections.abc import Mapping, Sequence

from shim.core.errors import ShimError
from shim.core.vendor.promises import (
    describe_answer,
    describe_broken_promise,
    has_promises,
    judge_version,
    withdraw_promises,
)
from shim.core.vendor.vendor import Vendor
from shim.core.vendor.versions import VersionCheck, VersionProbe
from shim.process.environment import child_environment
from shim.process.find_program import find_launcher, find_program
from shim.state.broken_promises import find_broken_promise
from shim.state.config import TWINS, VendorSettings
from shim.state.known_versions import find_known_version
from shim.vendors import find

# A turn that needs a promise is refused without an answer, so a slow start of Node on a busy machine is waited for.
VERSION_SECONDS = 10.0


def check_installed_version(
    vendor: Vendor,
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    trusted: bool = False,
    remembered: bool = False,
) -> VersionCheck:
    """Return what the installed version means for the promises of a vendor.

    `command` is the program after its launcher, `variables` are the environment of its children.
    `trusted`: the user vouches for the version. `remembered`: nothing is
    started, and a version that was never asked for counts as tested.
    """
    if vendor.program.plays:
        return VersionCheck()
    if trusted or not has_promises(vendor):
        check = VersionCheck(find_known_version(vendor.version, command, environment))
    else:
        check = _check(vendor, command, environment, variables, remembered=remembered)
    broken = find_broken_promise(vendor.name, check.version, environment)
    if broken is None:
        return check
    return withdraw_promises(check, describe_broken_promise(vendor, check.version, broken.tool))


def find_installed_vendor(
    vendor: Vendor,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    *,
    flat: bool = False,
    remembered: bool = False,
) -> Vendor:
    """Return the vendor whose program is installed under the name of this vendor's program: its twin, or itself."""
    if vendor.name not in TWINS:
        return vendor
    twin = find(TWINS[vendor.name], flat=flat)
    try:
        program = find_program(vendor, settings, environment, cwd)
        command = [*find_launcher(settings.launcher, environment, cwd), program]
    except ShimError:
        return vendor  # the turn reports it
    if find_known_version(twin.version, command, environment):
        return twin
    if remembered or find_known_version(vendor.version, command, environment):
        return vendor
    from shim.process.probe import Probe

    probe = Probe(command, environment, child_environment(twin, settings, environment), VERSION_SECONDS)
    return twin if probe.version(twin.version) else vendor


def _check(
    vendor: Vendor,
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    remembered: bool,
) -> VersionCheck:
    how = vendor.version
    if version := find_known_version(how, command, environment):
        return judge_version(vendor, version, "")
    from shim.process.probe import Probe

    probe = Probe(command, environment, variables, VERSION_SECONDS, remembered=remembered)
    version = probe.version(how)
    if version is None and probe.missed:
        return VersionCheck(note="not remembered; a turn asks the program for it first")
    return judge_version(vendor, version, describe_failure(command, how, probe.failure, answered=probe.answered))


def describe_failure(command: Sequence[str], how: VersionProbe, failure: str, *, answered: bool) -> str:
    """Describe why a program's version is not recognised."""
    asked = " ".join((os.path.basename(command[-1]), *how.args))
    return describe_answer(asked, failure) if answered else f"`{asked}`: {failure or 'it printed nothing'}"

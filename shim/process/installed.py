"""A vendor's program as it is started on this machine, with what stands before it, and what it says of itself."""

from collections.abc import Mapping

from shim.core.errors import ShimError
from shim.core.vendor.vendor import Vendor
from shim.process.environment import child_environment
from shim.process.find_program import find_launcher, find_program
from shim.process.probe import Probe
from shim.state.config import VendorSettings


def open_probe(
    vendor: Vendor,
    settings: VendorSettings,
    environment: Mapping[str, str],
    cwd: str,
    seconds: float | None = None,
) -> Probe:
    """What asks the program that a turn would start. ShimError when it, or its launcher, is not there.

    `seconds` is how long it is waited for, where that is not as usual.
    """
    command = [*find_launcher(settings.launcher, environment, cwd), find_program(vendor, settings, environment, cwd)]
    return Probe(command, environment, child_environment(vendor, settings, environment), seconds)


def known_version(vendor: Vendor, settings: VendorSettings, environment: Mapping[str, str], cwd: str) -> str | None:
    """The version of that program where somebody asked for it before; nothing is started, and no error is raised."""
    if vendor.bundled and (vendor.plays or not environment.get("SHIM_BIN")):
        return None
    try:
        return open_probe(vendor, settings, environment, cwd).known_version(vendor.version)
    except (ShimError, OSError, ValueError):
        return None

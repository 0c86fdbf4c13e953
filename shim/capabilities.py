"""What each vendor can do here: the rows of `shim vendors`."""

import re
import subprocess
from collections.abc import Mapping
from typing import Any

from shim.config import VendorSettings
from shim.environment import child_environment
from shim.errors import ShimError
from shim.own_vendors import readable
from shim.policy import MODES
from shim.probe import PROBE_SECONDS
from shim.programs import find_program
from shim.vendor import Vendor

VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")


def describe_all(environment: Mapping[str, str], cwd: str) -> list[dict[str, Any]]:
    """One row a vendor, JSON-ready: name, program, version, can, emulated, modes, refused, unattended."""
    return [describe(vendor, environment, cwd) for vendor in readable().values()]


def describe(vendor: Vendor, environment: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """The row of one vendor. SHIM_BIN is about the vendor of a turn and says nothing here."""
    searched = {name: value for name, value in environment.items() if name != "SHIM_BIN"}
    program = "bundled" if vendor.bundled else _program(vendor, searched, cwd)
    can = {
        "partial messages": vendor.streams,
        "resume": vendor.resumes,
        "interrupt": True,
        "permission requests": vendor.speech is not None or vendor.passthrough,
        "tool limits": vendor.limits_tools,
        "turn limit": vendor.limits_turns,
    }
    emulated = {"turn limit": not vendor.limits_turns, "tool limits (stops the turn)": not vendor.limits_tools}
    return {
        "name": vendor.name,
        "program": program,
        "version": _version(vendor, program, environment),
        "driven": _driven(vendor),
        "can": [name for name, able in can.items() if able],
        "emulated": [name for name, needed in emulated.items() if needed],
        "modes": list(vendor.modes),
        "refused": [mode for mode in MODES if mode not in vendor.modes],
        "unattended": vendor.unattended,
    }


def _driven(vendor: Vendor) -> str:
    """How many messages one process of it answers."""
    if vendor.speech is None and not vendor.passthrough:
        return "one process a message"
    return "one process a conversation"


def _program(vendor: Vendor, environment: Mapping[str, str], cwd: str) -> str | None:
    try:
        return find_program(vendor, VendorSettings(), environment, cwd)
    except ShimError:
        return None


def _version(vendor: Vendor, program: str | None, environment: Mapping[str, str]) -> str | None:
    if program is None or vendor.bundled:
        return None
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            env=child_environment(vendor, VendorSettings(), environment),
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = VERSION.search(done.stdout.decode("utf-8", "replace"))
    return found[0] if found else None

"""The vendors, one line each; a module is imported only when its vendor is asked for."""

from collections.abc import Callable
from importlib import import_module

from shim.errors import FrontendError
from shim.ids import vendor_name
from shim.vendor import Launch, Request, Vendor

VENDORS = {
    "acai": "acai:ACAI",
    "cake": "acai:CAKE",
    "claude": "claude:VENDOR",
    "cursor": "cursor:VENDOR",
    "demo": "demo:VENDOR",
    "pi": "pi:VENDOR",
    "qwen": "qwen:VENDOR",
}


# Where the lines of a vendor must not pass as they are: the same vendor, translated like any other.
FLAT = {"claude": "claude_flat:VENDOR"}


def find(name: str, *, flat: bool = False) -> Vendor:
    """The vendor called `name`; FrontendError when there is none. `flat`: nothing of it may pass verbatim."""
    if not vendor_name(name) or name not in VENDORS:
        raise FrontendError(
            f"{name[:40]!r} is no vendor; there are: {', '.join(VENDORS)}",
            hint="`shim vendors` shows each with what is found on this machine",
        )
    module, _, attribute = ((flat and FLAT.get(name)) or VENDORS[name]).partition(":")
    vendor = getattr(import_module(f"shim.vendors.{module}"), attribute)
    assert isinstance(vendor, Vendor)
    return vendor


def find_recorded(
    name: str, launch: Callable[[Request], Launch], place: Callable[[], str], *, listens: bool, flat: bool
) -> Vendor:
    """What stands for the vendor called `name` where recordings of it are played (`vendors/replay.py`).

    `listens`: the recorded child was told everything through its stdin.
    """
    from shim.vendors.replay import stand_in

    recorded = find(name, flat=flat)
    return stand_in(recorded if listens else recorded._replace(speech=None), launch, place)

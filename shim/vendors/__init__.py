"""The vendors, one line each; a module is imported only when its vendor is asked for."""

from importlib import import_module

from shim.errors import FrontendError
from shim.ids import vendor_name
from shim.vendor import Vendor

VENDORS = {
    "acai": "acai:ACAI",
    "cake": "acai:CAKE",
    "claude": "claude:VENDOR",
    "cursor": "cursor:VENDOR",
    "demo": "demo:VENDOR",
    "pi": "pi:VENDOR",
    "qwen": "qwen:VENDOR",
}


def find(name: str) -> Vendor:
    """The vendor called `name`; FrontendError when there is none."""
    if not vendor_name(name) or name not in VENDORS:
        raise FrontendError(
            f"{name[:40]!r} is no vendor; there are: {', '.join(VENDORS)}",
            hint="`shim vendors` shows each with what is found on this machine",
        )
    module, _, attribute = VENDORS[name].partition(":")
    vendor = getattr(import_module(f"shim.vendors.{module}"), attribute)
    assert isinstance(vendor, Vendor)
    return vendor

"""The environment of a child: without what is Claude's or ours, with the guard against starting ourselves for ever."""

from collections.abc import Mapping

from shim.config import VendorSettings
from shim.vendor import Vendor

DEPTH = "SHIM_DEPTH"
DEPTH_LIMIT = 3  # a vendor's tool may call `claude`, and that one may do it again; nobody means a fourth

_CLAUDE = ("CLAUDE_CODE_", "CLAUDE_AGENT_SDK_")


def depth(environment: Mapping[str, str]) -> int:
    """How many of us are above this one."""
    text = environment.get(DEPTH, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else DEPTH_LIMIT


def child_environment(vendor: Vendor, settings: VendorSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """What the child of `vendor` sees (surface page, Environment): a key of one vendor is not handed to another."""
    child = {}
    for name, value in environment.items():
        if name.startswith("SHIM_"):
            continue
        if not vendor.passthrough and (name == "CLAUDECODE" or name.startswith(_CLAUDE)):
            continue
        if name.startswith("ANTHROPIC_") and not (vendor.passthrough or name in vendor.keys):
            continue
        child[name] = value
    child[DEPTH] = str(depth(environment) + 1)
    return child | dict(settings.env)

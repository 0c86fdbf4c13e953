"""The adapters for all vendors. An adapter's module or profile is loaded when its vendor is
requested.
"""

from collections.abc import Callable
from importlib import import_module

from shim.core.adapter.adapter import Adapter
from shim.core.errors import CommandUsageError, format_spelling_suggestion
from shim.core.reading.values import is_valid_vendor_name

# Name of the vendor → `module:attribute` of its `Adapter`, or its profile: the name of a file in
# this folder, or the absolute path of a user's profile (added by `shim.state.own_profiles`).
VENDORS = {
    "acai": "acai.toml",
    "amp": "amp.toml",
    "cake": "cake.toml",
    "claude": "claude:ADAPTER",
    "cline": "cline.toml",
    "codex": "codex.toml",
    "copilot": "copilot.toml",
    "cursor": "cursor:ADAPTER",
    "demo": "demo:ADAPTER",
    "droid": "droid.toml",
    "gemini": "gemini.toml",
    "kilo": "kilo.toml",
    "kimi": "kimi.toml",
    "kimi-code": "kimi-code.toml",
    "opencode": "opencode.toml",
    "pi": "pi:ADAPTER",
    "qwen": "qwen:ADAPTER",
    "qwen-rfc": "qwen_rfc:ADAPTER",
    "vibe": "vibe.toml",
}
PROFILE_SUFFIX = ".toml"
# A user's profile can extend these profiles.
BUNDLED_PROFILES = tuple(
    name for name, source in VENDORS.items() if source.endswith(PROFILE_SUFFIX)
)

# Adapters that translate a vendor's lines although its default adapter passes them through.
FLAT_ADAPTERS = {"claude": "claude:FLAT_ADAPTER"}


def _load_bundled_profile(name: str, source: str) -> Adapter:
    """Return the adapter for a bundled profile. Only resources of this package are read."""
    from shim.profiles.load.profile_file import load_bundled_profile, load_profile_adapter

    return load_profile_adapter(name, source, load_bundled_profile, BUNDLED_PROFILES)


# Functions that load a profile. Only the last function in this list is used.
# `shim.state.own_profiles` appends a function that also loads a user's profiles and caches parsed
# profiles.
profile_loaders: list[Callable[[str, str], Adapter]] = [_load_bundled_profile]


def get_adapter(name: str, *, without_passthrough: bool = False) -> Adapter:
    """Return the adapter for a vendor. Raise CommandUsageError for an unknown name.

    If `without_passthrough` is set, lines are translated even if they already have Claude's format.
    """
    if not is_valid_vendor_name(name) or name not in VENDORS:
        raise CommandUsageError(
            f"unknown vendor {name[:40]!r}{format_spelling_suggestion(name, VENDORS)}",
            hint=f"the vendors are {', '.join(VENDORS)}; `shim vendors` shows which are installed",
        )
    source = VENDORS[name]
    if without_passthrough:
        source = FLAT_ADAPTERS.get(name, source)
    if source.endswith(PROFILE_SUFFIX):
        return profile_loaders[-1](name, source)
    module, _, attribute = source.partition(":")
    adapter = getattr(import_module(f"shim.adapters.{module}"), attribute)
    assert isinstance(adapter, Adapter)
    return adapter

"""The vendors, one line each; a module or a profile is read only when its vendor is asked for."""

from collections.abc import Callable
from importlib import import_module

from shim.core.adapter.adapter import Adapter, ReplaySource
from shim.core.errors import FrontendError, format_spelling_suggestion
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.values import is_valid_vendor_name

# A module with the name of its `Adapter`, or the profile that describes it: a file of this folder,
# or, where the shell was told of one (`own_profiles`), the whole path of a user's own.
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
# bundled, which others extend
BUNDLED_PROFILES = tuple(
    name for name, source in VENDORS.items() if source.endswith(PROFILE_SUFFIX)
)

# Where the lines of a vendor must not pass as they are: the same vendor, translated like any other.
FLAT_ADAPTERS = {"claude": "claude:FLAT_ADAPTER"}


def _load_bundled_profile(name: str, source: str) -> Adapter:
    """The vendor of a bundled profile, without the shell: read as a module is, by the loader of
    this package.
    """
    from shim.profiles.load.profile_file import load_bundled_profile, load_profile_adapter

    return load_profile_adapter(name, source, load_bundled_profile, BUNDLED_PROFILES)


# What reads a profile; the shell puts another one here, which knows a user's own and remembers what
# it parsed.
profile_loaders: list[Callable[[str, str], Adapter]] = [_load_bundled_profile]


def get_adapter(name: str, *, without_passthrough: bool = False) -> Adapter:
    """Return the adapter of a vendor. Raise FrontendError for an unknown name.

    With `without_passthrough`, its lines are translated also if they are Claude's.
    """
    if not is_valid_vendor_name(name) or name not in VENDORS:
        suggestion = format_spelling_suggestion(name, VENDORS, "; ")
        raise FrontendError(
            f"unknown vendor {name[:40]!r}; known are: {', '.join(VENDORS)}{suggestion}",
            hint="`shim vendors` shows which of them are on this machine",
        )
    source = (without_passthrough and FLAT_ADAPTERS.get(name)) or VENDORS[name]
    if source.endswith(PROFILE_SUFFIX):
        return profile_loaders[-1](name, source)
    module, _, attribute = source.partition(":")
    adapter = getattr(import_module(f"shim.adapters.{module}"), attribute)
    assert isinstance(adapter, Adapter)
    return adapter


def build_replay_adapter(
    name: str, replay: ReplaySource, *, persistent: bool, without_passthrough: bool
) -> Adapter:
    """Return the adapter of a vendor whose recordings are played. It starts no vendor.

    It drives and translates like that vendor, but every permission mode is accepted, and no tools
    run. `shim.recording.player` is its program. `persistent`: the recorded child received its
    messages through stdin.
    """
    adapter = get_adapter(name, without_passthrough=without_passthrough)
    if persistent and adapter.cli.has_two_way:
        adapter = adapter.build_two_way()
    return adapter.copy_with(
        name="replay",
        programs=(),
        child_input_ref=adapter.child_input_ref if persistent else "",
        modes=dict.fromkeys((*PERMISSION_MODES, *adapter.modes), ()),
        unattended=False,
        abilities=adapter.abilities._replace(
            can_resume=True, has_auto_mode="auto" in adapter.modes
        ),
        cli=adapter.cli._replace(
            bundled_module="shim.recording.player",
            has_two_way=False,
            variants={},
            replayed_vendor=adapter.name,
            replay=replay,
        ),
        environment=adapter.environment._replace(visible_variables=(), data_dir=None),
    )

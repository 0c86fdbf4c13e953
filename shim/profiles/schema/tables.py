"""All keys of a profile. Each TOML table in a profile has its own table of keys here. The reference
in the manual is generated from these tables.
"""

from collections.abc import Mapping

from shim.profiles.check.config_node import ConfigTable
from shim.profiles.compile.stream import STREAM_END_KEYS, STREAM_KEYS
from shim.profiles.load.acp import ACP_KEYS, SIGN_KEYS
from shim.profiles.load.adapter import PROFILE_KEYS
from shim.profiles.load.denials import DENIAL_KEYS
from shim.profiles.load.launch import (
    HOME_KEYS,
    INTERRUPT_KEYS,
    LAUNCH_KEYS,
    LOGIN_PROBE_KEYS,
    MODEL_PROBE_KEYS,
    REPORT_KEYS,
    TIMEOUT_KEYS,
    VERSION_PROBE_KEYS,
)
from shim.profiles.load.prompt import PROMPT_KEYS

# Name of a TOML table → the keys of the table. "" is the top level of the profile.
PROFILE_TABLES: Mapping[str, ConfigTable] = {
    "": PROFILE_KEYS,
    "launch": LAUNCH_KEYS,
    "launch.prompt": PROMPT_KEYS,
    "launch.interrupt": INTERRUPT_KEYS,
    "launch.timeouts": TIMEOUT_KEYS,
    "launch.version_probe": VERSION_PROBE_KEYS,
    "launch.login_probe": LOGIN_PROBE_KEYS,
    "launch.models_probe": MODEL_PROBE_KEYS,
    "launch.home": HOME_KEYS,
    "launch.report": REPORT_KEYS,
    "launch.denials": DENIAL_KEYS,
    "acp": ACP_KEYS,
    "acp.signs": SIGN_KEYS,
    "stream": STREAM_KEYS,
    "stream.end": STREAM_END_KEYS,
}

# The keys and operators of rules, tools and conditions that no bundled profile uses. `ProfileKey`
# describes the names. The value is the replacement, or "" if there is no replacement.
_UNUSED_RULE_KEYS: Mapping[str, str] = {
    "stderr.note": "a comment (#)",
    "event.note": "a comment (#)",
    "event.session.mode": "",
    "event.session.vendor_version": "",
    "event.session.key_source": "",
    "event.result.code": "",
    "event.result.stop_reason": "`stop_reason` of a `usage` rule",
    "event.retry.delay_ms": "",
    "emit.tool_input": "",
    "emit.compacted": "",
    "usage.cost_usd": "`cost_usd` of the rule",
    "condition.in": 'the list alone, such as `type = ["a", "b"]`,',
    "tools.add": "`args` with `const`, and `keep = true`",
}


def map_unused_keys_to_successors() -> dict[str, str]:
    """Return the keys and operators that no bundled profile uses, and the replacement for each. A
    test compares the result with the bundled profiles.
    """
    unused_keys = {
        f"{table}.{name}".lstrip("."): key.successor
        for table, keys in PROFILE_TABLES.items()
        for name, key in keys.items()
        if key.successor is not None
    }
    return {**unused_keys, **_UNUSED_RULE_KEYS}

"""What a configuration says of MCP servers, without what may be secret.

A key of a server's own, or a word behind `--token`, has no known shape: all values of its
environment and headers and all its arguments are blanked. The protocols say a table also as a list
of objects with a name and a value.
"""

from typing import Any

from shim.core.secrets.redactor import ARGUMENT_PLACEHOLDER

_SERVER_KEYS = frozenset(("mcpServers", "mcp_servers"))
_BLANKED_KEYS = frozenset(("env", "headers", "http_headers", "args"))
_QUOTED_SERVER_KEYS = tuple(f'"{key}"'.encode() for key in _SERVER_KEYS)


def has_mcp_server_config_key(json_line: bytes) -> bool:
    """Whether a line of JSON may say something of servers: nearly none does."""
    return any(quoted_key in json_line for quoted_key in _QUOTED_SERVER_KEYS)


def redact_mcp_server_configs(value: Any, is_inside_servers: bool = False) -> Any:
    """A value of JSON where the servers have no values that may be secret; there are as many
    strings as before.
    """
    if isinstance(value, list):
        return [redact_mcp_server_configs(item, is_inside_servers) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _blank_strings(item)
        if is_inside_servers and key in _BLANKED_KEYS
        else redact_mcp_server_configs(item, is_inside_servers or key in _SERVER_KEYS)
        for key, item in value.items()
    }


def _blank_strings(value: Any) -> Any:
    """The same shape with a mark for each string; the name of a pair stays."""
    if isinstance(value, str):
        return ARGUMENT_PLACEHOLDER
    if isinstance(value, list):
        return [_blank_strings(item) for item in value]
    if isinstance(value, dict):
        is_pair = value.keys() == {"name", "value"}
        return {
            key: item if is_pair and key == "name" else _blank_strings(item)
            for key, item in value.items()
        }
    return value

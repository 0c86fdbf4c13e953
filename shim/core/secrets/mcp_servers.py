"""Redacts the configuration of MCP servers.

A server's API key, or an argument after `--token`, matches no known pattern. So all arguments and
all values of environment variables and headers are replaced. Some configurations list environment
variables and headers as objects with a name and a value.
"""

from typing import Any

from shim.core.secrets.redactor import ARGUMENT_PLACEHOLDER

_SERVER_KEYS = frozenset(("mcpServers", "mcp_servers"))
_BLANKED_KEYS = frozenset(("env", "headers", "http_headers", "args"))
_QUOTED_SERVER_KEYS = tuple(f'"{key}"'.encode() for key in _SERVER_KEYS)


def has_mcp_server_config_key(json_line: bytes) -> bool:
    """Return whether a line of JSON may contain the configuration of MCP servers. Most lines do
    not.
    """
    return any(quoted_key in json_line for quoted_key in _QUOTED_SERVER_KEYS)


def redact_mcp_server_configs(value: Any, is_inside_servers: bool = False) -> Any:
    """Return a JSON value in which every value in an MCP server's configuration that may be secret
    is replaced. The number of strings stays the same.
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
    """Replace each string with a placeholder, except for the name in an object with a name and a
    value.
    """
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

"""What a configuration says of MCP servers, without what may be secret.

A key of a server's own, or a word behind `--token`, has no known shape: all values of its
environment and headers and all its arguments are blanked. The protocols say a table also as a list
of objects with a name and a value.
"""

from typing import Any

from shim.core.secrets.redactor import ARGUMENT

_SERVERS = frozenset(("mcpServers", "mcp_servers"))
_BLANKED = frozenset(("env", "headers", "http_headers", "args"))
_SIGNS = tuple(f'"{key}"'.encode() for key in _SERVERS)


def has_servers(line: bytes) -> bool:
    """Whether a line of JSON may say something of servers: nearly none does."""
    return any(sign in line for sign in _SIGNS)


def without_values(value: Any, inside: bool = False) -> Any:
    """A value of JSON where the servers have no values that may be secret; there are as many
    strings as before.
    """
    if isinstance(value, list):
        return [without_values(item, inside) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _blank(item)
        if inside and key in _BLANKED
        else without_values(item, inside or key in _SERVERS)
        for key, item in value.items()
    }


def _blank(value: Any) -> Any:
    """The same shape with a mark for each string; the name of a pair stays."""
    if isinstance(value, str):
        return ARGUMENT
    if isinstance(value, list):
        return [_blank(item) for item in value]
    if isinstance(value, dict):
        pair = value.keys() == {"name", "value"}
        return {
            key: item if pair and key == "name" else _blank(item) for key, item in value.items()
        }
    return value

"""Loads the MCP servers from `--mcp-config` before a vendor is started. The error texts are the
same as in the real claude (2.1.330).
"""

import os
from collections.abc import Iterable

import orjson

from shim.core.errors import CliArgumentError
from shim.core.reading.typed import Any

MAX_FILE_BYTES = 1024 * 1024  # the size limit for a configuration file
_JSON_TYPE_NAMES = {
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


def load_mcp_configs(configs: Iterable[str], cwd: str) -> dict[str, Any]:
    """Return the server configurations by server name. If several values define the same name, the
    last one is used.

    Raise CliArgumentError if a value is neither valid JSON with servers nor the path of such a JSON
    file.
    """
    servers: dict[str, Any] = {}
    errors = []
    for config in configs:
        try:
            if config.strip():
                servers |= _load_servers(config, cwd)
            else:
                servers |= {}
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise CliArgumentError("\n".join(["Error: Invalid MCP configuration:", *errors]))
    return servers


def _load_servers(config: str, cwd: str) -> dict[str, Any]:
    """Return the servers that a single value defines. Raise ValueError with a message if the value
    is invalid.
    """
    try:
        return _parse_servers(orjson.loads(config))
    except orjson.JSONDecodeError:
        path = os.path.join(cwd, config)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except (FileNotFoundError, ValueError):  # a path with a NUL character raises ValueError
        raise ValueError(f"MCP config file not found: {path}") from None
    except OSError as error:
        raise ValueError(f"Failed to read file: {path}: {error.strerror}") from None
    try:
        return _parse_servers(orjson.loads(data))
    except orjson.JSONDecodeError:
        raise ValueError("MCP config is not a valid JSON") from None


def _parse_servers(value: object) -> dict[str, Any]:
    """Return the servers in parsed JSON. Raise ValueError if there are no servers."""
    if not isinstance(value, dict):
        raise ValueError(
            f"Invalid input: expected object, received {_JSON_TYPE_NAMES[type(value)]}"
        )
    servers = value.get("mcpServers")
    if isinstance(servers, dict):
        return servers
    received = "undefined"
    if "mcpServers" in value:
        received = _JSON_TYPE_NAMES[type(servers)]
    raise ValueError(f"mcpServers: Invalid input: expected record, received {received}")

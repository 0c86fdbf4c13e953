"""What `--mcp-config` names, read before a vendor is started. Faults are told in the real claude's
words (2.1.330).
"""

import os
from collections.abc import Iterable

import orjson

from shim.core.errors import CliArgumentError
from shim.core.reading.typed import Any

MAX_FILE_BYTES = 1024 * 1024  # of a list of servers
_JSON_TYPE_NAMES = {
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


def load_mcp_configs(configs: Iterable[str], cwd: str) -> dict[str, Any]:
    """The servers that all values name: name → configuration; of the same name the last one counts.

    CliArgumentError for a value that is neither JSON with servers nor the path of a file with such
    JSON.
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
    """The servers of one value. ValueError says what is wrong with it."""
    try:
        return _parse_servers(orjson.loads(config))
    except orjson.JSONDecodeError:
        path = os.path.join(cwd, config)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except (FileNotFoundError, ValueError):  # no path has a NUL character
        raise ValueError(f"MCP config file not found: {path}") from None
    except OSError as error:
        raise ValueError(f"Failed to read file: {path}: {error.strerror}") from None
    try:
        return _parse_servers(orjson.loads(data))
    except orjson.JSONDecodeError:
        raise ValueError("MCP config is not a valid JSON") from None


def _parse_servers(value: object) -> dict[str, Any]:
    """The servers in parsed JSON."""
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

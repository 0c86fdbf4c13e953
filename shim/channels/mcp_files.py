"""What `--mcp-config` names, checked before a vendor is started, in the words of the real claude (2.1.330)."""

import os
from collections.abc import Iterable

import orjson

from shim.core.errors import ArgumentError

FILE_BYTES = 1024 * 1024  # of a list of servers
_KINDS = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def check_mcp_configs(configs: Iterable[str], cwd: str) -> None:
    """ArgumentError for a value that is neither JSON with servers nor the path of a file with such JSON."""
    faults = [fault for config in configs if config.strip() and (fault := _fault(config, cwd))]
    if faults:
        raise ArgumentError("\n".join(["Error: Invalid MCP configuration:", *faults]))


def _fault(config: str, cwd: str) -> str:
    try:
        return _wrong(orjson.loads(config))
    except orjson.JSONDecodeError:
        path = os.path.join(cwd, config)
    try:
        with open(path, "rb") as file:
            return _wrong(orjson.loads(file.read(FILE_BYTES)))
    except orjson.JSONDecodeError:
        return "MCP config is not a valid JSON"
    except (FileNotFoundError, ValueError):  # no path has a NUL character
        return f"MCP config file not found: {path}"
    except OSError as error:
        return f"Failed to read file: {path}: {error.strerror}"


def _wrong(value: object) -> str:
    """What is wrong with parsed JSON; "" for a list of servers."""
    if not isinstance(value, dict):
        return f"Invalid input: expected object, received {_KINDS[type(value)]}"
    servers = value.get("mcpServers")
    if isinstance(servers, dict):
        return ""
    received = _KINDS[type(servers)] if "mcpServers" in value else "undefined"
    return f"mcpServers: Invalid input: expected record, received {received}"

"""Descriptions of the MCP servers that a vendor connects to."""

from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import get_text


class McpServerReport(NamedTuple):
    """What a vendor has reported about one MCP server. `status` is one of Claude's status names."""

    status: str
    error: str = ""


def describe_server_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's configuration for `mcp_status`, without members that may contain secrets."""
    server_type = get_text(config, "type", "http" if "url" in config else "stdio")
    public_keys = ("command", "args", "url")
    return {"type": server_type, **{key: config[key] for key in public_keys if key in config}}

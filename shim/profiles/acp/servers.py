"""MCP servers of `--mcp-config` as the protocol has them."""

from collections.abc import Mapping

from shim.core.reading.typed import Any

SERVERS = 100  # that one session may have


def servers(named: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """The servers of a configuration: name → what Claude has for it."""
    return tuple([_server(name, one) for name, one in named.items() if isinstance(one, dict)][:SERVERS])


def _server(name: str, server: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(url := server.get("url"), str):
        kind = "sse" if server.get("type") == "sse" else "http"
        return {"type": kind, "name": name, "url": url, "headers": _pairs(server.get("headers"))}
    arguments = server.get("args")
    return {
        "name": name,
        "command": str(server.get("command") or ""),
        "args": [str(word) for word in arguments] if isinstance(arguments, list) else [],
        "env": _pairs(server.get("env")),
    }


def _pairs(table: object) -> list[dict[str, str]]:
    return [{"name": str(key), "value": str(value)} for key, value in table.items()] if isinstance(table, dict) else []

"""Converts the MCP servers of `--mcp-config` to the format of ACP."""

from collections.abc import Iterable, Iterator, Mapping

from shim.core.policy.policy import MCP_PREFIX, normalize_mcp_name
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import as_list

if TYPE_CHECKING:
    from shim.core.policy.evaluate import PolicyEvaluator

MAX_SERVERS = 100  # MCP servers of one session


def build_mcp_servers(server_configs: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """Return the MCP servers of a configuration in ACP's format. The configuration maps each server
    name to Claude's server configuration.
    """
    return tuple(
        [
            _build_server(name, config)
            for name, config in server_configs.items()
            if isinstance(config, dict)
        ][:MAX_SERVERS]
    )


def resolve_mcp_tool_name(
    template: str,
    server_names: Iterable[str],
    vendor_tool: str,
    evaluator: "PolicyEvaluator | None" = None,
) -> str:
    """Return Claude's name for the agent's tool `vendor_tool`, or "" if no MCP server has this
    tool.

    `template` is the agent's format for such names, for example "mcp_{server}_{tool}". If several
    servers match, return the tool that a rule in `evaluator` restricts. Otherwise return the tool
    of the server with the longest name.
    """
    candidates = list(_list_candidate_names(template, server_names, vendor_tool))
    restricted = (
        name
        for name in candidates
        if evaluator is not None and evaluator.find_restricting_decision(name, {}) is not None
    )
    return next(restricted, candidates[0] if candidates else "")


def _list_candidate_names(template: str, names: Iterable[str], vendor_tool: str) -> Iterator[str]:
    """Yield the MCP tools that an agent's tool name may refer to, starting with the server that has
    the longest name.
    """
    for name in sorted(names, key=len, reverse=True) if template else ():
        server = normalize_mcp_name(name)
        prefix = template.partition("{tool}")[0].replace("{server}", server)
        if vendor_tool.startswith(prefix) and len(vendor_tool) > len(prefix):
            yield f"{MCP_PREFIX}{server}__{vendor_tool[len(prefix) :]}"


def _build_server(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(url := config.get("url"), str):
        kind = "http"
        if config.get("type") == "sse":
            kind = "sse"
        return {
            "type": kind,
            "name": name,
            "url": url,
            "headers": _build_pairs(config.get("headers")),
        }
    return {
        "name": name,
        "command": str(config.get("command") or ""),
        "args": [str(arg) for arg in as_list(config.get("args"))],
        "env": _build_pairs(config.get("env")),
    }


def _build_pairs(fields: object) -> list[dict[str, str]]:
    if isinstance(fields, dict):
        return [{"name": str(key), "value": str(value)} for key, value in fields.items()]
    return []

"""MCP servers of `--mcp-config` as the protocol has them."""

from collections.abc import Iterable, Iterator, Mapping

from shim.core.policy.policy import MCP_PREFIX, normalize_mcp_name
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shim.core.policy.evaluate import PolicyEvaluator

MAX_SERVERS = 100  # that one session may have


def build_mcp_servers(server_configs: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """The servers of a configuration: name → what Claude has for it."""
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
    """Claude's name of a tool that an agent calls `vendor_tool`, where it is of one of the named
    servers; else "".

    `template` is how the agent names such a tool: "mcp_{server}_{tool}". Where two servers fit, the
    tool that a rule of the `evaluator` restricts counts, else that of the server with the longer
    name.
    """
    candidates = list(_list_candidate_names(template, server_names, vendor_tool))
    restricted = (
        name
        for name in candidates
        if evaluator is not None and evaluator.find_restricting_decision(name, {}) is not None
    )
    return next(restricted, candidates[0] if candidates else "")


def _list_candidate_names(template: str, names: Iterable[str], vendor_tool: str) -> Iterator[str]:
    """Yield what an agent may mean by a tool's name, that of the server with the longest name
    first.
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
    args = config.get("args")
    return {
        "name": name,
        "command": str(config.get("command") or ""),
        "args": [str(arg) for arg in args] if isinstance(args, list) else [],
        "env": _build_pairs(config.get("env")),
    }


def _build_pairs(fields: object) -> list[dict[str, str]]:
    if isinstance(fields, dict):
        return [{"name": str(key), "value": str(value)} for key, value in fields.items()]
    return []

"""MCP servers of `--mcp-config` as the protocol has them."""

from collections.abc import Iterable, Iterator, Mapping

from shim.core.policy.rules import MCP_PREFIX, normalize_mcp_name
from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shim.core.policy.judge import PolicyEvaluator

MAX_SERVERS = 100  # that one session may have


def build_servers(named: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """The servers of a configuration: name → what Claude has for it."""
    return tuple(
        [_build_server(name, one) for name, one in named.items() if isinstance(one, dict)][
            :MAX_SERVERS
        ]
    )


def resolve_server_tool(
    template: str, names: Iterable[str], own: str, judge: "PolicyEvaluator | None" = None
) -> str:
    """Claude's name of a tool that an agent calls `own`, where it is of one of the named servers;
    else "".

    `template` is how the agent names such a tool: "mcp_{server}_{tool}". Where two servers fit, the
    tool that a rule of the `judge` restricts counts, else that of the server with the longer name.
    """
    found = list(_list_candidate_names(template, names, own))
    restricted = (
        name for name in found if judge is not None and judge.find_restriction(name, {}) is not None
    )
    return next(restricted, found[0] if found else "")


def _list_candidate_names(template: str, names: Iterable[str], own: str) -> Iterator[str]:
    """Yield what an agent may mean by a tool's name, that of the server with the longest name
    first.
    """
    for name in sorted(names, key=len, reverse=True) if template else ():
        server = normalize_mcp_name(name)
        beginning = template.partition("{tool}")[0].replace("{server}", server)
        if own.startswith(beginning) and len(own) > len(beginning):
            yield f"{MCP_PREFIX}{server}__{own[len(beginning) :]}"


def _build_server(name: str, server: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(url := server.get("url"), str):
        kind = "sse" if server.get("type") == "sse" else "http"
        return {
            "type": kind,
            "name": name,
            "url": url,
            "headers": _build_pairs(server.get("headers")),
        }
    arguments = server.get("args")
    return {
        "name": name,
        "command": str(server.get("command") or ""),
        "args": [str(word) for word in arguments] if isinstance(arguments, list) else [],
        "env": _build_pairs(server.get("env")),
    }


def _build_pairs(table: object) -> list[dict[str, str]]:
    return (
        [{"name": str(key), "value": str(value)} for key, value in table.items()]
        if isinstance(table, dict)
        else []
    )

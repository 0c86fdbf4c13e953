"""Builds the fields of the init line, which is the first line of a turn."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.policy.policy import (
    AGENT_SERVER,
    STRUCTURED_OUTPUT_TOOL,
    SUBAGENT_TOOL,
    normalize_tool_name,
)
from shim.core.reading.json_text import JsonSanitizer
from shim.core.turn.assistant_message import SYNTHETIC_MODEL
from shim.core.turn.context import TurnConfig, VendorInfo

# The fields that a vendor reports about itself, with their types. Values of another type are
# ignored, because they would make some clients exit.
INFO_TYPES: dict[str, type] = {
    **dict.fromkeys(("cwd", "model", "mode", "key_source", "vendor_version"), str),
    **dict.fromkeys(("tools", "mcp_servers", "slash_commands", "agents", "skills"), list),
}
ITEM_TYPES: dict[str, type] = {
    "tools": str,
    "slash_commands": str,
    "agents": str,
    "skills": str,
    "mcp_servers": dict,
}


def clean_vendor_info(info: Mapping[str, Any], sanitizer: JsonSanitizer) -> dict[str, Any]:
    """Return the fields that a vendor reported about itself. Fields and list items of an
    unexpected type are removed, and the names of tools are normalized.
    """
    clean_info = {}
    for name, value in info.items():
        if value is None or value == SYNTHETIC_MODEL:
            continue
        if not isinstance(value, INFO_TYPES.get(name, object)):
            continue
        if isinstance(value, list):
            item_type = ITEM_TYPES.get(name, object)
            value = [item for item in value if isinstance(item, item_type)]
        if name == "tools":
            value = [normalize_tool_name(tool) for tool in value]
        clean_info[name] = sanitizer.clean(value)
    return clean_info


def build_init_fields(
    config: TurnConfig,
    vendor_info: Mapping[str, Any],
    model: str,
    redact: Callable[[Any], Any] | None,
) -> dict[str, Any]:
    """Return the fields of the init line. `model` is the model that will write the next reply."""
    fields: dict[str, Any] = {
        "cwd": config.cwd,
        "tools": list(config.tools),
        "mode": config.mode,
        "shim": _build_shim_fields(config, vendor_info),
        "model": config.model or model,
        **vendor_info,
    }
    if config.output_style:
        fields["output_style"] = config.output_style
    _add_mcp_servers(config, fields)
    if config.agents:
        _add_agents(config, fields)
    _add_commands(config, fields)
    if redact is not None:
        fields |= {name: redact(value) for name, value in fields.items() if name in INFO_TYPES}
    if config.read_answer is not None and STRUCTURED_OUTPUT_TOOL not in fields["tools"]:
        fields["tools"] = [*fields["tools"], STRUCTURED_OUTPUT_TOOL]
    if config.evaluator is not None:
        fields["tools"] = config.evaluator.policy.list_visible_tools(fields["tools"])
    return fields


def build_version_warning_fields(vendor: VendorInfo) -> dict[str, Any]:
    """Return the members of `init.shim` that warn about the vendor's version. Return {} if there is
    nothing to warn about.
    """
    fields: dict[str, Any] = {}
    if vendor.unattended_reason:
        fields |= {"unattended": True, "unattended_reason": vendor.unattended_reason}
    if vendor.version_note:
        fields["version_note"] = vendor.version_note
    return fields


def _build_shim_fields(config: TurnConfig, vendor_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `shim` member of the init line."""
    fields: dict[str, Any] = {
        "vendor": config.vendor.name,
        "unattended": config.vendor.is_unattended,
    }
    if version := vendor_info.get("vendor_version") or config.vendor.version:
        fields["vendor_version"] = version
    fields |= build_version_warning_fields(config.vendor)
    if config.vendor.is_replay:
        fields["replay"] = True
    if config.requested_model:
        fields["model_asked"] = config.requested_model
    if config.failed_attempts:
        fields["tried"] = [attempt.to_json() for attempt in config.failed_attempts]
    if config.unsupported_rules:
        fields["not_honoured"] = [rule.to_json() for rule in config.unsupported_rules]
    if config.has_rebuilt_history:
        fields["rebuilt_history"] = True
    return fields


def _add_commands(config: TurnConfig, fields: dict[str, Any]) -> None:
    """Add the shim's commands and Claude's command files before the vendor's own commands. If the
    vendor has not reported its commands in this turn, add the commands that it offered earlier.
    """
    names = config.session.list_commands()
    vendor_names = fields.get("slash_commands")
    if vendor_names is None:
        vendor_names = names.vendor
    fields["slash_commands"] = list(dict.fromkeys((*names.listed, *vendor_names)))
    if names.skills:
        fields["skills"] = list(names.skills)


def _add_mcp_servers(config: TurnConfig, fields: dict[str, Any]) -> None:
    """Add the MCP servers, and their tools, that the vendor's own report does not list."""
    local_servers, local_tools = config.session.list_servers()
    if not local_servers:
        return
    servers = {str(server["name"]): server for server in local_servers}
    for server in fields.get("mcp_servers", ()):
        name = str(server.get("name"))
        servers[name] = servers.get(name, {}) | server
    fields["mcp_servers"] = list(servers.values())
    tools = (*fields["tools"], *map(normalize_tool_name, local_tools))
    fields["tools"] = list(dict.fromkeys(tools))


def _add_agents(config: TurnConfig, fields: dict[str, Any]) -> None:
    """Add the subagents that the frontend defines, and the tool that starts them. The shim's own
    MCP server with this tool is not listed.
    """
    names = {*config.agents, *fields.get("agents", ())}
    fields["agents"] = sorted(names, key=lambda name: (name.lower(), name))
    fields["tools"] = list(dict.fromkeys((*fields["tools"], SUBAGENT_TOOL)))
    servers = fields.get("mcp_servers", ())
    fields["mcp_servers"] = [server for server in servers if server.get("name") != AGENT_SERVER]

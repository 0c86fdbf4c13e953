"""Lists for the frontend: the MCP servers, commands, output styles and models of a session."""

from collections.abc import Iterable

from shim.core.claude.argv.models import CLAUDE_EFFORT_LEVELS, DEFAULT_MODEL, OfferedModel
from shim.core.claude.session_state import SessionState
from shim.core.policy.policy import normalize_mcp_name
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.claude.offered_commands import CommandNames


def list_mcp_server_entries(state: SessionState, *, detailed: bool = False) -> list[dict[str, Any]]:
    """Return the MCP servers' entries for `init`. If `detailed` is set, return their entries
    for `mcp_status`.

    An external server is listed as `pending` until the vendor has reported its status. If the
    vendor cannot use a server, the server's status is `failed`.
    """
    entries = []
    for server in state.sdk_servers:
        entry = server.mcp_server_entry_in_init
        if detailed:
            entry = server.mcp_server_entry_in_status
        failure = state.sdk_servers_error or state.mcp_servers_error
        entries.append(entry | _build_failure_fields(failure, detailed=detailed))
    for name in (*state.configured_servers, *state.disabled_servers):
        if name not in state.sdk_servers.names:
            entry = _build_external_entry(state, name, detailed=detailed)
            failure = state.mcp_servers_error
            entries.append(entry | _build_failure_fields(failure, detailed=detailed))
    return entries


def _build_external_entry(state: SessionState, name: str, *, detailed: bool) -> dict[str, Any]:
    """Return the entry of a server that the vendor connects to."""
    from shim.core.claude.mcp_reports import McpServerReport, describe_server_config

    report = state.server_statuses.get(normalize_mcp_name(name), McpServerReport("pending"))
    config = state.configured_servers.get(name)
    if config is None:
        report = McpServerReport("disabled")
        config = state.disabled_servers[name]
    entry: dict[str, Any] = {"name": name, "status": report.status, "source": "dynamic"}
    if not detailed:
        return entry
    public_config = describe_server_config(as_dict(config))
    if report.error:
        entry["error"] = report.error
    return entry | {
        "config": public_config,
        "transport": public_config["type"],
        "scope": "dynamic",
    }


def _build_failure_fields(reason: str, *, detailed: bool) -> dict[str, str]:
    """Return the fields to add to the entry of a server that cannot be used for this reason. If
    there is no reason, return {}.
    """
    if not reason:
        return {}
    if detailed:
        return {"status": "failed", "error": reason}
    return {"status": "failed"}


def list_command_names(state: SessionState) -> "CommandNames":
    """Return the names of the commands for `init`."""
    from shim.core.claude.offered_commands import LOCAL_COMMANDS, CommandNames

    files = [file for file in state.command_files if file.can_be_invoked]
    local_names: tuple[str, ...] = ()
    if state.answers_local_commands:
        local_names = tuple(command.name for command in LOCAL_COMMANDS)
    return CommandNames(
        (*(file.name for file in files), *local_names),
        tuple(file.name for file in files if file.skill_folder),
        tuple(command.name for command in state.vendor_commands),
    )


def describe_commands(state: SessionState) -> list[dict[str, Any]]:
    """Return the commands for the answer to `initialize`: Claude's files, the shim's own
    commands and the vendor's commands. If several commands have the same name, a message
    invokes the first of them.
    """
    entries = describe_command_files(state)
    if state.answers_local_commands:
        from shim.core.claude.offered_commands import describe_local_commands

        entries += describe_local_commands()
    names = {name for entry in entries for name in (entry["name"], *entry.get("aliases", ()))}
    entries += [command.to_json() for command in state.vendor_commands if command.name not in names]
    return entries


def describe_command_files(state: SessionState) -> list[dict[str, Any]]:
    """Return the entries of Claude's command files and skills for a frontend."""
    return [file.to_json() for file in state.command_files if file.can_be_invoked]


def list_output_styles(state: SessionState) -> list[str]:
    """Return the names of the output styles: the default style, and the style in the settings."""
    return list(dict.fromkeys(("default", state.options.output_style)))


def describe_models(state: SessionState) -> list[dict[str, Any]]:
    """Return the models that the user can select, starting with the default. The list is never
    empty, because some clients read its first element without a check (C3).
    """
    vendor_name = state.vendor.display_name
    default = {
        "value": DEFAULT_MODEL,
        "displayName": f"Default ({vendor_name})",
        "description": f"The default model of {vendor_name}",
    }
    if state.reported_model:
        default["resolvedModel"] = state.reported_model
    models = [default]
    for offered in _merge_offered_models(state):
        if offered.name != DEFAULT_MODEL and (model := state.options.map_model(offered.name)):
            models.append(
                {
                    "value": offered.name,
                    "resolvedModel": model,
                    "displayName": offered.display_name or offered.name,
                    "description": offered.description or f"{model} through {vendor_name}",
                }
            )
    abilities: dict[str, Any] = {
        "supportsAdaptiveThinking": False,
        "supportsFastMode": False,
        "supportsAutoMode": state.vendor.has_auto_mode,
    }
    if state.vendor.accepts_effort:
        abilities |= {
            "supportsEffort": True,
            "supportedEffortLevels": list(CLAUDE_EFFORT_LEVELS),
        }
    return [model | abilities for model in models]


def _merge_offered_models(state: SessionState) -> Iterable[OfferedModel]:
    """Return each offered model once. Texts that the vendor has sent in this session take
    precedence.
    """
    models = {model.name: model for model in state.options.list_models()}
    models |= {model.name: model for model in state.offered_models}
    if state.initial_model is not None:
        models.setdefault(state.initial_model, OfferedModel(state.initial_model))
    return models.values()

"""Handlers for control requests that need only the session's state: reports, and changes of the MCP
servers. The module is imported with the first of these requests, and the modules of the larger
reports with the first request for such a report.

A handler takes the state and the request, and returns the body of the response, or raises
ControlRequestError. None means a successful response without a body.

A vendor receives its MCP servers when its process starts. A change of the servers takes effect with
the next message, for which the vendor is started again and resumes its session.
"""

from collections.abc import Callable, Iterable, Mapping

from shim.core.claude.control.handlers import ControlRequest, ControlRequestError, ResponseBody
from shim.core.claude.control.session_reports import (
    describe_command_files,
    describe_commands,
    describe_models,
    list_mcp_server_entries,
    list_output_styles,
)
from shim.core.claude.session_state import SessionState
from shim.core.errors import FrontendError
from shim.core.policy.settings import SettingsSource
from shim.core.reading.values import as_dict

SDK_TYPE = "sdk"
NO_FILE_CHECKPOINTS = "File rewinding is not enabled."  # the text is Claude's


# -- reports ---------------------------------------------------------------------------------------


def _load_setting_sources(state: SessionState) -> Iterable[SettingsSource]:
    """Load Claude's settings files. Files that cannot be read are left out."""
    try:
        return state.options.load_setting_sources()
    except (FrontendError, OSError, ValueError):
        return ()


def _report_settings(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.settings_reports import build_settings_report

    return build_settings_report(state, _load_setting_sources(state))


def _report_rules(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.settings_reports import build_rule_report

    return build_rule_report(state, _load_setting_sources(state))


def _report_context(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.usage_reports import build_context_report

    return build_context_report(state)


def _report_cost(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.usage_reports import build_cost_report

    return build_cost_report(state)


def _report_usage(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.usage_reports import build_usage_report

    return build_usage_report(state)


def _reload_settings(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Reload Claude's settings files. Return the settings that now apply to the session."""
    from shim.core.policy.serialize import serialize_settings

    return {"settings": serialize_settings(state.reload_settings())}


def _reload_skills(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Read Claude's command files and skills again. Return all of them."""
    state.discard_command_files()
    return {"skills": describe_command_files(state)}


def _describe_plugins(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Return the lists that plugins can extend in Claude. Plugins have no effect here."""
    if request.get("add_plugins"):
        raise ControlRequestError(f"{state.vendor.display_name} cannot load plugins")
    return {
        "commands": describe_commands(state),
        "agents": [agent.to_json() for agent in state.usable_agents],
        "plugins": [],
        "mcpServers": list_mcp_server_entries(state, detailed=True),
        "error_count": 0,
    }


def _read_file(state: SessionState, request: ControlRequest) -> ResponseBody:
    from shim.core.claude.control.file_reports import build_file_report

    try:
        return build_file_report(state, request)
    except OSError as error:
        raise ControlRequestError(f"{error.strerror}: {request.get('path')}") from None
    except ValueError as error:
        raise ControlRequestError(str(error)) from None


def _refuse_rewind(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Refuse to restore files, because no vendor stores the files' content at each message. A dry
    run only asks whether files can be restored, so it gets a successful response.
    """
    if request.get("dry_run"):
        return {"canRewind": False, "error": NO_FILE_CHECKPOINTS}
    raise ControlRequestError(NO_FILE_CHECKPOINTS)


# -- MCP servers -----------------------------------------------------------------------------------


def _set_mcp_servers(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Replace the servers of earlier calls, and the servers in the frontend's process."""
    configs = as_dict(request.get("servers"))
    if configs and state.mcp_servers_error:
        errors = dict.fromkeys(configs, state.mcp_servers_error)
        return {"added": [], "removed": [], "errors": errors}
    errors = {
        name: "the server has no configuration" for name, config in configs.items() if not config
    }
    usable = {
        name: config
        for name, config in configs.items()
        if isinstance(config, dict) and name not in errors
    }
    sdk_names = [name for name, config in usable.items() if config.get("type") == SDK_TYPE]
    external = {name: config for name, config in usable.items() if name not in sdk_names}
    old_sdk_names = state.sdk_servers.names
    removed = [name for name in old_sdk_names if name not in sdk_names]
    state.sdk_servers.unregister_servers(removed)
    if sdk_names:
        state.add_sdk_mcp_servers(sdk_names)
    state.sdk_servers.initialize_servers()
    added, removed_external = state.replace_dynamic_servers(external)
    new_sdk_names = [name for name in sdk_names if name not in old_sdk_names]
    return {
        "added": [*added, *new_sdk_names],
        "removed": [*removed_external, *removed],
        "errors": errors,
    }


def _get_server_name(request: ControlRequest) -> str:
    """Return the name of the server that a request is about. Raise ControlRequestError if it is not
    a text.
    """
    name = request.get("serverName")
    if not isinstance(name, str):
        raise ControlRequestError(f"Server not found: {name}")
    return name


def _toggle_mcp_server(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Enable or disable a server."""
    name = _get_server_name(request)
    if name in state.sdk_servers.names:
        raise ControlRequestError(
            f"Cannot enable or disable {name}: the server runs in this program"
        )
    is_enabled = request.get("enabled") is True
    if not state.toggle_configured_server(name, enabled=is_enabled):
        raise ControlRequestError(f"Server not found: {name}")
    return None


def _reconnect_mcp_server(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Let the vendor connect to a server again. The frontend is connected to its own servers."""
    name = _get_server_name(request)
    if name in state.sdk_servers.names:
        return None
    if name in state.disabled_servers:
        raise ControlRequestError(f"Server is disabled: {name}")
    if name not in state.configured_servers:
        raise ControlRequestError(f"Server not found: {name}")
    if state.mcp_servers_error:
        raise ControlRequestError(state.mcp_servers_error)
    state.request_server_restart()
    return None


def _refuse_resource(state: SessionState, request: ControlRequest) -> ResponseBody:
    """Refuse to read a resource of an MCP server, because only the vendor is connected to it."""
    name = _get_server_name(request)
    if name in state.configured_servers or name in state.sdk_servers.names:
        raise ControlRequestError(f"{state.vendor.display_name} does not pass resources of {name}")
    raise ControlRequestError(f"Server not found: {name}")


STATE_HANDLERS: Mapping[str, Callable[[SessionState, ControlRequest], ResponseBody]] = {
    "mcp_status": lambda state, request: {
        "mcpServers": list_mcp_server_entries(state, detailed=True)
    },
    "mcp_set_servers": _set_mcp_servers,
    "mcp_reconnect": _reconnect_mcp_server,
    "mcp_toggle": _toggle_mcp_server,
    "mcp_read_resource": _refuse_resource,
    "get_settings": _report_settings,
    "get_context_usage": _report_context,
    "get_session_cost": _report_cost,
    "get_usage": _report_usage,
    "list_models": lambda state, request: {"models": describe_models(state)},
    "list_permission_rules": _report_rules,
    "read_file": _read_file,
    "reload_output_styles": lambda state, request: {
        "available_output_styles": list_output_styles(state)
    },
    "reload_plugins": _describe_plugins,
    "reload_settings": _reload_settings,
    "reload_skills": _reload_skills,
    "rewind_files": _refuse_rewind,
}

"""Handlers for the frontend's control requests (contract C1 to C8, bodies in 6.1).

Each request subtype has one handler function. A handler takes the request and returns the body of
the response, or raises ControlRequestError. None means a successful response without a body. The
module `state_handlers` has the handlers for reports and MCP servers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from shim.core.claude.argv.models import DEFAULT_MODEL, parse_effort_level
from shim.core.claude.control.session_reports import (
    describe_commands,
    describe_models,
    list_output_styles,
)
from shim.core.claude.hooks.callbacks import HookCallbacks
from shim.core.claude.messages import UserMessage
from shim.core.claude.session_state import MODE_NAMES, SessionState
from shim.core.claude.writer import CLAUDE_VERSION
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import as_dict, as_list

if TYPE_CHECKING:
    from shim.core.policy.policy import UnsupportedRule

ResponseBody = Mapping[str, Any] | None
ControlRequest = Mapping[str, Any]


class ControlRequestError(Exception):
    """A control request that is answered with an error. `code` is the real claude's error code."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class FrontendConversationState(Protocol):
    """The session state that handlers of control requests use. `queued_messages` are the messages
    that wait for a turn. `has_started` is True once the first message was accepted.
    `session_status` is "idle", "running" or "requires_action".
    """

    session_state: SessionState
    has_started: bool
    warnings: list[str]
    queued_messages: deque[UserMessage]

    @property
    def session_status(self) -> str: ...


def _initialize_session(
    frontend: FrontendConversationState, request: ControlRequest
) -> ResponseBody:
    state = frontend.session_state
    state.system_prompt = _parse_system_prompt(request.get("systemPrompt"), state.system_prompt)
    state.append_system_prompt = _parse_system_prompt(
        request.get("appendSystemPrompt"), state.append_system_prompt
    )
    raw_hooks = as_dict(request.get("hooks"))
    hooks = HookCallbacks(raw_hooks)
    if hooks:
        state.hooks = hooks
    if raw_hooks:
        state.raw_hooks = raw_hooks
    _warn_about_uncalled_hooks(frontend, raw_hooks)
    if isinstance(request.get("forwardSubagentText"), bool):
        state.forwards_subagent_text = request["forwardSubagentText"]
    _add_agents(frontend, request)
    _report_ignored_fields(frontend, request)
    body = {
        "commands": describe_commands(state),
        "agents": [agent.to_json() for agent in state.usable_agents],
        "output_style": state.options.output_style,
        "available_output_styles": list_output_styles(state),
        "models": describe_models(state),
        "account": {
            "tokenSource": "none",
            "apiKeySource": "none",
            "apiProvider": state.vendor.display_name,
        },
        "pid": state.options.pid,
        "claude_code_version": CLAUDE_VERSION,
        "current_permission_mode": state.mode,
        "analytics_disabled": True,
        "fast_mode_state": "off",
        "fast_mode_disabled_reason": "not_first_party",
        "session_state": frontend.session_status,
        **_report_applied_parts(request),
    }
    body |= _add_mcp_servers(frontend, request)
    return body


def _add_mcp_servers(
    frontend: FrontendConversationState, request: ControlRequest
) -> dict[str, Any]:
    """Add the MCP servers of an `initialize` request. Return the fields that report whether they are
    applied.
    """
    state = frontend.session_state
    report = {}
    sdk_server_names = request.get("sdkMcpServers")
    server_configs = request.get("mcpServers")
    if isinstance(sdk_server_names, list) and sdk_server_names:
        state.add_sdk_mcp_servers(sdk_server_names)
    if server_configs:
        is_applied = (
            isinstance(server_configs, dict)
            and state.vendor.accepts_mcp_servers
            and not frontend.has_started
        )
        if is_applied:
            state.configured_servers |= server_configs
            state.initialize_server_names = frozenset(server_configs)
        report["mcp_servers_applied"] = is_applied
    if (sdk_server_names or server_configs) and not state.vendor.accepts_mcp_servers:
        frontend.warnings.append(
            f"MCP servers have no effect: {state.vendor.display_name} does not support them\n"
        )
    state.sdk_servers.initialize_servers()
    return report


def _report_ignored_fields(frontend: FrontendConversationState, request: ControlRequest) -> None:
    """Warn about fields of the request that have no effect."""
    from shim.core.claude.ignored_options import list_ignored_initialize_fields

    _report_ignored_options(frontend, list_ignored_initialize_fields(request))


def _report_ignored_options(
    frontend: FrontendConversationState, options: Iterable["UnsupportedRule"]
) -> None:
    """Warn about options that have no effect. Each option is reported only once."""
    from shim.core.claude.ignored_options import format_ignored_option

    state = frontend.session_state
    new_options = [option for option in options if option not in state.ignored_options]
    state.ignored_options += tuple(new_options)
    frontend.warnings += map(format_ignored_option, new_options)


def _report_applied_parts(request: ControlRequest) -> dict[str, Any]:
    """Return the fields that report which parts of an `initialize` request are applied. Plugins are
    not applied. Lists of a server's tools are not used, because the shim always asks the server.
    """
    report: dict[str, Any] = {}
    if request.get("hooks"):
        report["hooks_applied"] = True
    if request.get("plugins"):
        report["plugins_applied"] = False
    manifests = request.get("sdkMcpServerManifests")
    server_names = as_list(request.get("sdkMcpServers"))
    if manifests and server_names:
        report["sdk_mcp_manifests_parked"] = {
            name: "not_honoured" for name in as_dict(manifests) if name in server_names
        }
    return report


def _add_agents(frontend: FrontendConversationState, request: ControlRequest) -> None:
    """Add the subagents of an `initialize` request. If one of them is invalid, none is added, as in
    the real claude.
    """
    definitions = request.get("agents")
    if not definitions:
        return
    from shim.core.claude.agent_definitions import parse_agent_definitions

    state = frontend.session_state
    try:
        state.add_agents(parse_agent_definitions(definitions, "initialize"))
    except ValueError as error:
        frontend.warnings.append(f"the agents of `initialize` have no effect: {error}\n")
        return
    if state.vendor.agents_error:
        frontend.warnings.append(f"agents have no effect: {state.vendor.agents_error}\n")


def _warn_about_uncalled_hooks(
    frontend: FrontendConversationState, raw_hooks: Mapping[str, Any]
) -> None:
    """Warn about the hooks that could deny or block something but are never called."""
    if not raw_hooks:
        return
    from shim.core.claude.hooks.unsupported import list_uncalled_restricting_events

    vendor = frontend.session_state.vendor
    uncalled_events = list_uncalled_restricting_events(
        asks_permissions=vendor.asks_permissions, runs_agents=not vendor.agents_error
    )
    for event in uncalled_events:
        if raw_hooks.get(event):
            frontend.warnings.append(
                f"hooks.{event} of the frontend has no effect: hooks for this event are not called\n"
            )


def _parse_system_prompt(value: object, default: str | None) -> str | None:
    """Parse a system prompt: a string, or a list of strings that are joined. Return `default` for
    anything else.
    """
    if isinstance(value, list):
        value = "\n\n".join(part for part in value if isinstance(part, str))
    if isinstance(value, str) and value:
        return value
    return default


def _set_model(frontend: FrontendConversationState, request: ControlRequest) -> ResponseBody:
    state = frontend.session_state
    model = request.get("model")
    if model is not None and not isinstance(model, str):
        raise ControlRequestError("Cannot set model: must be a string or null")
    if not model:
        state.requested_model = state.initial_model
    else:
        try:
            state.requested_model = state.options.validate_model(model) or DEFAULT_MODEL
        except ValueError as error:
            raise ControlRequestError(f"Cannot set model: {error}") from None
    return {"model": state.resolve_model_name()}


def _set_permission_mode(
    frontend: FrontendConversationState, request: ControlRequest
) -> ResponseBody:
    state = frontend.session_state
    mode = request.get("mode")
    if mode == "manual":
        mode = "default"
    if mode not in MODE_NAMES:
        mode_list = ", ".join(MODE_NAMES)
        raise ControlRequestError(
            f"Cannot set permission mode: must be one of {mode_list}", "invalid_mode"
        )
    if mode == "bypassPermissions" and not state.options.allows_bypass:
        reason = "because the session was not launched with --dangerously-skip-permissions"
        raise ControlRequestError(
            f"Cannot set permission mode to bypassPermissions {reason}", "bypass_not_launched"
        )
    if mode not in state.vendor.modes:
        supported_modes = ", ".join(state.vendor.modes)
        if state.vendor.never_asks and mode != "auto":
            supported_modes += " only, because it runs some tools without asking"
        raise ControlRequestError(
            f"Cannot set permission mode to {mode}: {state.vendor.display_name} supports "
            f"{supported_modes}",
            "invalid_mode",
        )
    state.mode = str(mode)
    return {"mode": mode}


def _apply_settings(frontend: FrontendConversationState, request: ControlRequest) -> ResponseBody:
    """Apply the model, the effort level and the deny and ask rules from settings. Unknown effort
    levels are ignored.
    """
    state = frontend.session_state
    settings = as_dict(request.get("settings"))
    permissions = settings.get("permissions")
    if isinstance(permissions, dict):
        try:
            state.replace_flag_permission_rules(
                _list_texts(permissions.get("deny")), _list_texts(permissions.get("ask"))
            )
        except ValueError as error:
            raise ControlRequestError(f"Cannot apply settings: {error}") from None
    if "model" in settings:
        _set_model(frontend, {"model": settings["model"]})
    state.add_flag_settings(settings)
    if "effortLevel" in settings:
        level = parse_effort_level(settings["effortLevel"])
        if level is not None or settings["effortLevel"] is None:
            state.effort = level
        if level is not None:
            _report_ignored_effort(frontend)
    return None


def _report_ignored_effort(frontend: FrontendConversationState) -> None:
    """Warn that an effort level has no effect, if the vendor does not accept one."""
    vendor = frontend.session_state.vendor
    if vendor.accepts_effort:
        return
    from shim.core.claude.ignored_options import create_ignored_effort

    _report_ignored_options(frontend, (create_ignored_effort(vendor.display_name),))


def _list_texts(value: object) -> list[str]:
    return [text for text in as_list(value) if isinstance(text, str) and text]


def _deliver_mcp_message(
    frontend: FrontendConversationState, request: ControlRequest
) -> ResponseBody:
    """Deliver a message from an MCP server in the frontend's process to the vendor's MCP
    clients.
    """
    if not frontend.session_state.sdk_servers.deliver_server_message(
        request.get("server_name"), request.get("message")
    ):
        raise ControlRequestError(f"Server not found: {request.get('server_name')}")
    return None


def _cancel_message(frontend: FrontendConversationState, request: ControlRequest) -> ResponseBody:
    matching_messages = [
        message
        for message in frontend.queued_messages
        if message.uuid and message.uuid == request.get("message_uuid")
    ]
    for message in matching_messages:
        frontend.queued_messages.remove(message)
    if matching_messages:
        return {"cancelled": True, "message_uuid": request.get("message_uuid")}
    return {"cancelled": False}


def _refuse_background(
    frontend: FrontendConversationState, request: ControlRequest
) -> ResponseBody:
    """Report that no call was moved to the background, because no vendor can do so."""
    if request.get("tool_use_id") is not None:
        return {"backgrounded": False}
    if frontend.session_status != "idle":
        name = frontend.session_state.vendor.display_name
        raise ControlRequestError(f"{name} cannot move a running call to the background")
    return {}


def _ignore_thinking_budget(
    frontend: FrontendConversationState, request: ControlRequest
) -> ResponseBody:
    """Accept a thinking budget, and report that it has no effect. A request that removes the budget
    is not reported.
    """
    if request.get("max_thinking_tokens") is not None:
        from shim.core.claude.ignored_options import IGNORED_THINKING_REQUEST

        _report_ignored_options(frontend, (IGNORED_THINKING_REQUEST,))
    return None


def _check_title(frontend: FrontendConversationState, request: ControlRequest) -> ResponseBody:
    """Accept a new title of the session. The texts of the errors are Claude's."""
    title = request.get("title")
    if not isinstance(title, str):
        raise ControlRequestError("rename_session: title must be a string")
    if not title.strip():
        raise ControlRequestError("title must be non-empty")
    return None


def _answer_constantly(
    body: ResponseBody,
) -> Callable[[FrontendConversationState, ControlRequest], ResponseBody]:
    return lambda frontend, request: body


REQUEST_HANDLERS: Mapping[
    str, Callable[[FrontendConversationState, ControlRequest], ResponseBody]
] = {
    "initialize": _initialize_session,
    "set_model": _set_model,
    "set_permission_mode": _set_permission_mode,
    "set_max_thinking_tokens": _ignore_thinking_budget,
    "mcp_message": _deliver_mcp_message,
    "apply_flag_settings": _apply_settings,
    "stop_task": _answer_constantly({}),
    "background_tasks": _refuse_background,
    "cancel_async_message": _cancel_message,
    "get_binary_version": _answer_constantly({"version": CLAUDE_VERSION, "buildTime": None}),
    "generate_session_title": _answer_constantly({"title": None}),
    "rename_session": _check_title,
}

"""What each control request of a frontend is answered with (contract C1 to C8, bodies in 6.1).

One function a subtype: the request in, the body of the answer out (None: a success without a body),
or a RefusalError.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from shim.core.claude.argv.models import DEFAULT_MODEL, parse_effort
from shim.core.claude.facts import MODE_NAMES, SessionState
from shim.core.claude.hooks.callbacks import HookCallbacks
from shim.core.claude.messages import UserMessage
from shim.core.claude.pen import CLAUDE_VERSION
from shim.core.claude.usage import CONTEXT_WINDOW_TOKENS
from shim.core.reading.typed import Any

ResponseBody = Mapping[str, Any] | None
ControlRequest = Mapping[str, Any]


class RefusalError(Exception):
    """A request that is answered with an error; `code` as the real one has it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class FrontendState(Protocol):
    """Whose request it is; `messages` wait for their turn, `begun`: the first one was taken."""

    session_state: SessionState
    has_started: bool
    warnings: list[str]
    queued_messages: deque[UserMessage]


def _initialize_session(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    facts = frontend.session_state
    facts.system_prompt = _parse_system_prompt(request.get("systemPrompt")) or facts.system_prompt
    facts.append_system_prompt = (
        _parse_system_prompt(request.get("appendSystemPrompt")) or facts.append_system_prompt
    )
    facts.hooks = HookCallbacks(request.get("hooks")) or facts.hooks
    if isinstance(request.get("forwardSubagentText"), bool):
        facts.forwards_subagent_text = request["forwardSubagentText"]
    body = {
        "commands": [],
        "agents": [],
        "output_style": facts.output_style,
        "available_output_styles": list(dict.fromkeys(("default", facts.output_style))),
        "models": facts.list_models(),
        "account": {
            "tokenSource": "none",
            "apiKeySource": "none",
            "apiProvider": facts.vendor_name,
        },
        "pid": facts.options.pid,
        "claude_code_version": CLAUDE_VERSION,
        "current_permission_mode": facts.mode,
        "analytics_disabled": True,
        "fast_mode_state": "off",
    }
    inside, named = request.get("sdkMcpServers"), request.get("mcpServers")
    if isinstance(inside, list) and inside:
        facts.add_sdk_servers(inside)
    if named:
        applies = (
            isinstance(named, dict)
            and facts.serving_vendor.accepts_mcp_servers
            and not frontend.has_started
        )
        if applies:
            facts.configured_servers, facts.initialize_server_names = (
                {**facts.configured_servers, **named},
                frozenset(named),
            )
        body["mcp_servers_applied"] = applies
    if (inside or named) and not facts.serving_vendor.accepts_mcp_servers:
        frontend.warnings.append(f"MCP servers have no effect: {facts.vendor_name} takes none\n")
    facts.sdk_servers.initialize_servers()
    return body


def _parse_system_prompt(value: object) -> str | None:
    """A system prompt: a text, or a list of them."""
    if isinstance(value, list):
        value = "\n\n".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) and value else None


def _set_model(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    facts, model = frontend.session_state, request.get("model")
    if model is not None and not isinstance(model, str):
        raise RefusalError("Cannot set model: must be a string or null")
    if not model:
        facts.requested_model = facts.initial_model
    else:
        try:
            facts.requested_model = facts.options.validate_model(model) or DEFAULT_MODEL
        except ValueError as error:
            raise RefusalError(f"Cannot set model: {error}") from None
    return {"model": facts.resolve_model_name()}


def _set_permission_mode(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    facts, mode = frontend.session_state, request.get("mode")
    mode = "default" if mode == "manual" else mode
    if mode not in MODE_NAMES:
        allowed = ", ".join(MODE_NAMES)
        raise RefusalError(f"Cannot set permission mode: must be one of {allowed}", "invalid_mode")
    if mode == "bypassPermissions" and not facts.options.allows_bypass:
        reason = "because the session was not launched with --dangerously-skip-permissions"
        raise RefusalError(
            f"Cannot set permission mode to bypassPermissions {reason}", "bypass_not_launched"
        )
    if mode not in facts.serving_vendor.modes:
        able = ", ".join(facts.serving_vendor.modes)
        raise RefusalError(
            f"Cannot set permission mode to {mode}: {facts.vendor_name} can do {able}",
            "invalid_mode",
        )
    facts.mode = str(mode)
    return {"mode": mode}


def _describe_settings(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    facts = frontend.session_state
    return {
        "effective": {},
        "sources": [],
        "applied": {"model": facts.resolve_model_name(), "effort": facts.effort},
    }


def _apply_settings(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    """Of the settings of a session the effort is a vendor's too, and rules that narrow are kept for
    it.

    A level that is none changes nothing.
    """
    settings = request.get("settings")
    permissions = settings.get("permissions") if isinstance(settings, dict) else None
    if isinstance(permissions, dict):
        try:
            frontend.session_state.replace_flag_rules(
                _list_texts(permissions.get("deny")), _list_texts(permissions.get("ask"))
            )
        except ValueError as error:
            raise RefusalError(f"Cannot apply settings: {error}") from None
    if isinstance(settings, dict) and "effortLevel" in settings:
        said = settings["effortLevel"]
        frontend.session_state.effort = (
            None if said is None else parse_effort(said) or frontend.session_state.effort
        )
    return None


def _list_texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str) and one] if isinstance(value, list) else []


def _list_models(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    return {"models": frontend.session_state.list_models()}


def _reject_mcp_servers(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    servers = request.get("servers")
    reason = f"{frontend.session_state.vendor_name} is given its servers when it starts"
    return {
        "added": [],
        "removed": [],
        "errors": dict.fromkeys(servers if isinstance(servers, dict) else (), reason),
    }


def _describe_mcp_servers(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    return {"mcpServers": frontend.session_state.describe_mcp_servers(detailed=True)}


def _deliver_mcp_message(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    """A message of a server in the frontend's process, for the vendor's clients."""
    if not frontend.session_state.sdk_servers.deliver_server_message(
        request.get("server_name"), request.get("message")
    ):
        raise RefusalError(f"Server not found: {request.get('server_name')}")
    return None


def _refuse_unknown_server(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    raise RefusalError(f"Server not found: {request.get('serverName')}")


def _refuse_rewind(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    raise RefusalError("File rewinding is not enabled.")


def _cancel_message(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    waiting = [
        message
        for message in frontend.queued_messages
        if message.uuid and message.uuid == request.get("message_uuid")
    ]
    for message in waiting:
        frontend.queued_messages.remove(message)
    return (
        {"cancelled": True, "message_uuid": request.get("message_uuid")}
        if waiting
        else {"cancelled": False}
    )


def _describe_cost(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    return {"text": f"Estimated cost:        ${frontend.session_state.cost_usd:.4f}"}


def _describe_context_usage(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    """Return the size of the context, from the usage that the vendor reported. No vendor reports
    its parts.
    """
    facts = frontend.session_state
    used = min(facts.context_tokens, CONTEXT_WINDOW_TOKENS)
    free = CONTEXT_WINDOW_TOKENS - used
    categories = [
        {
            "id": "messages",
            "name": "Messages",
            "tokens": used,
            "color": "promptBorder",
            "kind": "used",
        },
        {
            "id": "free_space",
            "name": "Free space",
            "tokens": free,
            "color": "inactive",
            "kind": "free",
        },
    ]
    unknown = ("gridRows", "memoryFiles", "mcpTools", "mcpInstructions", "agents")
    return {
        "categories": categories,
        "totalTokens": facts.context_tokens,
        "maxTokens": CONTEXT_WINDOW_TOKENS,
        "rawMaxTokens": CONTEXT_WINDOW_TOKENS,
        "percentage": round(100 * used / CONTEXT_WINDOW_TOKENS),
        "model": facts.resolve_model_name(),
        "isAutoCompactEnabled": False,
        **{name: [] for name in unknown},
        "apiUsage": None,
    }


def _describe_usage(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    session = {
        "total_cost_usd": frontend.session_state.cost_usd,
        "total_lines_added": 0,
        "total_lines_removed": 0,
    }
    limits = {"rate_limits_available": False, "rate_limits": None}
    return {
        "session": session | {"model_usage": {}},
        "subscription_type": None,
        **limits,
        "behaviors": None,
    }


def _describe_permission_rules(frontend: FrontendState, request: ControlRequest) -> ResponseBody:
    return {
        "state": {
            "rules": [],
            "workspaceDirectories": [],
            "originalCwd": frontend.session_state.options.cwd,
            "managedOnly": False,
        }
    }


def _answer_constantly(
    body: ResponseBody,
) -> Callable[[FrontendState, ControlRequest], ResponseBody]:
    return lambda control, request: body


REQUEST_HANDLERS: Mapping[str, Callable[[FrontendState, ControlRequest], ResponseBody]] = {
    "initialize": _initialize_session,
    "set_model": _set_model,
    "set_permission_mode": _set_permission_mode,
    "set_max_thinking_tokens": _answer_constantly(None),
    "mcp_message": _deliver_mcp_message,
    "mcp_status": _describe_mcp_servers,
    "mcp_set_servers": _reject_mcp_servers,
    "mcp_reconnect": _refuse_unknown_server,
    "mcp_toggle": _refuse_unknown_server,
    "get_settings": _describe_settings,
    "get_context_usage": _describe_context_usage,
    "list_models": _list_models,
    "apply_flag_settings": _apply_settings,
    "stop_task": _answer_constantly({}),
    "background_tasks": _answer_constantly({}),
    "rewind_files": _refuse_rewind,
    "cancel_async_message": _cancel_message,
    "get_binary_version": _answer_constantly({"version": CLAUDE_VERSION, "buildTime": None}),
    "get_session_cost": _describe_cost,
    "get_usage": _describe_usage,
    "generate_session_title": _answer_constantly({"title": None}),
    "rename_session": _answer_constantly(None),
    "reload_skills": _answer_constantly({"skills": []}),
    "list_permission_rules": _describe_permission_rules,
}

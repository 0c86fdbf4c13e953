"""What each control request of a frontend is answered with (contract C1 to C8, bodies in 6.1).

One function a subtype: the request in, the body of the answer out (None: a success without a body),
or a RefusalError.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from shim.core.claude.argv.models import DEFAULT_MODEL, parse_effort
from shim.core.claude.facts import MODE_NAMES, SessionState
from shim.core.claude.hooks.callbacks import Hooks
from shim.core.claude.messages import UserMessage
from shim.core.claude.pen import CLAUDE_VERSION
from shim.core.claude.usage import CONTEXT_WINDOW_TOKENS
from shim.core.reading.typed import Any

Body = Mapping[str, Any] | None
Asked = Mapping[str, Any]


class RefusalError(Exception):
    """A request that is answered with an error; `code` as the real one has it."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Frontend(Protocol):
    """Whose request it is; `messages` wait for their turn, `begun`: the first one was taken."""

    facts: SessionState
    begun: bool
    complaints: list[str]
    messages: deque[UserMessage]


def _initialize(frontend: Frontend, request: Asked) -> Body:
    facts = frontend.facts
    facts.system_prompt = _text(request.get("systemPrompt")) or facts.system_prompt
    facts.append_system_prompt = (
        _text(request.get("appendSystemPrompt")) or facts.append_system_prompt
    )
    facts.hooks = Hooks(request.get("hooks")) or facts.hooks
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
            and not frontend.begun
        )
        if applies:
            facts.configured_servers, facts.initialize_server_names = (
                {**facts.configured_servers, **named},
                frozenset(named),
            )
        body["mcp_servers_applied"] = applies
    if (inside or named) and not facts.serving_vendor.accepts_mcp_servers:
        frontend.complaints.append(f"MCP servers have no effect: {facts.vendor_name} takes none\n")
    facts.sdk_servers.initialize_servers()
    return body


def _text(value: object) -> str | None:
    """A system prompt: a text, or a list of them."""
    if isinstance(value, list):
        value = "\n\n".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) and value else None


def _set_model(frontend: Frontend, request: Asked) -> Body:
    facts, model = frontend.facts, request.get("model")
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


def _set_permission_mode(frontend: Frontend, request: Asked) -> Body:
    facts, mode = frontend.facts, request.get("mode")
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


def _get_settings(frontend: Frontend, request: Asked) -> Body:
    facts = frontend.facts
    return {
        "effective": {},
        "sources": [],
        "applied": {"model": facts.resolve_model_name(), "effort": facts.effort},
    }


def _apply_settings(frontend: Frontend, request: Asked) -> Body:
    """Of the settings of a session the effort is a vendor's too, and rules that narrow are kept for
    it.

    A level that is none changes nothing.
    """
    settings = request.get("settings")
    permissions = settings.get("permissions") if isinstance(settings, dict) else None
    if isinstance(permissions, dict):
        try:
            frontend.facts.replace_flag_rules(
                _texts(permissions.get("deny")), _texts(permissions.get("ask"))
            )
        except ValueError as error:
            raise RefusalError(f"Cannot apply settings: {error}") from None
    if isinstance(settings, dict) and "effortLevel" in settings:
        said = settings["effortLevel"]
        frontend.facts.effort = (
            None if said is None else parse_effort(said) or frontend.facts.effort
        )
    return None


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str) and one] if isinstance(value, list) else []


def _list_models(frontend: Frontend, request: Asked) -> Body:
    return {"models": frontend.facts.list_models()}


def _mcp_set_servers(frontend: Frontend, request: Asked) -> Body:
    servers = request.get("servers")
    reason = f"{frontend.facts.vendor_name} is given its servers when it starts"
    return {
        "added": [],
        "removed": [],
        "errors": dict.fromkeys(servers if isinstance(servers, dict) else (), reason),
    }


def _mcp_status(frontend: Frontend, request: Asked) -> Body:
    return {"mcpServers": frontend.facts.describe_mcp_servers(detailed=True)}


def _mcp_message(frontend: Frontend, request: Asked) -> Body:
    """A message of a server in the frontend's process, for the vendor's clients."""
    if not frontend.facts.sdk_servers.deliver_server_message(
        request.get("server_name"), request.get("message")
    ):
        raise RefusalError(f"Server not found: {request.get('server_name')}")
    return None


def _no_server(frontend: Frontend, request: Asked) -> Body:
    raise RefusalError(f"Server not found: {request.get('serverName')}")


def _no_rewinding(frontend: Frontend, request: Asked) -> Body:
    raise RefusalError("File rewinding is not enabled.")


def _cancel(frontend: Frontend, request: Asked) -> Body:
    waiting = [
        message
        for message in frontend.messages
        if message.uuid and message.uuid == request.get("message_uuid")
    ]
    for message in waiting:
        frontend.messages.remove(message)
    return (
        {"cancelled": True, "message_uuid": request.get("message_uuid")}
        if waiting
        else {"cancelled": False}
    )


def _cost(frontend: Frontend, request: Asked) -> Body:
    return {"text": f"Estimated cost:        ${frontend.facts.cost_usd:.4f}"}


def _context_usage(frontend: Frontend, request: Asked) -> Body:
    """Return the size of the context, from the usage that the vendor reported. No vendor reports
    its parts.
    """
    facts = frontend.facts
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


def _usage(frontend: Frontend, request: Asked) -> Body:
    session = {
        "total_cost_usd": frontend.facts.cost_usd,
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


def _rules(frontend: Frontend, request: Asked) -> Body:
    return {
        "state": {
            "rules": [],
            "workspaceDirectories": [],
            "originalCwd": frontend.facts.options.cwd,
            "managedOnly": False,
        }
    }


def _always(body: Body) -> Callable[[Frontend, Asked], Body]:
    return lambda control, request: body


ANSWERS: Mapping[str, Callable[[Frontend, Asked], Body]] = {
    "initialize": _initialize,
    "set_model": _set_model,
    "set_permission_mode": _set_permission_mode,
    "set_max_thinking_tokens": _always(None),
    "mcp_message": _mcp_message,
    "mcp_status": _mcp_status,
    "mcp_set_servers": _mcp_set_servers,
    "mcp_reconnect": _no_server,
    "mcp_toggle": _no_server,
    "get_settings": _get_settings,
    "get_context_usage": _context_usage,
    "list_models": _list_models,
    "apply_flag_settings": _apply_settings,
    "stop_task": _always({}),
    "background_tasks": _always({}),
    "rewind_files": _no_rewinding,
    "cancel_async_message": _cancel,
    "get_binary_version": _always({"version": CLAUDE_VERSION, "buildTime": None}),
    "get_session_cost": _cost,
    "get_usage": _usage,
    "generate_session_title": _always({"title": None}),
    "rename_session": _always(None),
    "reload_skills": _always({"skills": []}),
    "list_permission_rules": _rules,
}

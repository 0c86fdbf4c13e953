"""Handlers for frames from clients, with one function for each kind of frame."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.commands import EndSessionCommand, ReloadSettingsCommand
from shim.core.bridge.frames import (
    BYPASS_REFUSED_TEXT,
    MAX_ID_CHARS,
    OPTIONAL_KINDS,
    PROTOCOL_VERSION,
    RELOAD_SETTINGS,
    FrameError,
    FrameRefusedError,
    encode_frame,
    parse_frame,
    parse_hello,
    parse_request_id,
)
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.prompts import (
    check_permission_updates,
    convert_hook_approval_to_response,
    has_permission_mode_change,
    parse_prompt_answer,
    remove_approval_from_hook_answer,
)
from shim.core.bridge.requests import MODE_SUBTYPE, ControlRequest
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.values import as_dict, canonicalize_uuid, escape_control_chars

FrameFields = Mapping[str, Any]
FrameHandler = Callable[[SessionHub, ConnectedClient, FrameFields, str], bool]
MAX_BAD_FRAMES = 100  # a client is dropped after this number of invalid frames
NO_FIELDS: FrameFields = {}
SETTINGS_SUBTYPE = "apply_flag_settings"
# The settings that one client may change for all clients of a session.
CHANGEABLE_SETTINGS = ("effortLevel", "permissions")
NO_RESTRICTIONS_TEXT = (
    "a running session cannot be restricted by one frontend; join it with the version of "
    "claude-shim that it runs with, or add --fork-session to continue in a copy"
)
# Control requests that the real claude accepts and a shared session refuses. They run a tool
# without a permission check, change the folder that rules and trust apply to, write settings files,
# or give other programs access.
REFUSED_SUBTYPES = (
    *("mcp_call", "set_cwd", "add_directory", "register_repo_root"),
    *("update_settings", "remote_control", "channel_enable"),
)
PROTOCOL_DIFFERENCE = (
    "this host speaks protocol {ours} and the client {theirs}; only features that both support "
    "are available. Start a new session to have the same version on both sides"
)


def on_client_frame(hub: SessionHub, client_number: int, raw: bytes) -> None:
    """Process a frame from a client. `raw` is one line without its newline. A refused frame has no
    effect.
    """
    client = hub.subscribers.clients.get(client_number)
    if client is None or client.is_dropped or not raw.strip():
        return
    frame: FrameFields = {}
    try:
        max_bytes = hub.session.max_frame_bytes
        if len(raw) > max_bytes:
            raise FrameError(f"a frame can have at most {max_bytes} bytes (max_inbound_bytes)")
        frame = parse_frame(raw)
        if (frame["kind"] == "hello") == client.has_hello:
            raise FrameError("hello must be the first frame, and is sent only once")
        if client.has_hello:
            _dispatch_frame(hub, client, frame)
        else:
            _welcome_client(hub, client, frame)
    except FrameRefusedError as error:
        hub.refuse_frame(client, _find_request_id(frame), error.reason, str(error))
    except FrameError as error:
        hub.refuse_frame(client, _find_request_id(frame), "bad-frame", str(error))
        client.bad_frame_count += 1
        if not client.has_hello or client.bad_frame_count >= MAX_BAD_FRAMES:
            hub.subscribers.drop_client(client, "the client's frames cannot be read")


def _find_request_id(frame: FrameFields) -> str:
    """Return a frame's id, or "" if the id is missing or invalid."""
    try:
        return parse_request_id(frame)
    except FrameError:
        return ""


def remove_client(hub: SessionHub, client_number: int) -> None:
    """Remove a client after its connection was closed by the client or by the host."""
    client = hub.subscribers.remove_client(client_number)
    if client is None:
        return
    hub.control_requests.detach_client(client)
    for callback in hub.callbacks.remove_client(client):
        hub.forward_callback(callback._replace(client=None))
    if hub.roles.controller is client:
        hub.set_controller(None)
    hub.deny_unanswerable_prompts()


def _welcome_client(hub: SessionHub, client: ConnectedClient, frame: FrameFields) -> None:
    hello = parse_hello(frame)
    hub.subscribers.accept_hello(client, hello)
    if hello.can_control and hub.roles.controller is None:
        hub.set_controller(client)
    last_outcome = None
    if hub.prompts.last_outcome is not None:
        last_outcome = hub.prompts.last_outcome._asdict()
    fields: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "client": client.name,
        **hub.session.build_welcome_frame_fields(),
        "generation": hub.subscribers.generation,
        "number": hub.subscribers.last_number,
        "state": hub.build_status_fields(),
        "driver": hub.roles.controller_name,
        "questions": list(hub.prompts.open),
        "settled": last_outcome,
        "initialize": hub.initialize_response,
        "init": hub.init_line,
        "knows": OPTIONAL_KINDS,
    }
    if hub.connect_notice:
        fields["differs"] = hub.connect_notice
    if hello.protocol != PROTOCOL_VERSION:
        fields["differs"] = PROTOCOL_DIFFERENCE.format(ours=PROTOCOL_VERSION, theirs=hello.protocol)
    client.has_stale_state = False
    hub.subscribers.send_reply_frame(client, encode_frame("welcome", **fields))
    hub.subscribers.start_log_replay(client)


def _dispatch_frame(hub: SessionHub, client: ConnectedClient, frame: FrameFields) -> None:
    """Call the handler for a frame. A frame of an unknown kind is ignored if it has no id. With an
    id, it is refused, because the client waits for an answer.
    """
    request_id = parse_request_id(frame)
    handler = HANDLERS.get(frame["kind"])
    if handler is None:
        if not request_id:
            return
        raise FrameRefusedError(
            "unknown-kind", f"this host speaks protocol {PROTOCOL_VERSION}, which has no such frame"
        )
    if frame["kind"] != "reply" and request_id:
        if hub.control_requests.is_request_pending(client, request_id):
            return
        answer = hub.frame_answers.get((client.number, request_id))
        if answer is not None:
            hub.subscribers.send_reply_frame(client, answer)
            return
    if handler(hub, client, frame, request_id):
        hub.send_accepted_frame(client, request_id)


# -- one handler for each kind; a handler returns whether to send `accepted` -----------------------


def _accept_message(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    uuid = canonicalize_uuid(request_id)
    if uuid:
        key = ("", uuid)
    else:
        key = (client.hello.client_name, request_id)
    if request_id and key in hub.message_ids:
        return True
    hub.roles.check_can_control(client)
    message = frame.get("message")
    if not isinstance(message, dict) or message.get("role") != "user":
        raise FrameError('a message frame must have `message`, an object with the role "user"')
    if not isinstance(message.get("content"), str | list):
        raise FrameError("`content` of a message must be a string or a list of blocks")
    client_number = 0
    if request_id:
        client_number = client.number
    hub.send_message(
        message,
        uuid or hub.create_id(),
        priority=frame.get("priority"),
        client_number=client_number,
        request_id=request_id,
    )
    hub.set_controller(client)
    if request_id:
        hub.message_ids[key] = True
    return True


def _answer_prompt(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    prompt_id = frame.get("question")
    hub.roles.check_can_answer_prompts(client)
    if not isinstance(prompt_id, str) or len(prompt_id) > MAX_ID_CHARS:
        raise FrameError("an answer frame must have `question`, the id of a permission prompt")
    prompt = hub.prompts.open.get(prompt_id)
    if prompt is None:
        outcome = hub.prompts.find_outcome(prompt_id)
        if outcome is None:
            raise FrameRefusedError(
                "unknown-question", "this session has no permission prompt with this id"
            )
        hub.subscribers.send_reply_frame(client, outcome.encoded_outcome_frame)
        return False
    outcome_kind, body = parse_prompt_answer(
        prompt, frame.get("decision"), can_bypass=hub.session.can_bypass
    )
    if outcome_kind == "allow" and has_permission_mode_change(body):
        # The check is the same as for a `mode` frame. Otherwise, another client could switch to a
        # less restrictive mode without the controller's knowledge.
        hub.roles.check_can_control(client)
    hub.resolve_prompt(prompt_id, client.name, outcome_kind, body)
    return True


def _interrupt_turn(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    hub.roles.check_control_role(client)
    request = ControlRequest(client, request_id, "interrupt")
    hub.send_control_request({"subtype": "interrupt"}, request)
    hub.resolve_all_prompts(client.name, "interrupt")
    return False


def _change_model(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    model = frame.get("model")
    if not isinstance(model, str | None):
        raise FrameError("a model frame must have `model`, a name or null")
    hub.roles.check_can_control(client)
    request = ControlRequest(client, request_id, "set_model")
    hub.send_control_request({"subtype": "set_model", "model": model}, request)
    return False


def _change_mode(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    hub.roles.check_can_control(client)
    _choose_mode(hub, frame, ControlRequest(client, request_id, MODE_SUBTYPE))
    return False


def _choose_mode(
    hub: SessionHub, frame: FrameFields, request: ControlRequest, body: FrameFields = NO_FIELDS
) -> None:
    """Send a permission mode to the conversation, which may refuse the mode. Raise
    FrameRefusedError if the mode is bypassPermissions and the session does not allow it.
    """
    mode = frame.get("mode")
    if not isinstance(mode, str) or not mode:
        raise FrameError("a mode frame must have `mode`, the name of a permission mode")
    if mode == BYPASS_MODE and not hub.session.can_bypass:
        raise FrameRefusedError("bypass", BYPASS_REFUSED_TEXT)
    if mode == "manual":
        mode = "default"
    hub.send_control_request({**body, "subtype": MODE_SUBTYPE, "mode": mode}, request)


def _refuse_restrictions(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    """Refuse a frame that only clients of an older version send. These clients wait for an
    answer.
    """
    raise FrameRefusedError("unknown-kind", NO_RESTRICTIONS_TEXT)


def _check_settings(settings: object) -> None:
    """Raise FrameRefusedError if settings could allow more than the session allows. Only deny
    rules, ask rules and the effort level are accepted.
    """
    if not isinstance(settings, dict):
        raise FrameError("an apply_flag_settings request must have `settings`, an object")
    permissions = settings.get("permissions")
    fields = as_dict(permissions)
    refused_keys = [key for key in settings if settings[key] and key not in CHANGEABLE_SETTINGS]
    refused_keys += [
        f"permissions.{key}" for key in fields if fields[key] and key not in ("deny", "ask")
    ]
    if refused_keys or (permissions and not fields):
        refused_text = ", ".join(map(escape_control_chars, refused_keys))
        if not refused_text:
            refused_text = "permissions"
        raise FrameRefusedError(
            "wider",
            f"a running session accepts only the settings deny, ask and effort: {refused_text}",
        )


def _take_control(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    hub.roles.check_control_role(client)
    if frame.get("if_idle") is True and hub.is_busy:
        hub.roles.check_can_control(client)
    hub.set_controller(client)
    return True


def _release_control(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    hub.roles.check_control_role(client)
    if hub.roles.controller is client:
        hub.set_controller(None)
    return True


def _end_session(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    hub.roles.check_can_control(client)
    hub.commands.append(EndSessionCommand(client.name))
    return False  # the client receives `bye` as the answer


def _accept_request(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    body = frame.get("request")
    if not isinstance(body, dict) or not isinstance(body.get("subtype"), str) or not request_id:
        raise FrameError("a request frame must have `id`, and `request` with a `subtype`")
    subtype = body["subtype"]
    if subtype in ("interrupt", RELOAD_SETTINGS):
        hub.roles.check_control_role(client)
    else:
        hub.roles.check_can_control(client)
    request = ControlRequest(client, request_id, subtype, wants_body=True)
    if subtype == MODE_SUBTYPE:
        _choose_mode(hub, body, request, body)
    elif subtype == "initialize":
        _register_callbacks(hub, client, body, request)
    elif subtype == RELOAD_SETTINGS and hub.session.has_vendor_settings:
        hub.commands.append(ReloadSettingsCommand(client.number, request_id))
    elif subtype in REFUSED_SUBTYPES:
        raise FrameRefusedError(
            "wider", f"a running session does not accept {subtype}, because other clients share it"
        )
    else:
        if subtype == SETTINGS_SUBTYPE:
            _check_settings(body.get("settings"))
        hub.send_control_request(body, request)
    if subtype == "interrupt":
        hub.resolve_all_prompts(client.name, "interrupt")
    return False


def _register_callbacks(
    hub: SessionHub, client: ConnectedClient, body: FrameFields, request: ControlRequest
) -> None:
    """Register the hooks and MCP servers from a client's `initialize` request."""
    brings_callbacks = body.get("hooks")
    if not brings_callbacks:
        brings_callbacks = body.get("sdkMcpServers")
    if brings_callbacks and "ask" not in client.hello.optional_kinds:
        raise FrameRefusedError(
            "bad-frame", "a client with hooks or MCP servers must have `ask` among its features"
        )
    hub.control_requests.check_limit(client)
    change, all_hooks = hub.callbacks.register_client_callbacks(client, body)
    if all_hooks:
        body = {**body, "hooks": all_hooks}
    hub.send_control_request(body, request._replace(change=change))


def _accept_reply(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    response = frame.get("response")
    hub.roles.check_control_role(client)
    if not isinstance(response, dict):
        raise FrameError("a reply frame must have `response`, the body of a control_response")
    callback = hub.callbacks.pop_answered_callback(request_id, client)
    if callback is not None:
        limited_response = _limit_hook_answer(hub, client, response)
        hub.send_control_response(request_id, limited_response)
    return False


def _limit_hook_answer(
    hub: SessionHub, client: ConnectedClient, response: FrameFields
) -> FrameFields:
    """Return a hook's answer. If the client is not permitted to allow the tool call, the approval
    is removed from the answer, and the conversation opens a prompt.
    """
    answer = response.get("response")
    body = convert_hook_approval_to_response(answer)
    if body is None or not isinstance(answer, dict):
        return response
    try:
        hub.roles.check_can_answer_prompts(client)
        check_permission_updates(body, can_bypass=hub.session.can_bypass)
        if has_permission_mode_change(body):
            hub.roles.check_can_control(client)
    except FrameRefusedError:
        return {**response, "response": remove_approval_from_hook_answer(answer)}
    return response


def _decline_prompts(
    hub: SessionHub, client: ConnectedClient, frame: FrameFields, request_id: str
) -> bool:
    client.declines_prompts = True
    hub.deny_unanswerable_prompts()
    return True


HANDLERS: Mapping[str, FrameHandler] = {
    "message": _accept_message,
    "answer": _answer_prompt,
    "interrupt": _interrupt_turn,
    "model": _change_model,
    "mode": _change_mode,
    "narrow": _refuse_restrictions,
    "take": _take_control,
    "release": _release_control,
    "end": _end_session,
    "request": _accept_request,
    "reply": _accept_reply,
    "deaf": _decline_prompts,
}

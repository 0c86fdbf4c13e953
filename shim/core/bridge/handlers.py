"""What a client's frame does: one method a kind."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.commands import EndSession
from shim.core.bridge.frames import (
    MAX_ID_CHARS,
    OPTIONAL_KINDS,
    PROTOCOL_VERSION,
    FrameError,
    FrameRefusedError,
    encode_frame,
    parse_hello,
    parse_request_id,
)
from shim.core.bridge.hub_state import EMPTY_BODY, SessionHubState
from shim.core.bridge.prompts import (
    check_permission_updates,
    has_permission_mode_change,
    parse_hook_approval,
    parse_prompt_answer,
    remove_hook_approval,
)
from shim.core.bridge.requests import CallbackRequest, ControlRequest
from shim.core.bridge.status import ClientRestrictions
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.settings import MODES_STRICTEST_FIRST
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.ids import canonicalize_uuid

FrameFields = Mapping[str, Any]
PLAN_EXIT_TOOL = "ExitPlanMode"  # who allows it lets its own ceiling `plan` go
MODE_AFTER_PLAN = MODES_STRICTEST_FIRST[1]  # the least that a session is in behind it
MAX_CLIENT_RULES = 1000  # of one client
# that a client may change in a session that others share
CHANGEABLE_SETTINGS = ("effortLevel", "permissions")
# the doors by which a client brings what it forbids
NARROW_CHANNEL, SETTINGS_CHANNEL = "narrow", "apply_flag_settings"
MODE_SUBTYPE = "set_permission_mode"
# Requests by which a frontend of a real claude runs a tool that nobody judges, chooses the folder
# that rules and trust are about, writes settings files, or lets others in.
REFUSED_SUBTYPES = (
    *("mcp_call", "set_cwd", "add_directory", "register_repo_root"),
    *("update_settings", "remote_control", "channel_enable"),
)
PROTOCOL_DIFFERENCE = (
    "this host speaks protocol {ours} and the client {theirs}; what both know works, and a new session of the same "
    "version on both sides has all of it"
)


class ClientFrameHandlers:
    """FrameRefusedError and FrameError come out of `dispatch_frame`; a frame that is refused does
    nothing.
    """

    def __init__(self, state: SessionHubState) -> None:
        self._state = state
        self._handlers: Mapping[str, Callable[[ConnectedClient, FrameFields, str], bool]] = {
            "message": self._accept_message,
            "answer": self._answer_prompt,
            "interrupt": self._interrupt_turn,
            "model": self._change_model,
            "mode": self._change_mode,
            "narrow": self._add_restrictions,
            "take": self._take_control,
            "release": self._release_control,
            "end": self._end_session,
            "request": self._accept_request,
            "reply": self._accept_reply,
            "deaf": self._decline_prompts,
        }

    def welcome_client(self, client: ConnectedClient, frame: FrameFields) -> None:
        """The first frame."""
        hello, state = parse_hello(frame), self._state
        state.subscribers.accept_hello(client, hello)
        if hello.can_control and state.roles.controller is None:
            state.set_controller(client)
        welcome_fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "client": client.name,
            **state.session.build_welcome_fields(),
            "chosen": state.restrictions.chosen_mode,
            "generation": state.subscribers.generation,
            "number": state.subscribers.last_number,
            "state": state.build_status_fields(),
            "driver": state.roles.controller_name,
            "questions": list(state.prompts.open),
            "settled": None
            if state.prompts.last_outcome is None
            else state.prompts.last_outcome._asdict(),
            "initialize": state.initialize_response,
            "init": state.init_line,
            "knows": OPTIONAL_KINDS,
        }
        if state.notice:
            welcome_fields["differs"] = state.notice
        if hello.protocol != PROTOCOL_VERSION:
            welcome_fields["differs"] = PROTOCOL_DIFFERENCE.format(
                ours=PROTOCOL_VERSION, theirs=hello.protocol
            )
        client.has_stale_state = False
        state.subscribers.send_reply_frame(client, encode_frame("welcome", **welcome_fields))
        state.subscribers.start_log_replay(client)

    def dispatch_frame(self, client: ConnectedClient, frame: FrameFields) -> None:
        """A later frame. An unknown kind is ignored, unless its id shows that an answer is waited
        for.
        """
        request_id, state = parse_request_id(frame), self._state
        handler = self._handlers.get(frame["kind"])
        if handler is None:
            if request_id:
                raise FrameRefusedError(
                    "unknown-kind",
                    f"this host knows protocol {PROTOCOL_VERSION}, and no such frame in it",
                )
            return
        if frame["kind"] != "reply" and request_id:
            if state.control_requests.is_request_pending(client, request_id):
                return
            if (client.number, request_id) in state.frame_answers:
                state.resend_frame_answer(client, request_id)
                return
        if handler(client, frame, request_id):
            state.send_accepted_frame(client, request_id)

    # -- one method a kind: whether the frame is done with it --------------------------------------

    def _accept_message(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        state, message = self._state, frame.get("message")
        uuid = canonicalize_uuid(request_id)
        key = ("", uuid) if uuid else (client.requested_client_name, request_id)
        if request_id and key in state.message_ids:
            return True
        state.roles.check_controller(client)
        if not isinstance(message, dict) or message.get("role") != "user":
            raise FrameError('message has `message`, an object with the role "user"')
        if not isinstance(message.get("content"), str | list):
            raise FrameError("`content` of a message is a text or a list of blocks")
        message_id = uuid or state.create_id()
        state.send_message(message, message_id, frame.get("priority"))
        state.set_controller(client)
        if request_id:
            state.message_ids[key] = True
            state.message_senders[message_id] = client, request_id
        return True

    def _answer_prompt(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        state, prompt_id = self._state, frame.get("question")
        state.roles.check_can_answer_prompts(client)
        if not isinstance(prompt_id, str) or len(prompt_id) > MAX_ID_CHARS:
            raise FrameError("answer has `question`, the id of a question")
        prompt = state.prompts.open.get(prompt_id)
        if prompt is None:
            outcome = state.prompts.find_outcome(prompt_id)
            if outcome is None:
                raise FrameRefusedError(
                    "unknown-question", "no question of this session has this id"
                )
            state.subscribers.send_reply_frame(client, outcome.frame)
            return False
        outcome_kind, body = parse_prompt_answer(
            prompt, frame.get("decision"), can_bypass=state.session.can_bypass
        )
        if outcome_kind == "allow" and self._check_mode_change(
            client, prompt.request.get("tool_name"), body, client.number
        ):
            self._lift_restriction(client)
        state.resolve_prompt(prompt_id, client.name, outcome_kind, body)
        return True

    def _check_mode_change(
        self, client: ConnectedClient, tool: object, body: FrameFields, lifted_client: int | None
    ) -> bool:
        """Whether allowing a call changes the mode. FrameRefusedError where that is not the
        client's to do, or where a ceiling of another than `lifted_client` is in the way."""
        state, modes = self._state, [MODE_AFTER_PLAN] if tool == PLAN_EXIT_TOOL else []
        if has_permission_mode_change(body):
            # as for a frame `mode`: whoever drives is not surprised by a wider session
            state.roles.check_controller(client)
            updates = (
                body["updatedPermissions"] if isinstance(body["updatedPermissions"], list) else ()
            )
            modes += [
                str(update["mode"])
                for update in updates
                if isinstance(update, dict) and "mode" in update
            ]
        if not all(state.restrictions.allows_mode(lifted_client, mode) for mode in modes):
            raise FrameRefusedError(
                "wider",
                f"another frontend lets this session be in no wider mode than {state.restrictions.mode}",
            )
        return tool == PLAN_EXIT_TOOL or has_permission_mode_change(body)

    def _interrupt_turn(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        state = self._state
        state.roles.check_control_role(client)
        state.send_control_request(
            {"subtype": "interrupt"}, ControlRequest(client, request_id, "interrupt")
        )
        state.resolve_all_prompts(client.name, "interrupt")
        return False

    def _change_model(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        model = frame.get("model")
        if not isinstance(model, str | None):
            raise FrameError("model has `model`, a name or null")
        self._state.roles.check_controller(client)
        self._state.send_control_request(
            {"subtype": "set_model", "model": model},
            ControlRequest(client, request_id, "set_model"),
        )
        return False

    def _change_mode(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        self._state.roles.check_controller(client)
        self._choose_mode(frame, ControlRequest(client, request_id, MODE_SUBTYPE))
        return False

    def _choose_mode(
        self, frame: FrameFields, request: ControlRequest, body: FrameFields = EMPTY_BODY
    ) -> None:
        """The mode that a driver chooses holds as far as others let it; its own ceiling is its own
        to lift.
        """
        mode, client = frame.get("mode"), request.client
        assert client is not None
        self._check_mode(mode)
        restrictions = self._state.restrictions.get_restrictions(
            client.number, NARROW_CHANNEL
        )._replace(mode="")
        undo = self._change_restrictions(
            client,
            NARROW_CHANNEL,
            "sent_mode",
            restrictions,
            "default" if mode == "manual" else str(mode),
        )
        self._send_or_undo(
            undo, lambda: self._state.send_permission_mode(request._replace(undo=undo), body)
        )

    def _lift_restriction(self, client: ConnectedClient) -> None:
        restrictions = self._state.restrictions.get_restrictions(client.number, NARROW_CHANNEL)
        self._state.restrictions.set_restrictions(
            client.number, NARROW_CHANNEL, restrictions._replace(mode="")
        )

    def _change_restrictions(
        self,
        client: ConnectedClient,
        channel: str,
        sent_attribute: str,
        new_restrictions: ClientRestrictions,
        chosen_mode: str | None = None,
    ) -> Callable[[], None]:
        """Change what a client forbids, and what is chosen. Gives back what undoes it where the
        conversation was not told; what was changed again meanwhile stays."""
        restrictions, subscribers = self._state.restrictions, self._state.subscribers
        previous_mode, previous_restrictions = (
            restrictions.chosen_mode,
            restrictions.get_restrictions(client.number, channel),
        )
        if chosen_mode is not None:
            restrictions.set_chosen_mode(chosen_mode)
        restrictions.set_restrictions(client.number, channel, new_restrictions)

        def undo() -> None:
            if chosen_mode not in (None, previous_mode):
                restrictions.roll_back_refused_mode(previous_mode, refused_mode=chosen_mode)
            if (
                client.number in subscribers.clients
                and restrictions.get_restrictions(client.number, channel) == new_restrictions
            ):
                restrictions.set_restrictions(client.number, channel, previous_restrictions)
            setattr(restrictions, sent_attribute, None)
            self._state.send_changed_restrictions()

        return undo

    @staticmethod
    def _send_or_undo(undo: Callable[[], None], send: Callable[[], None]) -> None:
        try:
            send()
        except FrameRefusedError:
            undo()
            raise

    def _add_restrictions(
        self, client: ConnectedClient, frame: FrameFields, request_id: str
    ) -> bool:
        """What a client forbids beside the others. It asks for no driver: nobody's rights become
        more by it.
        """
        state, mode = self._state, frame.get("mode")
        state.roles.check_control_role(client)
        if mode is not None and mode not in MODES_STRICTEST_FIRST:
            raise FrameError(f"narrow has `mode`, one of {', '.join(MODES_STRICTEST_FIRST)}")
        added = (
            ClientRestrictions(str(mode))
            if mode is not None
            else ClientRestrictions("", *_parse_rules(frame))
        )
        combined = state.restrictions.get_restrictions(client.number, NARROW_CHANNEL).combine(added)
        undo = self._change_restrictions(
            client, NARROW_CHANNEL, "sent_rules" if mode is None else "sent_mode", combined
        )
        # What was told and is not answered yet may still be refused.
        if mode is not None and (
            state.restrictions.mode != state.restrictions.sent_mode
            or state.control_requests.has_pending_subtype(MODE_SUBTYPE)
        ):
            request = ControlRequest(client, request_id, MODE_SUBTYPE, undo=undo)
            self._send_or_undo(undo, lambda: state.send_permission_mode(request))
        elif mode is None and (
            state.restrictions.rules != state.restrictions.sent_rules
            or state.control_requests.has_pending_subtype(SETTINGS_CHANNEL)
        ):
            request = ControlRequest(client, request_id, SETTINGS_CHANNEL, undo=undo)
            self._send_or_undo(undo, lambda: state.send_permission_rules({}, request))
        else:
            return True
        return False

    def _apply_settings(
        self, client: ConnectedClient, settings: object, request: ControlRequest
    ) -> None:
        """Of a client's settings what narrows, and the effort; all clients' rules are told beside
        each other.
        """
        state = self._state
        if not isinstance(settings, dict):
            raise FrameError("apply_flag_settings has `settings`, an object")
        permissions = settings.get("permissions")
        permission_fields = permissions if isinstance(permissions, dict) else {}
        refused_keys = [key for key in settings if settings[key] and key not in CHANGEABLE_SETTINGS]
        refused_keys += [
            f"permissions.{key}"
            for key in permission_fields
            if permission_fields[key] and key not in ("deny", "ask")
        ]
        if refused_keys or (permissions and not permission_fields):
            refused_text = ", ".join(map(escape_control_chars, refused_keys)) or "permissions"
            raise FrameRefusedError(
                "wider",
                f"a session that lives takes no settings but deny, ask and effort: {refused_text}",
            )
        passed_settings = {key: settings[key] for key in settings if key == "effortLevel"}
        restrictions = (
            ClientRestrictions("", *_parse_rules(permission_fields))
            if permission_fields
            else state.restrictions.get_restrictions(client.number, SETTINGS_CHANNEL)
        )
        undo = self._change_restrictions(client, SETTINGS_CHANNEL, "sent_rules", restrictions)
        self._send_or_undo(
            undo, lambda: state.send_permission_rules(passed_settings, request._replace(undo=undo))
        )

    def _check_mode(self, mode: object) -> None:
        if not isinstance(mode, str) or not mode:
            raise FrameError("mode has `mode`, the name of a permission mode")
        if mode == BYPASS_MODE and not self._state.session.can_bypass:
            raise FrameRefusedError(
                "bypass", f"{BYPASS_MODE} can be chosen only if the session began with it"
            )

    def _take_control(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        self._state.roles.check_control_role(client)
        self._state.set_controller(client)
        return True

    def _release_control(
        self, client: ConnectedClient, frame: FrameFields, request_id: str
    ) -> bool:
        self._state.roles.check_control_role(client)
        if self._state.roles.controller is client:
            self._state.set_controller(None)
        return True

    def _end_session(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        self._state.roles.check_controller(client)
        self._state.commands.append(EndSession(client.name))
        return False  # the answer is `bye`

    def _accept_request(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        state, body = self._state, frame.get("request")
        if not isinstance(body, dict) or not isinstance(body.get("subtype"), str) or not request_id:
            raise FrameError("request has `id`, and `request` with a `subtype`")
        if body["subtype"] == "interrupt":
            state.roles.check_control_role(client)
        else:
            state.roles.check_controller(client)
        brings_callbacks = body["subtype"] == "initialize" and (
            body.get("hooks") or body.get("sdkMcpServers")
        )
        if brings_callbacks and not client.accepts_frame_kind("ask"):
            raise FrameRefusedError(
                "bad-frame", "hooks and servers of a client need `ask` in what it knows"
            )
        request = ControlRequest(client, request_id, body["subtype"], wants_body=True)
        if body["subtype"] == MODE_SUBTYPE:
            self._choose_mode(body, request, body)
        elif body["subtype"] == SETTINGS_CHANNEL:
            self._apply_settings(client, body.get("settings"), request)
        else:
            self._forward_request(client, body, request)
        if body["subtype"] == "interrupt":
            state.resolve_all_prompts(client.name, "interrupt")
        return False

    def _forward_request(
        self, client: ConnectedClient, body: FrameFields, request: ControlRequest
    ) -> None:
        if body["subtype"] in REFUSED_SUBTYPES:
            raise FrameRefusedError(
                "wider",
                f"a session that lives takes no {body['subtype']}: it is not one frontend's own",
            )
        if body["subtype"] != "initialize":
            self._state.send_control_request(body, request)
            return
        initialize_request, undo = self._state.callbacks.register_client_callbacks(client, body)
        self._send_or_undo(
            undo,
            lambda: self._state.send_control_request(
                initialize_request, request._replace(undo=undo)
            ),
        )

    def _accept_reply(self, client: ConnectedClient, frame: FrameFields, request_id: str) -> bool:
        state, response = self._state, frame.get("response")
        state.roles.check_control_role(client)
        if not isinstance(response, dict):
            raise FrameError("reply has `response`, the body of a control_response")
        callback = state.callbacks.pop_answered_callback(request_id, client)
        if callback is not None:
            state.send_control_response(
                request_id, self._limit_hook_answer(client, callback, response)
            )
        return False

    def _limit_hook_answer(
        self, client: ConnectedClient, callback: CallbackRequest, response: FrameFields
    ) -> FrameFields:
        """A hook's answer. What it allows is left out where the client may not, so that the call is
        asked about.

        A hook lifts no ceiling, not even its own client's: another hook may deny what it allows.
        """
        state, answer, hook_input = (
            self._state,
            response.get("response"),
            callback.request.get("input"),
        )
        body = parse_hook_approval(answer)
        if body is None or not isinstance(answer, dict):
            return response
        try:
            state.roles.check_can_answer_prompts(client)
            check_permission_updates(body, can_bypass=state.session.can_bypass)
            self._check_mode_change(
                client,
                hook_input.get("tool_name") if isinstance(hook_input, dict) else None,
                body,
                None,
            )
        except FrameRefusedError:
            return {**response, "response": remove_hook_approval(answer)}
        return response

    def _decline_prompts(
        self, client: ConnectedClient, frame: FrameFields, request_id: str
    ) -> bool:
        client.declines_prompts = True
        self._state.deny_unanswerable_prompts()
        return True


def _parse_rules(frame: FrameFields) -> list[tuple[str, ...]]:
    """The rules that deny, and those that ask. FrameError for what is no list of rules."""
    rule_lists = [frame.get(key) or () for key in ("deny", "ask")]
    if not all(
        isinstance(rules, list | tuple) and all(isinstance(rule, str) for rule in rules)
        for rules in rule_lists
    ):
        raise FrameError("`deny` and `ask` are lists of rules")
    if sum(map(len, rule_lists)) > MAX_CLIENT_RULES:
        raise FrameRefusedError("too-many", f"a client brings at most {MAX_CLIENT_RULES} rules")
    return [tuple(rules) for rules in rule_lists]

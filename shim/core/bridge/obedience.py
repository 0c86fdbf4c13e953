"""What a client's frame does: one method a kind."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.bridge.client import Client
from shim.core.bridge.commands import EndSession
from shim.core.bridge.conversation import EMPTY_BODY, HubState
from shim.core.bridge.frames import (
    MAX_ID_CHARS,
    OPTIONAL_KINDS,
    PROTOCOL_VERSION,
    FrameError,
    RefusedError,
    encode_frame,
    parse_hello,
    parse_request_id,
)
from shim.core.bridge.questions import (
    check_updates,
    has_mode_change,
    parse_answer,
    parse_hook_grant,
    remove_grant,
)
from shim.core.bridge.requests import CallbackRequest, ControlRequest
from shim.core.bridge.session import ClientRestrictions
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.sources import MODES_STRICTEST_FIRST
from shim.core.reading.account import escape_control_chars
from shim.core.reading.ids import parse_uuid

FrameFields = Mapping[str, Any]
PLAN_EXIT_TOOL = "ExitPlanMode"  # who allows it lets its own ceiling `plan` go
MODE_AFTER_PLAN = MODES_STRICTEST_FIRST[1]  # the least that a session is in behind it
MAX_CLIENT_RULES = 1000  # of one client
CHANGEABLE_SETTINGS = (
    "effortLevel",
    "permissions",
)  # that a client may change in a session that others share
NARROW_CHANNEL, SETTINGS_CHANNEL = (
    "narrow",
    "apply_flag_settings",
)  # the doors by which a client brings what it forbids
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


class FrameHandlers:
    """RefusedError and FrameError come out of `obey`; a frame that is refused does nothing."""

    def __init__(self, conversation: HubState) -> None:
        self._state = conversation
        self._handlers: Mapping[str, Callable[[Client, FrameFields, str], bool]] = {
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

    def welcome_client(self, client: Client, said: FrameFields) -> None:
        """The first frame."""
        hello, it = parse_hello(said), self._state
        it.subscribers.accept_hello(client, hello)
        if hello.can_control and it.roles.controller is None:
            it.set_controller(client)
        facts: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "client": client.name,
            **it.session.format_welcome(),
            "chosen": it.restrictions.chosen_mode,
            "generation": it.subscribers.generation,
            "number": it.subscribers.last_number,
            "state": it.format_status(),
            "driver": it.roles.controller_name,
            "questions": list(it.prompts.open),
            "settled": None
            if it.prompts.last_outcome is None
            else it.prompts.last_outcome._asdict(),
            "initialize": it.initialize_response,
            "init": it.init_line,
            "knows": OPTIONAL_KINDS,
        }
        if it.notice:
            facts["differs"] = it.notice
        if hello.protocol != PROTOCOL_VERSION:
            facts["differs"] = PROTOCOL_DIFFERENCE.format(
                ours=PROTOCOL_VERSION, theirs=hello.protocol
            )
        client.has_stale_state = False
        it.subscribers.send_frame(client, encode_frame("welcome", **facts))
        it.subscribers.start_sending(client)

    def dispatch_frame(self, client: Client, said: FrameFields) -> None:
        """A later frame. An unknown kind is ignored, unless its id shows that an answer is waited
        for.
        """
        mark, it = parse_request_id(said), self._state
        does = self._handlers.get(said["kind"])
        if does is None:
            if mark:
                raise RefusedError(
                    "unknown-kind",
                    f"this host knows protocol {PROTOCOL_VERSION}, and no such frame in it",
                )
            return
        if said["kind"] != "reply" and mark:
            if it.control_requests.is_waiting(client, mark):
                return
            if (client.number, mark) in it.frame_answers:
                it.repeat_answer(client, mark)
                return
        if does(client, said, mark):
            it.accept_frame(client, mark)

    # -- one method a kind: whether the frame is done with it --------------------------------------

    def _accept_message(self, client: Client, said: FrameFields, mark: str) -> bool:
        it, message = self._state, said.get("message")
        uuid = parse_uuid(mark)
        key = ("", uuid) if uuid else (client.requested_name, mark)
        if mark and key in it.message_ids:
            return True
        it.roles.check_controller(client)
        if not isinstance(message, dict) or message.get("role") != "user":
            raise FrameError('message has `message`, an object with the role "user"')
        if not isinstance(message.get("content"), str | list):
            raise FrameError("`content` of a message is a text or a list of blocks")
        named = uuid or it.create_id()
        it.send_message(message, named, said.get("priority"))
        it.set_controller(client)
        if mark:
            it.message_ids[key] = True
            it.message_senders[named] = client, mark
        return True

    def _answer_prompt(self, client: Client, said: FrameFields, mark: str) -> bool:
        it, named = self._state, said.get("question")
        it.roles.check_answer_right(client)
        if not isinstance(named, str) or len(named) > MAX_ID_CHARS:
            raise FrameError("answer has `question`, the id of a question")
        question = it.prompts.open.get(named)
        if question is None:
            outcome = it.prompts.find_outcome(named)
            if outcome is None:
                raise RefusedError("unknown-question", "no question of this session has this id")
            it.subscribers.send_frame(client, outcome.frame)
            return False
        how, body = parse_answer(question, said.get("decision"), can_bypass=it.session.can_bypass)
        if how == "allow" and self._check_mode_change(
            client, question.request.get("tool_name"), body, client.number
        ):
            self._lift_restriction(client)
        it.resolve_prompt(named, client.name, how, body)
        return True

    def _check_mode_change(
        self, client: Client, tool: object, body: FrameFields, lifted: int | None
    ) -> bool:
        """Whether allowing a call changes the mode. RefusedError where that is not the client's to
        do, or where a ceiling of another than `lifted` is in the way."""
        it, modes = self._state, [MODE_AFTER_PLAN] if tool == PLAN_EXIT_TOOL else []
        if has_mode_change(body):
            # as for a frame `mode`: whoever drives is not surprised by a wider session
            it.roles.check_controller(client)
            updates = (
                body["updatedPermissions"] if isinstance(body["updatedPermissions"], list) else ()
            )
            modes += [
                str(one["mode"]) for one in updates if isinstance(one, dict) and "mode" in one
            ]
        if not all(it.restrictions.allows_mode(lifted, mode) for mode in modes):
            raise RefusedError(
                "wider",
                f"another frontend lets this session be in no wider mode than {it.restrictions.mode}",
            )
        return tool == PLAN_EXIT_TOOL or has_mode_change(body)

    def _interrupt_turn(self, client: Client, said: FrameFields, mark: str) -> bool:
        it = self._state
        it.roles.check_control_role(client)
        it.send_request({"subtype": "interrupt"}, ControlRequest(client, mark, "interrupt"))
        it.resolve_all_prompts(client.name, "interrupt")
        return False

    def _change_model(self, client: Client, said: FrameFields, mark: str) -> bool:
        model = said.get("model")
        if not isinstance(model, str | None):
            raise FrameError("model has `model`, a name or null")
        self._state.roles.check_controller(client)
        self._state.send_request(
            {"subtype": "set_model", "model": model}, ControlRequest(client, mark, "set_model")
        )
        return False

    def _change_mode(self, client: Client, said: FrameFields, mark: str) -> bool:
        self._state.roles.check_controller(client)
        self._choose_mode(said, ControlRequest(client, mark, MODE_SUBTYPE))
        return False

    def _choose_mode(
        self, said: FrameFields, request: ControlRequest, body: FrameFields = EMPTY_BODY
    ) -> None:
        """The mode that a driver chooses holds as far as others let it; its own ceiling is its own
        to lift.
        """
        mode, client = said.get("mode"), request.client
        assert client is not None
        self._check_mode(mode)
        lifted = self._state.restrictions.get_restrictions(client.number, NARROW_CHANNEL)._replace(
            mode=""
        )
        undo = self._change_restrictions(
            client,
            NARROW_CHANNEL,
            "told_mode",
            lifted,
            "default" if mode == "manual" else str(mode),
        )
        self._send_or_undo(undo, lambda: self._state.send_mode(request._replace(undo=undo), body))

    def _lift_restriction(self, client: Client) -> None:
        brought = self._state.restrictions.get_restrictions(client.number, NARROW_CHANNEL)
        self._state.restrictions.set_restrictions(
            client.number, NARROW_CHANNEL, brought._replace(mode="")
        )

    def _change_restrictions(
        self,
        client: Client,
        door: str,
        told: str,
        ceiling: ClientRestrictions,
        chosen: str | None = None,
    ) -> Callable[[], None]:
        """Change what a client forbids, and what is chosen. Gives back what undoes it where the
        conversation was not told; what was changed again meanwhile stays."""
        ceilings, audience = self._state.restrictions, self._state.subscribers
        before, brought = ceilings.chosen_mode, ceilings.get_restrictions(client.number, door)
        if chosen is not None:
            ceilings.choose_mode(chosen)
        ceilings.set_restrictions(client.number, door, ceiling)

        def undo() -> None:
            if chosen not in (None, before):
                ceilings.restore_mode(before, refused_mode=chosen)
            if (
                client.number in audience.clients
                and ceilings.get_restrictions(client.number, door) == ceiling
            ):
                ceilings.set_restrictions(client.number, door, brought)
            setattr(ceilings, told, None)
            self._state.apply_restrictions()

        return undo

    @staticmethod
    def _send_or_undo(undo: Callable[[], None], tell: Callable[[], None]) -> None:
        try:
            tell()
        except RefusedError:
            undo()
            raise

    def _add_restrictions(self, client: Client, said: FrameFields, mark: str) -> bool:
        """What a client forbids beside the others. It asks for no driver: nobody's rights become
        more by it.
        """
        it, mode = self._state, said.get("mode")
        it.roles.check_control_role(client)
        if mode is not None and mode not in MODES_STRICTEST_FIRST:
            raise FrameError(f"narrow has `mode`, one of {', '.join(MODES_STRICTEST_FIRST)}")
        more = (
            ClientRestrictions(str(mode))
            if mode is not None
            else ClientRestrictions("", *_parse_rules(said))
        )
        whole = it.restrictions.get_restrictions(client.number, NARROW_CHANNEL).combine(more)
        undo = self._change_restrictions(
            client, NARROW_CHANNEL, "told_rules" if mode is None else "told_mode", whole
        )
        # What was told and is not answered yet may still be refused.
        if mode is not None and (
            it.restrictions.mode != it.restrictions.sent_mode
            or it.control_requests.has_pending(MODE_SUBTYPE)
        ):
            request = ControlRequest(client, mark, MODE_SUBTYPE, undo=undo)
            self._send_or_undo(undo, lambda: it.send_mode(request))
        elif mode is None and (
            it.restrictions.rules != it.restrictions.sent_rules
            or it.control_requests.has_pending(SETTINGS_CHANNEL)
        ):
            request = ControlRequest(client, mark, SETTINGS_CHANNEL, undo=undo)
            self._send_or_undo(undo, lambda: it.send_rules({}, request))
        else:
            return True
        return False

    def _apply_settings(self, client: Client, settings: object, request: ControlRequest) -> None:
        """Of a client's settings what narrows, and the effort; all clients' rules are told beside
        each other.
        """
        it = self._state
        if not isinstance(settings, dict):
            raise FrameError("apply_flag_settings has `settings`, an object")
        permissions = settings.get("permissions")
        given = permissions if isinstance(permissions, dict) else {}
        others = [key for key in settings if settings[key] and key not in CHANGEABLE_SETTINGS]
        others += [
            f"permissions.{key}" for key in given if given[key] and key not in ("deny", "ask")
        ]
        if others or (permissions and not given):
            what = ", ".join(map(escape_control_chars, others)) or "permissions"
            raise RefusedError(
                "wider", f"a session that lives takes no settings but deny, ask and effort: {what}"
            )
        passed = {key: settings[key] for key in settings if key == "effortLevel"}
        brought = (
            ClientRestrictions("", *_parse_rules(given))
            if given
            else it.restrictions.get_restrictions(client.number, SETTINGS_CHANNEL)
        )
        undo = self._change_restrictions(client, SETTINGS_CHANNEL, "told_rules", brought)
        self._send_or_undo(undo, lambda: it.send_rules(passed, request._replace(undo=undo)))

    def _check_mode(self, mode: object) -> None:
        if not isinstance(mode, str) or not mode:
            raise FrameError("mode has `mode`, the name of a permission mode")
        if mode == BYPASS_MODE and not self._state.session.can_bypass:
            raise RefusedError(
                "bypass", f"{BYPASS_MODE} can be chosen only if the session began with it"
            )

    def _take_control(self, client: Client, said: FrameFields, mark: str) -> bool:
        self._state.roles.check_control_role(client)
        self._state.set_controller(client)
        return True

    def _release_control(self, client: Client, said: FrameFields, mark: str) -> bool:
        self._state.roles.check_control_role(client)
        if self._state.roles.controller is client:
            self._state.set_controller(None)
        return True

    def _end_session(self, client: Client, said: FrameFields, mark: str) -> bool:
        self._state.roles.check_controller(client)
        self._state.commands.append(EndSession(client.name))
        return False  # the answer is `bye`

    def _accept_request(self, client: Client, said: FrameFields, mark: str) -> bool:
        it, body = self._state, said.get("request")
        if not isinstance(body, dict) or not isinstance(body.get("subtype"), str) or not mark:
            raise FrameError("request has `id`, and `request` with a `subtype`")
        if body["subtype"] == "interrupt":
            it.roles.check_control_role(client)
        else:
            it.roles.check_controller(client)
        brings = body["subtype"] == "initialize" and (
            body.get("hooks") or body.get("sdkMcpServers")
        )
        if brings and not client.accepts_kind("ask"):
            raise RefusedError(
                "bad-frame", "hooks and servers of a client need `ask` in what it knows"
            )
        request = ControlRequest(client, mark, body["subtype"], wants_body=True)
        if body["subtype"] == MODE_SUBTYPE:
            self._choose_mode(body, request, body)
        elif body["subtype"] == SETTINGS_CHANNEL:
            self._apply_settings(client, body.get("settings"), request)
        else:
            self._forward_request(client, body, request)
        if body["subtype"] == "interrupt":
            it.resolve_all_prompts(client.name, "interrupt")
        return False

    def _forward_request(self, client: Client, body: FrameFields, request: ControlRequest) -> None:
        if body["subtype"] in REFUSED_SUBTYPES:
            raise RefusedError(
                "wider",
                f"a session that lives takes no {body['subtype']}: it is not one frontend's own",
            )
        if body["subtype"] != "initialize":
            self._state.send_request(body, request)
            return
        whole, undo = self._state.callbacks.register_client(client, body)
        self._send_or_undo(
            undo, lambda: self._state.send_request(whole, request._replace(undo=undo))
        )

    def _accept_reply(self, client: Client, said: FrameFields, mark: str) -> bool:
        it, response = self._state, said.get("response")
        it.roles.check_control_role(client)
        if not isinstance(response, dict):
            raise FrameError("reply has `response`, the body of a control_response")
        ask = it.callbacks.pop_answered(mark, client)
        if ask is not None:
            it.send_response(mark, self._limit_hook_answer(client, ask, response))
        return False

    def _limit_hook_answer(
        self, client: Client, ask: CallbackRequest, response: FrameFields
    ) -> FrameFields:
        """A hook's answer. What it allows is left out where the client may not, so that the call is
        asked about.

        A hook lifts no ceiling, not even its own client's: another hook may deny what it allows.
        """
        it, answer, about = self._state, response.get("response"), ask.request.get("input")
        body = parse_hook_grant(answer)
        if body is None or not isinstance(answer, dict):
            return response
        try:
            it.roles.check_answer_right(client)
            check_updates(body, can_bypass=it.session.can_bypass)
            self._check_mode_change(
                client, about.get("tool_name") if isinstance(about, dict) else None, body, None
            )
        except RefusedError:
            return {**response, "response": remove_grant(answer)}
        return response

    def _decline_prompts(self, client: Client, said: FrameFields, mark: str) -> bool:
        client.declines_prompts = True
        self._state.deny_unanswerable_prompts()
        return True


def _parse_rules(said: FrameFields) -> list[tuple[str, ...]]:
    """The rules that deny, and those that ask. FrameError for what is no list of rules."""
    found = [said.get(key) or () for key in ("deny", "ask")]
    if not all(
        isinstance(rules, list | tuple) and all(isinstance(rule, str) for rule in rules)
        for rules in found
    ):
        raise FrameError("`deny` and `ask` are lists of rules")
    if sum(map(len, found)) > MAX_CLIENT_RULES:
        raise RefusedError("too-many", f"a client brings at most {MAX_CLIENT_RULES} rules")
    return [tuple(rules) for rules in found]

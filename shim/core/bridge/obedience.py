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
    changes_mode,
    check_updates,
    hook_grant,
    read_answer,
    without_grant,
)
from shim.core.bridge.requests import Ask, Request
from shim.core.bridge.session import Ceiling
from shim.core.policy.policy import BYPASS
from shim.core.policy.sources import NARROWEST_FIRST
from shim.core.reading.account import printable
from shim.core.reading.ids import parse_uuid

Said = Mapping[str, Any]
PLANNED = "ExitPlanMode"  # who allows it lets its own ceiling `plan` go
UNPLANNED = NARROWEST_FIRST[1]  # the least that a session is in behind it
RULES = 1000  # of one client
SETTINGS = ("effortLevel", "permissions")  # that a client may change in a session that others share
FLAGS, SAID = "narrow", "apply_flag_settings"  # the doors by which a client brings what it forbids
MODE = "set_permission_mode"
# Requests by which a frontend of a real claude runs a tool that nobody judges, chooses the folder
# that rules and trust are about, writes settings files, or lets others in.
UNSHARED = (
    *("mcp_call", "set_cwd", "add_directory", "register_repo_root"),
    *("update_settings", "remote_control", "channel_enable"),
)
DIFFERS = (
    "this host speaks protocol {ours} and the client {theirs}; what both know works, and a new session of the same "
    "version on both sides has all of it"
)


class Obedience:
    """RefusedError and FrameError come out of `obey`; a frame that is refused does nothing."""

    def __init__(self, conversation: HubState) -> None:
        self._it = conversation
        self._kinds: Mapping[str, Callable[[Client, Said, str], bool]] = {
            "message": self._message,
            "answer": self._answer,
            "interrupt": self._interrupt,
            "model": self._model,
            "mode": self._mode,
            "narrow": self._narrow,
            "take": self._take,
            "release": self._release,
            "end": self._end,
            "request": self._request,
            "reply": self._reply,
            "deaf": self._deaf,
        }

    def hello(self, client: Client, said: Said) -> None:
        """The first frame."""
        hello, it = parse_hello(said), self._it
        it.subscribers.accept_hello(client, hello)
        if hello.can_control and it.roles.controller is None:
            it.set_controller(client)
        facts: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "client": client.name,
            **it.session.facts(),
            "chosen": it.restrictions.chosen,
            "generation": it.subscribers.generation,
            "number": it.subscribers.last_number,
            "state": it.format_status(),
            "driver": it.roles.controller_name,
            "questions": list(it.prompts.open),
            "settled": None if it.prompts.last is None else it.prompts.last._asdict(),
            "initialize": it.initialize_response,
            "init": it.init_line,
            "knows": OPTIONAL_KINDS,
        }
        if it.notice:
            facts["differs"] = it.notice
        if hello.protocol != PROTOCOL_VERSION:
            facts["differs"] = DIFFERS.format(ours=PROTOCOL_VERSION, theirs=hello.protocol)
        client.has_stale_state = False
        it.subscribers.send_frame(client, encode_frame("welcome", **facts))
        it.subscribers.start_sending(client)

    def obey(self, client: Client, said: Said) -> None:
        """A later frame. An unknown kind is ignored, unless its id shows that an answer is waited
        for.
        """
        mark, it = parse_request_id(said), self._it
        does = self._kinds.get(said["kind"])
        if does is None:
            if mark:
                raise RefusedError(
                    "unknown-kind",
                    f"this host knows protocol {PROTOCOL_VERSION}, and no such frame in it",
                )
            return
        if said["kind"] != "reply" and mark:
            if it.control_requests.waits(client, mark):
                return
            if (client.number, mark) in it.frame_answers:
                it.repeat_answer(client, mark)
                return
        if does(client, said, mark):
            it.accept_frame(client, mark)

    # -- one method a kind: whether the frame is done with it --------------------------------------

    def _message(self, client: Client, said: Said, mark: str) -> bool:
        it, message = self._it, said.get("message")
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

    def _answer(self, client: Client, said: Said, mark: str) -> bool:
        it, named = self._it, said.get("question")
        it.roles.check_answer_right(client)
        if not isinstance(named, str) or len(named) > MAX_ID_CHARS:
            raise FrameError("answer has `question`, the id of a question")
        question = it.prompts.open.get(named)
        if question is None:
            outcome = it.prompts.outcome(named)
            if outcome is None:
                raise RefusedError("unknown-question", "no question of this session has this id")
            it.subscribers.send_frame(client, outcome.frame)
            return False
        how, body = read_answer(question, said.get("decision"), bypass=it.session.bypass)
        if how == "allow" and self._changes_mode(
            client, question.request.get("tool_name"), body, client.number
        ):
            self._lift(client)
        it.resolve_prompt(named, client.name, how, body)
        return True

    def _changes_mode(self, client: Client, tool: object, body: Said, lifted: int | None) -> bool:
        """Whether allowing a call changes the mode. RefusedError where that is not the client's to
        do, or where a ceiling of another than `lifted` is in the way."""
        it, modes = self._it, [UNPLANNED] if tool == PLANNED else []
        if changes_mode(body):
            # as for a frame `mode`: whoever drives is not surprised by a wider session
            it.roles.check_controller(client)
            updates = (
                body["updatedPermissions"] if isinstance(body["updatedPermissions"], list) else ()
            )
            modes += [
                str(one["mode"]) for one in updates if isinstance(one, dict) and "mode" in one
            ]
        if not all(it.restrictions.allow(lifted, mode) for mode in modes):
            raise RefusedError(
                "wider",
                f"another frontend lets this session be in no wider mode than {it.restrictions.mode}",
            )
        return tool == PLANNED or changes_mode(body)

    def _interrupt(self, client: Client, said: Said, mark: str) -> bool:
        it = self._it
        it.roles.check_control_role(client)
        it.send_request({"subtype": "interrupt"}, Request(client, mark, "interrupt"))
        it.resolve_all_prompts(client.name, "interrupt")
        return False

    def _model(self, client: Client, said: Said, mark: str) -> bool:
        model = said.get("model")
        if not isinstance(model, str | None):
            raise FrameError("model has `model`, a name or null")
        self._it.roles.check_controller(client)
        self._it.send_request(
            {"subtype": "set_model", "model": model}, Request(client, mark, "set_model")
        )
        return False

    def _mode(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.check_controller(client)
        self._choose(said, Request(client, mark, MODE))
        return False

    def _choose(self, said: Said, request: Request, body: Said = EMPTY_BODY) -> None:
        """The mode that a driver chooses holds as far as others let it; its own ceiling is its own
        to lift.
        """
        mode, client = said.get("mode"), request.client
        assert client is not None
        self._allowed(mode)
        lifted = self._it.restrictions.of(client.number, FLAGS)._replace(mode="")
        undo = self._change(
            client, FLAGS, "told_mode", lifted, "default" if mode == "manual" else str(mode)
        )
        self._told(undo, lambda: self._it.send_mode(request._replace(undo=undo), body))

    def _lift(self, client: Client) -> None:
        brought = self._it.restrictions.of(client.number, FLAGS)
        self._it.restrictions.bring(client.number, FLAGS, brought._replace(mode=""))

    def _change(
        self, client: Client, door: str, told: str, ceiling: Ceiling, chosen: str | None = None
    ) -> Callable[[], None]:
        """Change what a client forbids, and what is chosen. Gives back what undoes it where the
        conversation was not told; what was changed again meanwhile stays."""
        ceilings, audience = self._it.restrictions, self._it.subscribers
        before, brought = ceilings.chosen, ceilings.of(client.number, door)
        if chosen is not None:
            ceilings.choose(chosen)
        ceilings.bring(client.number, door, ceiling)

        def undo() -> None:
            if chosen not in (None, before):
                ceilings.choose_again(before, refused=chosen)
            if client.number in audience.clients and ceilings.of(client.number, door) == ceiling:
                ceilings.bring(client.number, door, brought)
            setattr(ceilings, told, None)
            self._it.apply_restrictions()

        return undo

    @staticmethod
    def _told(undo: Callable[[], None], tell: Callable[[], None]) -> None:
        try:
            tell()
        except RefusedError:
            undo()
            raise

    def _narrow(self, client: Client, said: Said, mark: str) -> bool:
        """What a client forbids beside the others. It asks for no driver: nobody's rights become
        more by it.
        """
        it, mode = self._it, said.get("mode")
        it.roles.check_control_role(client)
        if mode is not None and mode not in NARROWEST_FIRST:
            raise FrameError(f"narrow has `mode`, one of {', '.join(NARROWEST_FIRST)}")
        more = Ceiling(str(mode)) if mode is not None else Ceiling("", *_rules(said))
        whole = it.restrictions.of(client.number, FLAGS).and_also(more)
        undo = self._change(client, FLAGS, "told_rules" if mode is None else "told_mode", whole)
        # What was told and is not answered yet may still be refused.
        if mode is not None and (
            it.restrictions.mode != it.restrictions.told_mode or it.control_requests.pending(MODE)
        ):
            request = Request(client, mark, MODE, undo=undo)
            self._told(undo, lambda: it.send_mode(request))
        elif mode is None and (
            it.restrictions.rules != it.restrictions.told_rules or it.control_requests.pending(SAID)
        ):
            request = Request(client, mark, SAID, undo=undo)
            self._told(undo, lambda: it.send_rules({}, request))
        else:
            return True
        return False

    def _settings(self, client: Client, settings: object, request: Request) -> None:
        """Of a client's settings what narrows, and the effort; all clients' rules are told beside
        each other.
        """
        it = self._it
        if not isinstance(settings, dict):
            raise FrameError("apply_flag_settings has `settings`, an object")
        permissions = settings.get("permissions")
        given = permissions if isinstance(permissions, dict) else {}
        others = [key for key in settings if settings[key] and key not in SETTINGS]
        others += [
            f"permissions.{key}" for key in given if given[key] and key not in ("deny", "ask")
        ]
        if others or (permissions and not given):
            what = ", ".join(map(printable, others)) or "permissions"
            raise RefusedError(
                "wider", f"a session that lives takes no settings but deny, ask and effort: {what}"
            )
        passed = {key: settings[key] for key in settings if key == "effortLevel"}
        brought = Ceiling("", *_rules(given)) if given else it.restrictions.of(client.number, SAID)
        undo = self._change(client, SAID, "told_rules", brought)
        self._told(undo, lambda: it.send_rules(passed, request._replace(undo=undo)))

    def _allowed(self, mode: object) -> None:
        if not isinstance(mode, str) or not mode:
            raise FrameError("mode has `mode`, the name of a permission mode")
        if mode == BYPASS and not self._it.session.bypass:
            raise RefusedError(
                "bypass", f"{BYPASS} can be chosen only if the session began with it"
            )

    def _take(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.check_control_role(client)
        self._it.set_controller(client)
        return True

    def _release(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.check_control_role(client)
        if self._it.roles.controller is client:
            self._it.set_controller(None)
        return True

    def _end(self, client: Client, said: Said, mark: str) -> bool:
        self._it.roles.check_controller(client)
        self._it.commands.append(EndSession(client.name))
        return False  # the answer is `bye`

    def _request(self, client: Client, said: Said, mark: str) -> bool:
        it, body = self._it, said.get("request")
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
        request = Request(client, mark, body["subtype"], body=True)
        if body["subtype"] == MODE:
            self._choose(body, request, body)
        elif body["subtype"] == SAID:
            self._settings(client, body.get("settings"), request)
        else:
            self._pass_on(client, body, request)
        if body["subtype"] == "interrupt":
            it.resolve_all_prompts(client.name, "interrupt")
        return False

    def _pass_on(self, client: Client, body: Said, request: Request) -> None:
        if body["subtype"] in UNSHARED:
            raise RefusedError(
                "wider",
                f"a session that lives takes no {body['subtype']}: it is not one frontend's own",
            )
        if body["subtype"] != "initialize":
            self._it.send_request(body, request)
            return
        whole, undo = self._it.callbacks.brought(client, body)
        self._told(undo, lambda: self._it.send_request(whole, request._replace(undo=undo)))

    def _reply(self, client: Client, said: Said, mark: str) -> bool:
        it, response = self._it, said.get("response")
        it.roles.check_control_role(client)
        if not isinstance(response, dict):
            raise FrameError("reply has `response`, the body of a control_response")
        ask = it.callbacks.answered(mark, client)
        if ask is not None:
            it.send_response(mark, self._within_rights(client, ask, response))
        return False

    def _within_rights(self, client: Client, ask: Ask, response: Said) -> Said:
        """A hook's answer. What it allows is left out where the client may not, so that the call is
        asked about.

        A hook lifts no ceiling, not even its own client's: another hook may deny what it allows.
        """
        it, answer, about = self._it, response.get("response"), ask.request.get("input")
        body = hook_grant(answer)
        if body is None or not isinstance(answer, dict):
            return response
        try:
            it.roles.check_answer_right(client)
            check_updates(body, bypass=it.session.bypass)
            self._changes_mode(
                client, about.get("tool_name") if isinstance(about, dict) else None, body, None
            )
        except RefusedError:
            return {**response, "response": without_grant(answer)}
        return response

    def _deaf(self, client: Client, said: Said, mark: str) -> bool:
        client.declines_prompts = True
        self._it.deny_unanswerable_prompts()
        return True


def _rules(said: Said) -> list[tuple[str, ...]]:
    """The rules that deny, and those that ask. FrameError for what is no list of rules."""
    found = [said.get(key) or () for key in ("deny", "ask")]
    if not all(
        isinstance(rules, list | tuple) and all(isinstance(rule, str) for rule in rules)
        for rules in found
    ):
        raise FrameError("`deny` and `ask` are lists of rules")
    if sum(map(len, found)) > RULES:
        raise RefusedError("too-many", f"a client brings at most {RULES} rules")
    return [tuple(rules) for rules in found]

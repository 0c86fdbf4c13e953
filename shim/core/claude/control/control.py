"""The frontend's side of a conversation: its lines in, our answers out, both directions (contract
sections 3 and 6).

Sans-IO: `receive` takes a line of stdin and gives back what the session has to do; what is to be
said on stdout is collected for `take`. Every control_request is answered, an unknown one with the
real one's error (C5); a line that cannot be read is skipped with a word on stderr, where the real
one ends (C13).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from shim.core.claude.control.answers import ANSWERS, RefusalError
from shim.core.claude.control.lines import Lines
from shim.core.claude.control.wishes import Chosen, Decided, Forbidden, Interrupt, Wish
from shim.core.claude.facts import SessionState
from shim.core.claude.hooks.callbacks import (
    PROMPT_HOOK,
    PromptRefusal,
    Seen,
    Verdict,
    Verdicts,
    bound,
    described,
    read_prompt_refusal,
    read_verdict,
)
from shim.core.claude.messages import (
    BYTE_ORDER_MARK,
    PRIORITY_NOW,
    UserMessage,
    parse_line,
    parse_message,
)
from shim.core.claude.permissions import (
    DENIED_BY_RULE_TEXT,
    NOT_GRANTED_TEXT,
    PROMPT_TIMEOUT_TEXT,
    QUESTION_TOOL,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
    PermissionRequest,
    build_permission_prompt,
    find_requested_mode,
    parse_decision,
    parse_permission_updates,
)
from shim.core.reading.account import printable
from shim.core.reading.bounded import Bounded
from shim.core.reading.json_text import dump
from shim.core.reading.limits import fit_line
from shim.core.reading.typed import Any

TOO_LARGE = "The call is too large to be asked about ({size} bytes)."
TOO_MANY = "Too many questions are open already; this one was put to nobody."
QUESTIONS = 1000  # that are open at once
MAX_TAKEN_IDS = 10_000  # ids of messages; a client repeats a message soon after it sent it
KIND_CHARACTERS = 60  # of a line's type, in a complaint about it


class Control(Lines):
    """One frontend. `messages` wait for their turn; `complaints` are lines for stderr.

    `mint` gives a fresh uuid, `now` the time as ISO text.
    """

    def __init__(
        self, facts: SessionState, mint: Callable[[], str], now: Callable[[], str]
    ) -> None:
        super().__init__(facts, mint)
        self.messages: deque[UserMessage] = deque()
        self._deaf = False
        self._line_count = 0
        self._now = now
        self._asked: dict[str, PermissionRequest] = {}
        self._hooked: dict[str, Seen] = {}
        self._held: dict[str, PermissionRequest] = {}
        self._verdicts = Verdicts()
        self._ran: dict[str, None] = {}
        # Requests to UserPromptSubmit hooks that have no answer yet, and the first refusal among
        # the answers.
        self._prompt_hooks: set[str] = set()
        self._prompt = ""
        self._prompt_refusal: PromptRefusal | None = None
        # The ids of messages that were accepted: a message with the same id is not answered again.
        self._taken = Bounded[str, None](MAX_TAKEN_IDS)
        # returns the message ids of the resumed session
        self.load_taken: Callable[[], Iterable[str]] | None = None

    # -- what the frontend says --------------------------------------------------------------------

    def receive(self, raw: bytes) -> list[Wish]:
        """One line of stdin, without its LF."""
        if not raw.removeprefix(BYTE_ORDER_MARK).strip():
            return []
        self._line_count += 1
        event = parse_line(raw)
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or (event and not isinstance(kind, str)):
            kind = "unknown" if event is None else printable(str(kind)[:KIND_CHARACTERS])
            self._complain(f"Error parsing streaming input line (type={kind}, {len(raw)} chars)")
        elif kind == "user":
            return self._user(event, len(raw))
        elif kind == "control_request":
            return self._request(event)
        elif kind == "control_response":
            return self._response(event)
        return []

    @property
    def has_read_nothing(self) -> bool:
        """Return whether the frontend has sent lines, but none that could be read."""
        return 0 < self._line_count == self.unread_lines

    def closed(self) -> list[Wish]:
        """The frontend's stdin has ended: every open question and every later one is answered by
        us.
        """
        self._deaf, asking = True, bool(self._asked)
        self._prompt_hooks.clear()
        self.facts.sdk_servers.close()
        wishes = self._give_up(STREAM_CLOSED_TEXT)
        if asking:
            self.state("running")
        return wishes

    @property
    def open_questions(self) -> list[PermissionRequest]:
        """What the frontend was asked and has not answered."""
        return list(self._asked.values())

    def withdraw(self) -> None:
        """The turn ends: the frontend need not answer what is still open. Said in front of the
        result (S16b).
        """
        for identity in list(self._asked):
            self._cancel(identity)

    def _user(self, event: Mapping[str, Any], size: int) -> list[Wish]:
        try:
            message = parse_message(event, self._now())._replace(size_bytes=size)
        except ValueError as error:
            self._complain(f"Error: {error}")
            return []
        if message.uuid is not None and self._is_repeated(message.uuid):
            self._replay(message)
            return []
        if message.priority != PRIORITY_NOW or not self.running:
            self.messages.append(message)
            return []
        self.messages.appendleft(message)
        return [*self._give_up(""), Interrupt()]

    def _is_repeated(self, uuid: str) -> bool:
        """Return whether a message with this id was accepted before, here or in the resumed
        conversation.
        """
        if self.load_taken is not None:
            for known in self.load_taken():
                self._taken[known] = None
            self.load_taken = None
        if uuid in self._taken:
            return True
        self._taken[uuid] = None
        return False

    def _replay(self, message: UserMessage) -> None:
        """Echo a repeated message to a frontend that has asked for echoes."""
        if self.facts.options.echoes_messages:
            self._say(
                {
                    "type": "user",
                    "message": message.raw_message,
                    "session_id": self.facts.options.session_id,
                    "parent_tool_use_id": None,
                    "uuid": message.uuid,
                    "timestamp": message.timestamp,
                    "isReplay": True,
                }
            )

    def _request(self, event: Mapping[str, Any]) -> list[Wish]:
        request, identity = event.get("request"), event.get("request_id")
        if not isinstance(request, dict):
            self._complain("Error: Missing request on control_request")
            return []
        subtype = request.get("subtype")
        if subtype == "interrupt":
            return self._interrupt(identity)
        effort, narrowing, servers = (
            self.facts.effort,
            self._narrowing,
            self.facts.sdk_servers.names,
        )
        answer = ANSWERS.get(subtype) if isinstance(subtype, str) else None
        try:
            if answer is None:
                raise RefusalError(
                    f"Unsupported control request subtype: {subtype}", "unsupported_request"
                )
            body = answer(self, request)
        except RefusalError as refusal:
            self._refuse(identity, refusal)
            return []
        self._answer(identity, body)
        rules: list[Wish] = [] if self._narrowing == narrowing else [Chosen("rules", None)]
        if self.begun and self.facts.sdk_servers.names != servers:  # of a frontend that has joined
            rules.append(Chosen("servers", None))
        if self.facts.effort != effort:
            return [Chosen("effort", self.facts.effort), *rules]
        if subtype == "set_model":
            return [Chosen("model", self.facts.model)]
        if subtype == "set_permission_mode":
            self.system("status", status=None, permissionMode=self.facts.mode)
            return [Chosen("mode", self.facts.mode)]
        if subtype == "rename_session":
            self.system("session_title_changed", title=request.get("title"))
        return rules

    @property
    def _narrowing(self) -> object:
        """The rules that keep a call from running unasked."""
        return None if self.facts.policy is None else self.facts.policy.narrowing

    def _interrupt(self, identity: object) -> list[Wish]:
        asking = bool(self._asked)
        wishes = self._give_up("") if self.running else []
        self._answer(
            identity, {"still_queued": [message.uuid for message in self.messages if message.uuid]}
        )
        if asking:
            self.state("running")
        return [*wishes, Interrupt()] if self.running else []

    def _response(self, event: Mapping[str, Any]) -> list[Wish]:
        response = event.get("response")
        if not isinstance(response, dict):
            return []
        if self.facts.options.echoes_messages:
            self._say(event)
        identity = str(response.get("request_id"))
        if self.facts.sdk_servers.accept_response(identity, response):
            return []
        if identity in self._prompt_hooks:
            self._prompt_hooks.remove(identity)
            refusal = read_prompt_refusal(response.get("response"), self._prompt)
            self._prompt_refusal = self._prompt_refusal or refusal
            return []
        if identity in self._hooked:
            return self._hook_answered(self._hooked.pop(identity), response)
        asked = self._asked.pop(identity, None)
        if asked is None:
            return []
        self._resume()
        decided = Decided(asked, self._judged(asked, response))
        self.facts.apply_permission_updates(parse_permission_updates(response))  # for the next call
        return [decided, *self._choose(response)]

    def _shown(self, permission: PermissionRequest) -> Mapping[str, Any]:
        """The arguments of a call as the hooks left them."""
        changed = self._verdicts.of(permission.call_id).changed
        return permission.tool_input if changed is None else changed

    def _judged(self, asked: PermissionRequest, response: Mapping[str, Any]) -> PermissionDecision:
        """What a person allows runs, but not what a rule denies: one that has come since the
        question, or one about what the call was changed into. The real claude runs that one too."""
        shown = self._shown(asked)
        decision = parse_decision(response, asked._replace(tool_input=shown))
        if not decision.allow:
            return decision
        runs = shown if decision.updated_input is None else decision.updated_input
        ruled = self.facts.evaluate_call(asked.tool, runs)
        if ruled.decided != "deny" or not ruled.ruled:
            return decision._replace(updated_input=None if runs == asked.tool_input else runs)
        return PermissionDecision(
            False,
            message=DENIED_BY_RULE_TEXT.format(tool=asked.tool, why=ruled.why),
            frontend_knows=False,
        )

    def _choose(self, response: Mapping[str, Any]) -> list[Wish]:
        """Change to the mode that an answer asks for, if the session may."""
        mode = find_requested_mode(response)
        if mode is None:
            return []
        try:
            ANSWERS["set_permission_mode"](self, {"mode": mode})
        except RefusalError as refusal:
            self.complaints.append(f"{refusal}\n")
            return []
        self.system("status", status=None, permissionMode=self.facts.mode)
        return [Chosen("mode", self.facts.mode)]

    def _give_up(self, message: str) -> list[Wish]:
        """Refuse every open question. No `message`: on an interrupt, which also cancels them at the
        frontend (C10).
        """
        refused = [*self._asked.values(), *self._held.values()]
        if not message:
            self._lines += map(_cancelled, self._asked)
        self._asked.clear()
        self._held.clear()
        self._hooked.clear()
        return [
            Decided(it, PermissionDecision(False, message=message, ends_turn=not message))
            for it in refused
        ]

    # -- what we ask and tell ----------------------------------------------------------------------

    # seconds that a question may wait for its answer, whatever the settings allow
    patience = float("inf")

    def expired(self, permission: PermissionRequest) -> PermissionDecision | None:
        """The denial of a question that has waited for too long; None if it was answered."""
        identity = next(
            (identity for identity, asked in self._asked.items() if asked is permission), None
        )
        if identity is None:
            return None
        self._cancel(identity)
        return PermissionDecision(False, message=PROMPT_TIMEOUT_TEXT)

    def _cancel(self, identity: str) -> None:
        """The frontend need not answer a question any more."""
        del self._asked[identity]
        self._lines.append(_cancelled(identity))
        self._resume()

    def _resume(self) -> None:
        if not self._asked:
            self.state("running")

    def ask(self, permission: PermissionRequest) -> PermissionDecision | None:
        """Put a question of the vendor's to the frontend; the decision, where the frontend need not
        be asked.
        """
        if permission.refusal:
            return PermissionDecision(False, message=permission.refusal)
        if any(seen.call == permission.call_id for seen in self._hooked.values()):
            self._held[permission.call_id] = permission
            return None
        hook = self._verdicts.of(permission.call_id)
        if hook.allow is False:
            return PermissionDecision(False, message=hook.reason, frontend_knows=False)
        shown = self._shown(permission)
        changed = None if shown == permission.tool_input else shown
        ruled = self.facts.evaluate_call(permission.tool, shown, hook)
        if ruled.decided == "deny":
            return PermissionDecision(
                False,
                message=DENIED_BY_RULE_TEXT.format(tool=permission.tool, why=ruled.why),
                frontend_knows=False,
            )
        if ruled.decided == "allow" and (permission.tool != QUESTION_TOOL or "answers" in shown):
            return PermissionDecision(
                True, updated_input=changed, frontend_knows=hook.allow is None
            )
        if self.facts.answers_prompts and (self._deaf or len(self._asked) >= QUESTIONS):
            return PermissionDecision(False, message=STREAM_CLOSED_TEXT if self._deaf else TOO_MANY)
        if not self.facts.answers_prompts or self.facts.mode == "dontAsk":
            reason = hook.reason if hook.asks else NOT_GRANTED_TEXT.format(tool=permission.tool)
            return PermissionDecision(False, message=reason, frontend_knows=False)
        identity, suggestions = (
            self._mint(),
            self.facts.suggest_permission_updates(permission.tool, shown),
        )
        question = build_permission_prompt(permission, shown, suggestions, self.facts.options.cwd)
        line = (
            dump({"type": "control_request", "request_id": identity, "request": question}) + b"\n"
        )
        if len(line) > self.facts.options.max_line_bytes:
            return PermissionDecision(False, message=TOO_LARGE.format(size=len(line)))
        self._asked[identity] = permission
        self.state("requires_action")
        self._lines.append(line)
        return None

    def observe(self, seen: Seen, *, prompt: str = "", last: str = "") -> None:
        """Tell the frontend's hooks what happened (C11)."""
        if self._deaf or not self.facts.hooks:
            return
        facts = self.facts
        known = {
            "session_id": facts.options.session_id,
            "cwd": facts.options.cwd,
            "mode": facts.mode,
            "transcript": facts.transcript_path,
        }
        for callback in self.facts.hooks.matching(seen):
            request = {
                "subtype": "hook_callback",
                "callback_id": callback,
                "input": described(seen, prompt=prompt, last=last, **known),
                "tool_use_id": seen.call or self._mint(),
            }
            identity = self._mint()
            line = {"type": "control_request", "request_id": identity, "request": request}
            if seen.event == "PreToolUse":
                self._ask_hook(seen, line)
                continue
            if seen.event == PROMPT_HOOK:
                self._prompt_hooks.add(identity)
            self._say(line)

    def _ask_hook(self, seen: Seen, line: dict[str, Any]) -> None:
        """Ask a hook about a call. The input is not cut if the vendor would run what the hook hands
        back.
        """
        size = len(dump(line)) + 1
        if size > self.facts.options.max_line_bytes:
            if self.facts.asks_permissions:
                self._verdicts.add(seen.call, Verdict(False, TOO_LARGE.format(size=size)))
                return
            line = fit_line(line, self.facts.options.max_line_bytes)
            seen = seen._replace(arguments=line["request"]["input"]["tool_input"])
        self._hooked[line["request_id"]] = seen
        bound(self._hooked)
        self._say(line)

    @property
    def is_asking_prompt_hooks(self) -> bool:
        """Return whether a UserPromptSubmit hook has not answered yet."""
        return bool(self._prompt_hooks)

    def take_prompt_refusal(self) -> PromptRefusal | None:
        """Remove and return the first refusal of the message by a hook, or None. Later answers are
        ignored.
        """
        self._prompt_hooks.clear()
        refusal = self._prompt_refusal
        self._prompt_refusal = None
        return refusal

    @property
    def asking(self) -> bool:
        return bool(self._asked or self._held)

    def holds(self, permission: PermissionRequest) -> bool:
        """Whether a question waits for a hook about its call."""
        return permission.call_id in self._held

    def overdue(self, permission: PermissionRequest) -> PermissionDecision | None:
        """The hooks about a call have not answered in time: its question is put without them."""
        self._hooked = {
            identity: seen
            for identity, seen in self._hooked.items()
            if seen.call != permission.call_id
        }
        held = self._held.pop(permission.call_id, None)
        return None if held is None else self.ask(held)

    def _hook_answered(self, seen: Seen, response: Mapping[str, Any]) -> list[Wish]:
        verdict = read_verdict(response.get("response"))
        if not self.facts.serving_vendor.asks_permissions and verdict.changed not in (
            None,
            seen.arguments,
        ):
            verdict = Verdict(
                False, f"a hook changed the input of {seen.tool}, which runs as it was"
            )
        self._verdicts.add(seen.call, verdict)
        if any(other.call == seen.call for other in self._hooked.values()):
            return []
        held = self._held.pop(seen.call, None)
        if held is not None:
            decision = self.ask(held)
            return [] if decision is None else [Decided(held, decision)]
        denied = self._verdicts.of(seen.call)
        unasked = not self.facts.asks_permissions or seen.call in self._ran
        forbids = denied.allow is False or denied.asks
        return [Forbidden(seen.call, denied.reason)] if forbids and unasked else []

    def hold(self, permission: PermissionRequest) -> None:
        """A question waits for hooks of the settings."""
        self._held[permission.call_id] = permission

    def judged(
        self, permission: PermissionRequest, verdict: Verdict
    ) -> tuple[bool, PermissionDecision | None]:
        """The hooks of the settings have judged a call.

        Whether its question still stands, and the decision, where the frontend need not be asked.
        """
        if self._held.pop(permission.call_id, None) is None:
            return False, None
        self._verdicts.add(permission.call_id, verdict)
        return True, self.ask(permission)

    def ran(self, call: str) -> Forbidden | None:
        """A call has run; what is to be done where a hook had denied it and the vendor ran it all
        the same.
        """
        self._ran[call] = None
        bound(self._ran)
        verdict = self._verdicts.of(call)
        return Forbidden(call, verdict.reason) if verdict.allow is False else None

    def begin(self, prompt: str) -> None:
        """A message's turn begins."""
        self.running = self.begun = True
        self.facts.sdk_servers.initialize_servers()
        self.state("running")
        self._prompt = prompt
        self._prompt_refusal = None
        self.observe(Seen(PROMPT_HOOK), prompt=prompt)

    def end(self) -> None:
        """The turn is over: its result was said (S18: never running without idle)."""
        self.running = False
        for memory in (self._asked, self._hooked, self._held, self._verdicts, self._ran):
            memory.clear()
        self.state("idle")


def _cancelled(identity: str) -> bytes:
    return dump({"type": "control_cancel_request", "request_id": identity}) + b"\n"

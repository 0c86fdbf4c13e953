"""What an agent of the protocol says: updates of its session, questions, and the answers to what it
was asked.

An answer to `session/prompt` ends the turn. What is said while a session is loaded was said in an
earlier turn.
"""

from collections.abc import Callable, Mapping
from re import Pattern
from typing import Any, ClassVar

from shim.core.adapter.tools import Tool, Tools
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.reading.json_text import dump_json
from shim.core.turn.machine import CLOSED, TEXT
from shim.core.turn.outcome import ChildExit
from shim.core.turn.turn import Turn
from shim.profiles.acp.bill import Bill
from shim.profiles.acp.call_list import CallList
from shim.profiles.acp.calls import (
    Call,
    Form,
    exit_code,
    is_complete,
    join_texts,
    list_blocks,
    list_raw_blocks,
    raw_output,
    shown,
    todos,
)
from shim.profiles.acp.link import CANCELLED, INVALID_PARAMS, MAY_END, PROMPT, SESSION, TAKEN, Link
from shim.profiles.acp.servers import tool_of
from shim.profiles.acp.upserts import CONTENTS, Upserts, patched
from shim.profiles.rpc.form import questions
from shim.profiles.rpc.peer import METHOD_NOT_FOUND, Heard, in_words, table

# kinds of a call's content that are written; a diff is in the arguments of its call
ITEMS = ("content", "diff")
FAILURES = ("failed", "cancelled")  # states of a call
LIMITS = {"max_turn_requests": "error_max_turns"}
REASONS = {"max_tokens": "max_tokens", "refusal": "refusal"}
LOGIN = -32000  # the protocol's code for an agent that is not logged in
FAILURE_CHARACTERS = 20_000  # of the agent's text about a failed turn
# Updates that belong to the answer: after one of these the turn continues.
CONVERSATION = (
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
)
# in front of what gemini says of a new mode, where its model's words stand
NOTICE = "[MODE_UPDATE]"
UNTITLED = "****\n"  # gemini's title of a thought that has none


class AcpTranslator(Translator):
    """`link` is who tells the agent; where a recording is read there is none, and it is only
    listened to.
    """

    untyped = True
    tools: ClassVar[Tools] = {}
    form: ClassVar[Form] = Form()
    server_tool: ClassVar[str] = ""  # how it names a tool of a server of MCP
    counts_session: ClassVar[bool] = False  # whether its usage is that of the session so far
    ends_at_denial: ClassVar[bool] = False  # its model hears nothing more when a call was denied
    trailer: ClassVar[Pattern[str] | None] = None  # what it adds to the end of what a call returned
    # what it says itself about a call, where its model's words stand
    notices: ClassVar[Pattern[str] | None] = None

    # the agent's own text when it calls its model again
    retries: ClassVar[Pattern[str] | None] = None
    # the beginning of the agent's own text when a turn failed
    failures: ClassVar[Pattern[str] | None] = None

    def __init__(self, turn: Turn, *, partial: bool = False, link: Link | None = None) -> None:
        super().__init__(turn, partial=partial)
        self.link = link or Link()
        self._calls = CallList(self.form)
        self._bill = Bill(of_session=self.counts_session)
        # of a turn that is over if the agent is silent now
        self._end: Mapping[str, Any] | None = None
        self._plan: object = None
        self._plans = 0
        self._upserts = Upserts()
        self._server_names: list[str] | None = None
        self._failure = ""  # a text that becomes the reason of a failure if the turn ends now
        self._retry_count = 0
        self._updates: dict[object, Callable[[Event], None]] = {
            "agent_message_chunk": lambda update: self._chunk(update, self.turn.add_text),
            "agent_thought_chunk": lambda update: self._chunk(update, self.turn.add_thinking),
            "tool_call": self._call,
            "tool_call_update": self._call,
            "plan": self._planned,
            "user_message_chunk": self._inserted,
            "usage_update": lambda update: self._bill.hear(update, resumed=self.link.resumed),
            **dict.fromkeys(
                ("available_commands_update", "current_mode_update", "config_option_update"),
                self.ignore_event,
            ),
            "session_info_update": self.ignore_event,
            # What only version 2 has.
            "agent_message": lambda update: self._whole(update, self.turn.add_text),
            "agent_thought": lambda update: self._whole(update, self.turn.add_thinking),
            "user_message": self._inserted,
            "compaction_update": self._compacted,
            **dict.fromkeys(("compaction_summary_chunk", "notice"), self.ignore_event),
            "tool_call_content_chunk": self._content,
            "plan_update": lambda update: self._planned(update["plan"]),
            "state_update": self._reached,
            "terminal_update": lambda update: self._upserts.terminal(update),
            "terminal_output_chunk": lambda update: self._upserts.printed(update),
        }

    def start_turn(self, turn: Turn) -> None:
        super().start_turn(turn)
        self._calls.clear()
        self._upserts.clear()
        self._server_names = None
        self._failure = ""
        self._retry_count = 0
        self.link.work.end()
        self._end = None
        self._bill.cost, self._plan = 0.0, None
        if self.link.session:
            turn.start_session(session_id=self.link.session, mcp_servers=self._left_out())

    def create_for_retry(self, turn: Turn) -> Translator:
        return type(self)(turn, partial=self.partial, link=self.link)

    def take_withdrawn_requests(self) -> list[str]:
        questions, self.link.taken_back = self.link.taken_back, []
        return questions

    @classmethod
    def accepts_between_turns(cls, line: bytes) -> bool:
        """Between two turns its questions are read, and its answers; no update is, but for those
        among questions.
        """
        return b'"sessionUpdate"' not in line or line.startswith(b"[")

    def feed(self, event: Event | list[Event]) -> None:
        try:
            if isinstance(event, list):
                self._batch(event)
            else:
                self._message(event)
        finally:
            self._flush()

    def _flush(self) -> None:
        self.outbox += self.link.outbox
        self.link.outbox.clear()

    def _message(self, event: Event) -> None:
        method = event.get("method")
        for call, result, failed in self.link.forms.answered:
            self.turn.add_tool_result(call, result, failed)
        self.link.forms.answered.clear()
        if not self.link.greeted and method in ("session/update", "session/request_permission"):
            self.start_next_turn()
        if method is None and "id" in event:
            self._answered(event)
        elif "id" in event:
            self._asked(event)
        elif method == "session/update":
            self._update(event["params"])
        elif method == "$/cancel_request":
            self.link.taken_back.append(dump_json(event["params"]["requestId"]).decode())
        else:
            self.turn.record_unknown_event(method or "untyped", event)

    def _batch(self, events: list[Event]) -> None:
        """Several messages in one line (JSON-RPC 2.0); one that cannot be read keeps no other from
        being read.
        """
        for event in events:
            try:
                self._message(event)
            except Exception as error:
                self.account.record("malformed_event", repr(error))

    def feed_repaired(self, event: Event) -> None:
        """Out of a broken line no question is believed, and no update of another session (threats:
        forged lines).
        """
        params = event.get("params")
        ours = isinstance(params, dict) and params.get("sessionId") == self.link.session
        if self.link.greeted and "method" in event and ("id" in event or not ours):
            self.account.record("doubtful_event")
            if "id" in event:  # if it is a question, it must not wait for ever
                self.link.reply(event["id"], result=CANCELLED)
                self._flush()
        else:
            self.feed(event)

    @property
    def account(self) -> Any:
        return self.turn.diagnostics

    # -- updates -----------------------------------------------------------------------------------

    def _update(self, params: Mapping[str, Any]) -> None:
        update = params["update"]
        kind = update.get("sessionUpdate")
        handler = self._updates.get(kind)
        if self.link.loading:
            self.link.replayed = True
            return
        if handler is None:
            self.turn.record_unknown_event(f"session/update/{kind}", update)
        elif params.get("sessionId") in (self.link.session, "") or not self.link.session:
            if self._failure and kind in CONVERSATION:
                self._release_failure()
            handler(update)

    def _chunk(self, update: Event, say: Callable[..., None]) -> None:
        """A fragment of what the model says. What the agent says of a new mode or model is not the
        model's.
        """
        content = update["content"]
        if self.link.setting and str(content.get("text")).startswith(NOTICE):
            return
        if (text := shown(content)) is None:
            self.turn.record_unknown_event(f"content/{content.get('type')}", content)
            return
        if self.notices is not None and self.notices.fullmatch(text):
            return
        if self.retries is not None and self.retries.fullmatch(text):
            self._retry_count += 1
            self.turn.write_retry(self._retry_count, self._retry_count, 0, text)
            return
        if self.failures is not None and self.turn.state is not TEXT and self.failures.match(text):
            self._failure = text
            return
        self._end_refused()
        message = update.get("messageId")
        say(text.removeprefix(UNTITLED), message if self._by_id else None)
        if self._by_id:
            self._upserts.piece(str(message), text)

    def _release_failure(self) -> None:
        """Write a text that looked like the reason of a failure: the turn continues, so the text is
        the model's.
        """
        text = self._failure
        self._failure = ""
        self._end_refused()
        self.turn.add_text(text)

    def _whole(self, update: Event, say: Callable[..., None]) -> None:
        """A message as a whole: what is new of it is said."""
        if "content" not in update:
            return
        self._end_refused()
        message, given = str(update["messageId"]), update["content"] or ()
        new = self._upserts.whole(
            message, "".join(text for one in given if (text := shown(one)) is not None)
        )
        if new is None:
            self.account.record("contradicted_block", message)
        elif new:
            say(new, message)

    def _end_refused(self) -> None:
        """The agent goes on behind calls that were refused: some agents never say that those are
        over.
        """
        for identity in self.link.refused:
            if identity in self.turn.open_calls:
                self.turn.add_tool_result(identity, "", True)
                self._calls.end_by_id(identity)
        self.link.refused.clear()

    @property
    def _by_id(self) -> bool:
        """Whether what is said is patched by its id: version 2."""
        return not self.link.version.answers

    def _reached(self, update: Event) -> None:
        self._step(self.link.state(update))

    def _step(self, heard: Heard) -> None:
        """A step of a turn that is taken: it ends, or it ends unless the agent goes on."""
        paused, self._end = self._end is not None, heard.result if heard.step == MAY_END else None
        if heard.step == PROMPT:
            self._ended(heard.result)
        elif self._end is not None:
            self.turn.set_paused()
        elif paused:
            self.turn.reopen()

    def feed_eof(self, child_exit: ChildExit | None, stderr: str) -> None:
        """The agent is silent, or has gone: a turn that might have been over is over."""
        if self._end is not None:
            self._ended(self._end)

    def _inserted(self, update: Event) -> None:
        self.link.inserted()

    def _compacted(self, update: Event) -> None:
        if update.get("status") == "completed":
            self.turn.write_compaction("auto", self._bill.used)

    def _call(self, update: Event) -> None:
        status = update.get("status")
        over = status in ("completed", *FAILURES)
        if update["sessionUpdate"] == "tool_call":
            call = self._calls.begin(update, self._create_id)
        elif self._calls.has_ended(update):
            if over:
                self.account.record("second_tool_result", str(update.get("toolCallId")))
            return
        else:
            call = self._calls.find(update, self._create_id)
        before = call.input
        if self._by_id:
            patched(call, update)
        call.hear(update)
        if call.said and call.input is not before and call.input != before:
            self.turn.update_call(call.identity, *self._words(call))
        if call.told or over or (status == "in_progress" and not self.form.content):
            self._say(call, is_over=over)
        if over:
            failed = (
                status in FAILURES or exit_code(call.raw_output) != 0 or self._upserts.failed(call)
            )
            self.turn.add_tool_result(call.identity, self._returned(call), failed)
            self._calls.end(call)
            self.link.over(call.identity)

    def _create_id(self, agent_id: str) -> str:
        """Return a new id for a call whose own id is taken or empty."""
        return (
            self.turn.conversation.create_id(agent_id)
            if agent_id
            else self.turn.writer.create_uuid()
        )

    def _content(self, update: Event) -> None:
        """One more piece of a call's content."""
        call = self._calls.find(update, self._create_id)
        if len(call.output) < CONTENTS:
            call.output = call.content = [*call.output, update["content"]]

    def _say(self, call: Call, *, is_over: bool = False) -> None:
        if call.said:
            return
        name, arguments = self._words(call)
        if not is_over and self._waits_for_input(call, name):
            self.turn.defer_call(call.identity, name)
            return
        call.said = True
        if not self.turn.end_deferral(call.identity):
            self.turn.add_tool_call(call.identity, name, arguments)

    def _waits_for_input(self, call: Call, name: str) -> bool:
        """Return whether a call waits for its input, which arrives in the frontend's process."""
        if call.told or name not in self.turn.config.session.list_servers()[1]:
            return False
        judge = self.turn.config.evaluator
        return judge is None or not (judge.is_violation(name, {}) or judge.is_hidden(name))

    def _words(self, call: Call) -> tuple[str, dict[str, Any]]:
        """The tool and its arguments as Claude has them; one of a server that was handed over has
        Claude's name.
        """
        name = "" if call.own in self.tools else self._server_tool(call.own)
        return call.in_claudes_words({call.own: Tool(name)} if name else self.tools)

    def _server_tool(self, own: str) -> str:
        """Return Claude's name of a tool of an MCP server, or "" for another tool."""
        if not self.server_tool:
            return ""
        if self._server_names is None:
            self._server_names = [*self.link.servers, *self.turn.config.session.list_server_names()]
        return tool_of(self.server_tool, self._server_names, own, self.turn.config.evaluator)

    def _returned(self, call: Call) -> object:
        """Return the content of a call, or its raw output if there is no content.

        Content and raw output may come from different updates. The raw output is preferred if it
        continues the content.
        """
        blocks = join_texts(self._blocks(call), self.trailer)
        raw = raw_output(call.raw_output)
        if not blocks:
            return raw
        if len(blocks) > 1 or blocks[0]["type"] != "text":
            return blocks
        text = str(blocks[0]["text"])
        return (
            raw if len(raw) > len(text) and raw.startswith(text) and self.trailer is None else text
        )

    def _blocks(self, call: Call) -> list[dict[str, Any]]:
        """Return the content blocks of a call that can be written, and count the others as unknown."""
        if self._by_id:
            blocks = self._upserts.list_blocks(call)
        else:
            self._count_unknown_items(call)
            blocks = list_blocks(call.output)
        for block in blocks:
            if not is_complete(block):
                self.turn.record_unknown_event(f"content/{block['type']}", block)
        shown = [block for block in blocks if is_complete(block)]
        if any(block["type"] != "text" for block in shown):
            return shown
        return list_raw_blocks(call.raw_output) or shown

    def _count_unknown_items(self, call: Call) -> None:
        for item in call.output:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind not in ITEMS:
                self.turn.record_unknown_event(f"tool_content/{kind}", item)

    def _planned(self, update: Event) -> None:
        """Its plan is a list of todos, said again whenever it has changed."""
        entries = update["entries"]
        if entries == self._plan:
            return
        self._plan, self._plans = entries, self._plans + 1
        identity = f"plan_{self.turn.writer.create_uuid()[-6:]}_{self._plans}"
        self.turn.add_tool_call(identity, "TodoWrite", {"todos": todos(entries)})
        self.turn.add_tool_result(identity, "The plan was noted.")

    # -- what it asks ------------------------------------------------------------------------------

    def _asked(self, event: Event) -> None:
        identity, params = event["id"], event.get("params")
        method = event["method"]
        if self._failure:
            self._release_failure()
        if method == "elicitation/create" and self.link.asks and isinstance(params, dict):
            self._form(identity, params)
        elif method == "session/request_permission" and isinstance(params, dict):
            try:
                self._question(identity, params)
            except Exception:  # a question that nobody can read must not wait for ever
                self.link.reply(identity, result=CANCELLED)
                raise
        else:
            self.link.reply(
                identity, error={"code": METHOD_NOT_FOUND, "message": f"{method} is not offered"}
            )

    def _ours(self, params: Event) -> bool:
        return bool(params.get("sessionId", self.link.session) == self.link.session)

    def _form(self, identity: object, params: Event) -> None:
        """The agent asks the person: as a call of Claude's tool for that."""
        asked = questions(params)
        if asked is None or not self._ours(params):
            self.link.reply(
                identity,
                error={"code": INVALID_PARAMS, "message": "only a form of this session is asked"},
            )
            return
        call = f"ask_{self.turn.writer.create_uuid()[-12:]}"
        request = self.link.form(identity, call, params)
        if request is not None:
            self.turn.request_permission(
                request, call, QUESTION_TOOL, asked, ("elicitation/create", params)
            )

    def _question(self, identity: object, params: Event) -> None:
        subject = self.link.version.subject(params, identity)
        if subject is None or not self._ours(params):
            self.turn.record_unknown_event("session/request_permission", params)
            self.link.reply(identity, result=CANCELLED)
            return
        call = self._calls.find_for_permission(
            subject.call, self._create_id, self.link.is_undecided
        )
        # the input may be that of another call
        if call is None or (self.form.content and call.begun > 1):
            self.link.reply(identity, result=CANCELLED)
            return
        judged = (Call(call.identity, self.form) if subject.whole else call).asked(subject.call)
        words = self._words(judged)
        if words[0] == QUESTION_TOOL:  # its options are the answers: to allow it would choose one
            self.link.reply(identity, result=CANCELLED)
            return
        request = self.link.question(
            identity, call.identity, params.get("options"), dump_json(words).decode()
        )
        if request is not None:
            is_deferred = self._waits_for_input(judged, words[0])
            call.said = not is_deferred
            if call.asked_input is None:
                call.asked_input = judged.input
            own = judged.own, judged.input
            self.turn.request_permission(
                request, call.identity, *words, own, is_unique=True, is_deferred=is_deferred
            )

    # -- answers -----------------------------------------------------------------------------------

    def _answered(self, event: Event) -> None:
        heard = self.link.hear(event)
        if heard is None:
            self.turn.record_unknown_event("answer", event)
        elif heard.error is not None:
            self._failed(heard)
        elif heard.step == SESSION:
            link = self.link
            self.turn.start_session(
                session_id=link.session, model=link.model, mcp_servers=self._left_out()
            )
        elif heard.step in (PROMPT, TAKEN, MAY_END):
            self._step(heard)

    def _left_out(self) -> list[dict[str, str]] | None:
        """The servers of MCP that the agent cannot reach."""
        return [{"name": name, "status": "failed"} for name in self.link.left_out] or None

    def _ended(self, result: Mapping[str, Any]) -> None:
        self.link.end()
        turn, reason = self.turn, result.get("stopReason")
        if turn.state is CLOSED:  # ended by us before the agent heard of it
            return
        usage = self._bill.usage(result)
        if self._failure and not (usage and usage["output_tokens"]):
            text = self._failure[:FAILURE_CHARACTERS]
            self._failure = ""
            self._broke({"message": text.partition(": ")[2]})
            return
        if self._failure:
            self._release_failure()
        turn.end_message(usage, REASONS.get(str(reason)), self._bill.cost)
        if self.ends_at_denial and self.link.reasons and self.turn.state is not CLOSED:
            self._bill.cost = 0.0
            self.outbox.append(self.link.explain())
            return
        if reason == "cancelled":
            turn.record_interrupt()
        elif reason == "error":
            self._broke(table(result.get("error")))
            return
        elif reason in LIMITS:
            turn.record_failure(
                "the limit of requests of a turn was reached", kind="limit", subtype=LIMITS[reason]
            )
        else:
            turn.record_end()
        turn.finalize()

    def _failed(self, heard: Heard) -> None:
        self.link.end()
        if self.turn.state is not CLOSED:
            self._broke(heard.error or {})

    def _broke(self, error: Mapping[str, Any]) -> None:
        code, text = error.get("code"), in_words(error)
        if code == LOGIN:
            ways = (
                f" (its ways to log in: {', '.join(self.link.logins)})" if self.link.logins else ""
            )
            self.turn.record_failure(text + ways, api=True, kind="auth")
        else:
            status = code if isinstance(code, int) and 400 <= code < 600 else None
            self.turn.record_failure(text, status=status, api=True if status else None)
        self.turn.finalize()

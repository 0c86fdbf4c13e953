"""Random agents for the fuzzer of the state machines. Each agent writes one protocol."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from shim.adapters import get_adapter
from shim.core.adapter.adapter import Adapter
from shim.core.claude.permissions import PermissionRequest

Line = dict[str, Any]
JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "\ud800",
    "a" * 5000,
    [],
    [1],
    {},
    {"type": "text"},
    2**70,
)
COMMANDS = ("touch one", "touch two", "rm -rf /", "ls")
OPTIONS = (
    ("ever", "allow_always"),
    ("yes", "allow_once"),
    ("no", "reject_once"),
    ("never", "reject_always"),
)
TEXTS = ("one", "two ", "", "\n", "caf\u00e9")


class Agent(Protocol):
    """The agent's side of a conversation. A `hostile` agent also sends what its protocol does not
    have.
    """

    vendor_name: str
    hostile: bool

    def build_adapter(self) -> Adapter: ...

    def create_lines(self) -> bytes:
        """Return the agent's next line or lines."""

    def receive_line(self, line: Line) -> object:
        """Handle a line of the shim. Return what the line allowed, or None if it allowed
        nothing.
        """

    def is_valid_line(self, line: Line) -> bool:
        """Return whether a line of the shim belongs to the agent's protocol."""

    def matches_grant(self, allowed: Any, granted: PermissionRequest) -> bool:
        """Return whether the frontend granted what was allowed."""

    def list_open_requests(self) -> list[str]:
        """Return the questions that have no answer yet."""

    def list_state_holders(self, child_stream: Any, child_input: Any) -> tuple[object, ...]:
        """Return the objects that hold the machine's collections."""


class Player:
    """The common part of all agents: pending answers and questions, and randomly broken lines."""

    vendor_name = ""
    batches = False  # whether one line may contain several messages
    constant: Mapping[str, Any] = MappingProxyType({})  # the keys of every line

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.hostile = chance.random() < 0.6
        self._pending: list[Line] = []  # answers to the shim's requests, in any order
        # The numbers of requests and of answers, by request id.
        self._request_counts: Counter[str] = Counter()
        self._answer_counts: Counter[str] = Counter()
        self._open: dict[str, Line] = {}  # the first unanswered request of each id
        self._number = 100
        self._torn = False  # whether a line was cut, which may make the next line unreadable too
        self._unsure = False  # whether a question was in a line that can be read in two ways

    def build_adapter(self) -> Adapter:
        adapter = get_adapter(self.vendor_name)
        assert adapter.cli.has_two_way
        return adapter.build_two_way()

    # -- lines received ----------------------------------------------------------------------------

    def receive_line(self, line: Line) -> object:
        method, request_id = line.get("method"), line.get("id")
        if method is None:
            return self._match_answer(line)
        if "id" in line:
            self._pending.append({"id": request_id, **self._build_response(str(method))})
        return None

    def _match_answer(self, line: Line) -> object:
        """Check an answer to one of the agent's requests.

        The request must exist, and it must not have more answers than requests.
        """
        key = json.dumps(line.get("id"), sort_keys=True)
        self._answer_counts[key] += 1
        request = self._open.pop(key, None)
        if self._answer_counts[key] > self._request_counts[key] or request is None:
            assert self._unsure or self._answer_counts[key] <= self._request_counts[key], (
                f"an answer to nothing: {line}"
            )
            return None
        # With several requests of one id, the answer may be for another of them.
        doubtful = self._unsure and self._request_counts[key] > 1
        return None if doubtful else self._find_allowed_call(request, line)

    def list_open_requests(self) -> list[str]:
        return (
            []
            if self._unsure or self._torn
            else [key for key in self._request_counts if not self._answer_counts[key]]
        )

    # -- lines sent --------------------------------------------------------------------------------

    def create_lines(self) -> bytes:
        if self._pending and self._chance.random() < 0.3:
            at = self._chance.randrange(len(self._pending)) if self.hostile else 0
            message = self._pending.pop(at)
        else:
            message = (
                self._build_question() if self._chance.random() < 0.2 else self._build_update()
            )
        return self._encode_message(message)

    def _encode_message(self, message: Line) -> bytes:
        message = {**self.constant, **message}
        raw = json.dumps(message).encode()
        if self.hostile and self._chance.random() < 0.3:
            raw = self._break_message(message, raw)
        for line in raw.split(b"\n"):
            self._record_questions(line, message)
        return raw + b"\n"

    def _record_questions(self, raw: bytes, original: Line) -> None:
        """Record the questions of a line as a reader must see them. The questions of a cut line are
        unknown.
        """
        try:
            value = json.loads(raw)
        except ValueError:
            self._unsure, self._torn = self._unsure or "id" in original, True
            return
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, dict) and self._needs_answer(message):
                number = message["id"]
                # ids that cannot be written again
                self._unsure = self._unsure or number in ("\ud800", 2**70)
                key = json.dumps(message["id"], sort_keys=True)
                self._request_counts[key] += 1
                self._open.setdefault(key, message)

    def _break_message(self, message: Line, raw: bytes) -> bytes:
        """Return the same message in a form that no agent should send."""
        choose = self._chance.choice
        kind = self._chance.randrange(6)
        if kind == 0:
            return json.dumps(self._change_value(message)).encode()
        if kind == 1 and self.batches:
            return json.dumps(
                [message, self._change_value(self._build_update()), choose(JUNK)]
            ).encode()
        if kind == 2:
            return raw[: self._chance.randrange(len(raw))]
        if kind == 3:
            return b"log: " + raw + choose((b"", b" tail"))
        if kind == 4:
            at = self._chance.randrange(len(raw))
            return (
                raw[:at] + bytes([self._chance.randrange(256)]).replace(b"\n", b" ") + raw[at + 1 :]
            )
        return raw + b"\n" + raw

    def _change_value(self, value: Any, depth: int = 0) -> Any:
        """Return a value with one part changed, removed or duplicated."""
        if self._chance.random() < 0.25 * depth or not isinstance(value, dict | list) or not value:
            return self._chance.choice(JUNK)
        if isinstance(value, list):
            at = self._chance.randrange(len(value))
            return [
                *value[:at],
                self._change_value(value[at], depth + 1),
                *value[at + self._chance.randrange(2) :],
            ]
        key = self._chance.choice(list(value))
        if self._chance.random() < 0.2:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: self._change_value(value[key], depth + 1)}

    def _pick_call_id(self) -> str:
        return self._chance.choice(("c1", "c2", "", f"c{self._number}"))

    # -- the protocol ------------------------------------------------------------------------------

    def _needs_answer(self, message: Line) -> bool:
        """Return whether a message of the agent needs an answer."""
        return message.get("method") is not None and "id" in message

    def is_valid_line(self, line: Line) -> bool:
        return sum(key in line for key in ("method", "result", "error")) == 1

    def _build_response(self, method: str) -> Line:
        """Build the answer to a request of the shim."""
        raise NotImplementedError

    def _find_allowed_call(self, request: Line, answer: Line) -> object:
        """Return the call that an answer allows, or None if it allows none."""
        raise NotImplementedError

    def _build_question(self) -> Line:
        raise NotImplementedError

    def _build_update(self) -> Line:
        raise NotImplementedError

    def matches_grant(self, allowed: Any, granted: PermissionRequest) -> bool:
        """Return whether the frontend granted what was allowed: the same command, if there is
        one.
        """
        return allowed is None or granted.tool_input.get("command") == allowed

    def list_state_holders(self, child_stream: Any, child_input: Any) -> tuple[object, ...]:
        return child_input, child_stream._dispatcher.translator

    def _create_request_id(self) -> object:
        """Return an id for the next question. A hostile agent uses some ids twice."""
        self._number += 1
        if self.hostile and self._chance.random() < 0.3:
            return self._chance.choice((101, "q", None, 1, 1.5))
        return self._number


class AcpAgent(Player):
    """An agent of the Agent Client Protocol, version 1 or 2."""

    vendor_name = "opencode"
    batches = True
    constant: Mapping[str, Any] = MappingProxyType({"jsonrpc": "2.0"})

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self._second = chance.random() < 0.4

    def list_state_holders(self, child_stream: Any, child_input: Any) -> tuple[object, ...]:
        translator = child_stream._dispatcher.translator
        return child_input, translator, translator._upserts

    def _build_response(self, method: str) -> Line:
        if self._chance.random() < 0.03:
            return {"error": {"code": self._chance.choice((-32000, -32603, 429)), "message": "no"}}
        if method == "initialize":
            return {
                "result": {
                    "protocolVersion": 2 if self._second else 1,
                    "capabilities": {"session": {}},
                }
            }
        if method == "session/new":
            modes = {"currentModeId": "build", "availableModes": []}
            return {"result": {"sessionId": "s1", "modes": modes}}
        if method == "session/prompt":
            reason = self._chance.choice(
                ("end_turn", "cancelled", "max_tokens", "refusal", "max_turn_requests")
            )
            return {"result": {} if self._second else {"stopReason": reason}}
        return {"result": {}}

    def _find_allowed_call(self, request: Line, answer: Line) -> object:
        outcome = (answer.get("result") or {}).get("outcome") or {}
        params = request.get("params") if isinstance(request.get("params"), dict) else {}
        if outcome.get("outcome") != "selected":
            return None
        kinds = [
            option.get("kind")
            for option in params.get("options") or ()
            if _matches_option(option, outcome["optionId"])
        ]
        assert kinds, f"an option that was not offered: {answer}"
        assert "allow_always" not in kinds, f"more was allowed than the call: {answer}"
        return self._extract_call(params) if "allow_once" in kinds else None

    @staticmethod
    def _extract_call(params: Line) -> Line:
        subject = params.get("subject") or {}
        if subject.get("type") == "command":
            return {"command": subject["command"]}
        call: Line = params.get("toolCall") or subject.get("toolCall") or {}
        return call

    def matches_grant(self, allowed: Any, granted: PermissionRequest) -> bool:
        raw_input = allowed.get("rawInput") if isinstance(allowed.get("rawInput"), dict) else {}
        command = raw_input.get("command", allowed.get("command"))
        return command is None or granted.tool_input.get("command") == command

    def _build_question(self) -> Line:
        choose, request_id = self._chance.choice, self._create_request_id()
        if self._chance.random() < 0.1:
            params: Line = {"sessionId": "s1", "path": "/etc/passwd"}
            return {
                "id": request_id,
                "method": choose(("fs/read_text_file", "terminal/create", "_own/ask")),
                "params": params,
            }
        if self._chance.random() < 0.1:
            fields = {
                "colour": {"type": "string", "enum": ["red", "blue"]},
                "loud": {"type": "boolean"},
            }
            schema = {"type": "object", "properties": fields, "required": choose(([], ["colour"]))}
            params = {
                "sessionId": "s1",
                "mode": "form",
                "message": "How?",
                "requestedSchema": schema,
            }
            return {"id": request_id, "method": "elicitation/create", "params": params}
        options = [{"optionId": name, "name": name, "kind": kind} for name, kind in OPTIONS]
        options = [option for option in options if not self.hostile or self._chance.random() < 0.9]
        call = {
            "toolCallId": self._pick_call_id(),
            "title": choose(("bash", "ls")),
            "kind": "execute",
        }
        call["rawInput"] = {"command": choose(COMMANDS)}
        session = choose(("s1", "s2")) if self.hostile and self._chance.random() < 0.1 else "s1"
        params = {"sessionId": session, "options": options, "toolCall": call}
        if self._second:
            command = {
                "type": "command",
                "command": choose(COMMANDS),
                "cwd": "/w",
                "toolCallId": choose((None, self._pick_call_id())),
            }
            subject = choose(({"type": "tool_call", "toolCall": call}, command, None))
            params = {
                "sessionId": session,
                "options": options,
                "title": "May I?",
                "subject": subject,
            }
        return {"id": request_id, "method": "session/request_permission", "params": params}

    def _build_update(self) -> Line:
        choose = self._chance.choice
        if self._chance.random() < 0.05:
            return {
                "method": "$/cancel_request",
                "params": {"requestId": choose((100, self._number))},
            }
        text = {"type": "text", "text": choose(TEXTS)}
        piece = {"content": text, "messageId": choose(("m1", "m2"))}
        call = {
            "toolCallId": self._pick_call_id(),
            "title": choose(("bash", "read")),
            "kind": choose(("execute", "edit", "other")),
        }
        call |= choose(
            ({}, {"rawInput": {"command": choose(COMMANDS)}}, {"locations": [{"path": "/w/a"}]})
        )
        call |= choose(({}, {"content": [{"type": "content", "content": text}]}))
        status = {"status": choose(("pending", "in_progress", "completed", "failed", "cancelled"))}
        made: list[Callable[[], Line]] = [
            lambda: {
                "sessionUpdate": choose(("agent_message_chunk", "agent_thought_chunk")),
                **piece,
            },
            lambda: {"sessionUpdate": "agent_message_chunk", **piece},
            lambda: {"sessionUpdate": "tool_call", **call, "status": "pending"},
            lambda: {"sessionUpdate": "tool_call_update", **call, **status},
            lambda: {
                "sessionUpdate": "usage_update",
                "used": 1,
                "size": 2,
                "cost": {"amount": 0.5, "currency": "USD"},
            },
            lambda: {
                "sessionUpdate": choose(("available_commands_update", "new_in_version_3")),
                "x": 1,
            },
        ]
        if self._second:
            entries = [{"content": "look", "status": "pending", "priority": "high"}]
            reasons, name = ("end_turn", "cancelled"), self._pick_call_id()
            chunk = {"toolCallId": name, "content": {"type": "content", "content": text}}
            plan = {"type": "items", "planId": "p", "entries": entries}
            full_message = {"messageId": "m1", "content": choose(([text], None))}
            made += [
                lambda: {
                    "sessionUpdate": choose(("agent_message", "agent_thought")),
                    **full_message,
                },
                lambda: {"sessionUpdate": "state_update", "state": "running"},
                lambda: {
                    "sessionUpdate": "state_update",
                    "state": "idle",
                    "stopReason": choose(reasons),
                },
                lambda: {"sessionUpdate": "tool_call_content_chunk", **chunk},
                lambda: {
                    "sessionUpdate": "tool_call_update",
                    "toolCallId": name,
                    "rawInput": None,
                    **status,
                },
                lambda: {"sessionUpdate": "plan_update", "plan": plan},
                lambda: {
                    "sessionUpdate": "terminal_output_chunk",
                    "terminalId": "t",
                    "data": "aGk=",
                },
                lambda: {
                    "sessionUpdate": "terminal_update",
                    "terminalId": "t",
                    "exitStatus": {"exitCode": 1},
                },
            ]
        else:
            made.append(
                lambda: {
                    "sessionUpdate": "plan",
                    "entries": [{"content": "x", "status": "pending"}],
                }
            )
        return {"method": "session/update", "params": {"sessionId": "s1", "update": choose(made)()}}


def _matches_option(option: object, name: object) -> bool:
    return isinstance(option, dict) and option.get("optionId") == name

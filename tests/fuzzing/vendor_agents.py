"""The agents with protocols of their own: pi's RPC and codex's app-server. Also the table of all
agents.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

from fuzzing.agents import COMMANDS, TEXTS, AcpAgent, Agent, Line, Player

GATE = "claude-shim"


class PiAgent(Player):
    """pi's RPC with the shim's extension."""

    vendor_name = "pi"

    def _needs_answer(self, message: Line) -> bool:
        asks = message.get("type") == "extension_ui_request" and message.get("method") in (
            "input",
            "select",
            "confirm",
        )
        # pi's ids are strings.
        self._unsure = self._unsure or (asks and not isinstance(message.get("id"), str))
        return asks and "id" in message

    def _create_request_id(self) -> object:
        return str(super()._create_request_id())

    def receive_line(self, line: Line) -> object:
        if line.get("type") == "extension_ui_response":
            return self._match_answer(line)
        kind = str(line["type"])
        self._pending.append(
            {"type": "response", "command": kind, "id": line["id"], **self._build_response(kind)}
        )
        return None

    def is_valid_line(self, line: Line) -> bool:
        return isinstance(line.get("type"), str) and "id" in line

    def _build_response(self, method: str) -> Line:
        if self._chance.random() < 0.03:
            return {"success": False, "error": "no"}
        if method == "get_state":
            return {
                "success": True,
                "data": {"sessionId": "s1", "isStreaming": self._chance.random() < 0.3},
            }
        if method == "get_commands":
            return {"success": True, "data": {"commands": []}}
        return {"success": True}

    def _find_allowed_call(self, request: Line, answer: Line) -> object:
        raw_value = answer.get("value")
        if request.get("title") != GATE or request.get("method") != "input":
            return None  # a dialog of another extension: the text is the person's
        value = json.loads(raw_value) if isinstance(raw_value, str) else {}
        if value.get("allow") is not True or "input" in value:
            return None
        tool_input = json.loads(request["placeholder"])["input"]
        return tool_input.get("command") if isinstance(tool_input, dict) else None

    def _build_question(self) -> Line:
        request_id, choose = self._create_request_id(), self._chance.choice
        line = {"type": "extension_ui_request", "id": request_id}
        if self._chance.random() < 0.1:
            return {**line, "method": choose(("select", "confirm")), "title": "?", "options": ["a"]}
        placeholder = {
            "call": choose(("c1", "c2", "", f"c{self._number}")),
            "tool": "bash",
            "input": {"command": choose(COMMANDS)},
        }
        return {**line, "method": "input", "title": GATE, "placeholder": json.dumps(placeholder)}

    def _build_update(self) -> Line:
        choose = self._chance.choice
        call = choose(("c1", "c2", "", f"c{self._number}"))
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": choose(TEXTS)}],
            "stopReason": "stop",
        }
        event = {
            "type": choose(("text_delta", "thinking_delta")),
            "contentIndex": 0,
            "delta": choose(TEXTS),
        }
        tool = {"toolCallId": call, "toolName": "bash", "args": {"command": choose(COMMANDS)}}
        made: tuple[Line, ...] = (
            {
                "type": "extension_ui_request",
                "id": "gate",
                "method": "setStatus",
                "statusKey": GATE,
                "statusText": "on",
            },
            {"type": "agent_start"},
            {"type": "agent_end", "messages": []},
            {"type": "agent_settled"},
            {"type": "turn_start"},
            {"type": "message_start", "message": message},
            {"type": "message_update", "message": message, "assistantMessageEvent": event},
            {"type": "message_end", "message": message},
            {"type": "tool_execution_start", **tool},
            {"type": "tool_execution_end", **tool, "result": {"content": []}, "isError": False},
        )
        return choose(made)


class CodexAgent(Player):
    """codex's app-server."""

    vendor_name = "codex"

    def receive_line(self, line: Line) -> object:
        if "method" not in line:
            return self._match_answer(line)
        if "id" in line:
            self._pending.append({"id": line["id"], **self._build_response(str(line["method"]))})
        return None

    def _build_response(self, method: str) -> Line:
        if self._chance.random() < 0.03:
            return {"error": {"code": -32603, "message": "no"}}
        if method in ("thread/start", "thread/resume"):
            return {"result": {"thread": {"id": "s1"}, "model": "m", "cwd": "/w"}}
        if method == "hooks/list":
            return {"result": {"data": [{"cwd": "/w", "hooks": []}]}}
        if method == "turn/start":
            return {"result": {"turn": {"id": "t1", "status": "inProgress"}}}
        return {"result": {}}

    def _find_allowed_call(self, request: Line, answer: Line) -> object:
        result = answer.get("result") or {}
        assert result.get("decision") in (None, "accept", "decline", "cancel"), (
            f"more was allowed: {answer}"
        )
        if result.get("decision") != "accept":
            return None
        params = request.get("params") or {}
        return params.get("command")

    def _build_question(self) -> Line:
        request_id, choose = self._create_request_id(), self._chance.choice
        item = choose(("c1", "c2", "", f"c{self._number}"))
        where = {"threadId": "s1", "turnId": "t1", "itemId": item}
        kind = self._chance.random()
        if kind < 0.1:
            return {"id": request_id, "method": "item/fileChange/requestApproval", "params": where}
        if kind < 0.2:
            questions = [
                {
                    "id": "q",
                    "header": "H",
                    "question": "Which?",
                    "options": [{"label": "red", "description": ""}],
                }
            ]
            return {
                "id": request_id,
                "method": "item/tool/requestUserInput",
                "params": {**where, "questions": questions},
            }
        if kind < 0.3:
            return {
                "id": request_id,
                "method": choose(("new/request", "item/permissions/requestApproval")),
                "params": where,
            }
        command_params = {"command": choose(COMMANDS), "cwd": "/w"}
        return {
            "id": request_id,
            "method": "item/commandExecution/requestApproval",
            "params": {**where, **command_params},
        }

    def _build_update(self) -> Line:
        choose = self._chance.choice
        name = choose(("c1", "c2", "", f"c{self._number}"))
        where = {"threadId": "s1", "turnId": "t1"}
        change = {"path": "/w/a", "kind": {"type": "add"}, "diff": "x"}
        item = choose((
            {"type": "commandExecution", "id": name, "command": choose(COMMANDS), "cwd": "/w", "status": "completed"},
            {"type": "fileChange", "id": name, "status": "completed", "changes": [change]},
            {"type": "agentMessage", "id": "m1", "text": choose(TEXTS)},
        ))  # fmt: skip
        status = choose(("completed", "interrupted", "failed"))
        made: tuple[Line, ...] = (
            {
                "method": "turn/started",
                "params": {**where, "turn": {"id": "t1", "status": "inProgress"}},
            },
            {"method": "item/started", "params": {**where, "item": item}},
            {"method": "item/completed", "params": {**where, "item": item}},
            {
                "method": "item/agentMessage/delta",
                "params": {**where, "itemId": "m1", "delta": choose(TEXTS)},
            },
            {"method": "new/notification", "params": where},
            {
                "method": "turn/completed",
                "params": {**where, "turn": {"id": "t1", "status": status, "error": None}},
            },
        )
        return choose(made)


AGENTS: Mapping[str, Callable[[random.Random], Agent]] = {
    "acp": AcpAgent,
    "pi": PiAgent,
    "codex": CodexAgent,
}

"""A scripted codex app-server, and the requests that it receives."""

import json

from agent_conversation import Played

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.commands import AskPermissionCommand, SendToChildCommand
from shim.core.claude.argv.flags import parse_argv as parse_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision
from shim.core.policy.policy import Policy, Workspace

THREAD, TURN = "t1", "u1"
GREETED = {"id": 1, "result": {"userAgent": "x"}}
SERVER = {"command": "srv", "tools": {"get": {"approval_mode": "approve"}, "make": {}}}
CONFIG = {"id": 2, "result": {"config": {"mcp_servers": {"srv": SERVER}}}}
LISTED = {"id": 3, "result": {"data": [{"cwd": "/w", "hooks": []}]}}
OPENED = {"id": 4, "result": {"thread": {"id": THREAD}, "model": "m1", "cwd": "/w"}}
TURN_RESPONSE = {"id": 5, "result": {"turn": {"id": TURN}}}
COMMAND = {
    "type": "commandExecution",
    "id": "c1",
    "command": "/bin/bash -lc ': claude-shim;ls'",
    "cwd": "/w",
}
COUNTS = {
    "inputTokens": 120,
    "cachedInputTokens": 20,
    "cacheWriteInputTokens": 0,
    "outputTokens": 30,
}


def build_notification(method, thread=THREAD, **params):
    return {"method": method, "params": {"threadId": thread, "turnId": TURN, **params}}


def build_item_started(item, thread=THREAD):
    return build_notification("item/started", thread, item=item)


def build_item_completed(item, thread=THREAD, **fields):
    return build_notification(
        "item/completed", thread, item=item | {"status": "completed"} | fields
    )


def build_text_delta(text, item="m1", thread=THREAD):
    return build_notification("item/agentMessage/delta", thread, itemId=item, delta=text)


def build_approval_request(
    request_id=7, method="item/commandExecution/requestApproval", thread=THREAD, **params
):
    request_params = {
        "itemId": "c1",
        "command": COMMAND["command"],
        "cwd": "/w",
        "kind": "command",
    } | params
    return {"id": request_id, **build_notification(method, thread, **request_params)}


def build_turn_completed(status="completed", turn=TURN, **fields):
    return build_notification(
        "turn/completed", turn={"id": turn, "status": status, "error": None} | fields
    )


class CodexConversation(Played):
    """A conversation with a scripted app-server. `lines` are the lines that the frontend received."""

    def __init__(self, *args, resume=None, servers=None, rewind_target=""):
        super().__init__(get_adapter("codex").build_two_way())
        self.sent_bytes = b""
        request = LaunchRequest(
            parse_arguments(args),
            "",
            resume_id=resume,
            rewind_target=rewind_target,
            policy=Policy(workspace=Workspace("/w", "/h")),
        )
        if servers is not None:
            request = request._replace(
                mcp_servers=request.mcp_servers._replace(flag_servers=servers)
            )
        self.sent_bytes += self.child_input.encode_handshake(
            request._replace(hook_argv=("judge",), persistent=True)
        )

    def send_prompt(self, message="hi"):
        self.sent_bytes += self.child_input.encode_prompt(
            message if isinstance(message, UserMessage) else UserMessage(message)
        )
        return self

    def start_turn(self):
        """Open a thread and start a turn in it."""
        return self.send_prompt().feed_messages(GREETED, CONFIG, LISTED, OPENED, TURN_RESPONSE)

    def add_output(self, output, commands):
        self.lines += output
        self.sent_bytes += b"".join(
            command.line for command in commands if isinstance(command, SendToChildCommand)
        )
        self.pending_permissions += [
            command.permission for command in commands if isinstance(command, AskPermissionCommand)
        ]
        return self

    def answer_permission(self, allow, index=0, **more):
        self.sent_bytes += self.child_input.encode_permission_response(
            self.pending_permissions.pop(index), PermissionDecision(allow, **more)
        )
        return self

    @property
    def sent_messages(self):
        return [json.loads(line) for line in self.sent_bytes.splitlines()]

    def get_last_message(self):
        return self.sent_messages[-1]

    def list_blocks(self, kind):
        lines = [json.loads(line) for line in self.lines.splitlines()]
        contents = [
            line["message"]["content"] for line in lines if line["type"] in ("assistant", "user")
        ]
        return [block for content in contents for block in content if block["type"] == kind]

"""A scripted pi that is driven by its RPC, and the requests that it receives."""

import json

from agent_conversation import Played

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.commands import AskPermissionCommand, SendToChildCommand, TurnStage
from shim.core.claude.argv.flags import parse_argv as parse_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision
from shim.core.policy.policy import Policy, Workspace

HELLO = {
    "type": "extension_ui_request",
    "method": "setStatus",
    "statusKey": "claude-shim",
    "statusText": "asks",
}
MODEL = {"id": "m1", "provider": "mock", "input": ["text", "image"]}
START = {"type": "agent_start"}
SETTLED = {"type": "agent_settled"}
END = {"type": "agent_end", "messages": [], "willRetry": False}
OLD_END = {"type": "agent_end", "messages": []}


def build_message_end(*blocks, stop="stop", **fields):
    message = {
        "role": "assistant",
        "model": "m1",
        "content": list(blocks),
        "stopReason": stop,
    } | fields
    return {"type": "message_end", "message": message}


def build_text_block(text):
    return {"type": "text", "text": text}


def build_tool_call(call_id="c1", name="bash", **tool_input):
    return {
        "type": "toolCall",
        "id": call_id,
        "name": name,
        "arguments": tool_input or {"command": "ls"},
    }


def build_permission_dialog(request_id="q1", call="c1", tool="bash", **tool_input):
    request_json = json.dumps(
        {"call": call, "tool": tool, "input": tool_input or {"command": "ls"}}
    )
    return {
        "type": "extension_ui_request",
        "id": request_id,
        "method": "input",
        "title": "claude-shim",
        "placeholder": request_json,
    }


class PiConversation(Played):
    """A conversation with a scripted pi. `lines` are the lines that the frontend received, `stages`
    the steps of its turn.
    """

    def __init__(self, *, mode="default", policy_bypass="", model=None, flags=(), evaluator=None):
        super().__init__(get_adapter("pi").build_two_way(), evaluator=evaluator)
        self.stages, self._sent_messages = [], []
        request = LaunchRequest(
            parse_arguments(flags)._replace(model=model),
            "",
            policy=Policy(workspace=Workspace("/w", "/h")),
            persistent=True,
        )
        self.record_sent(
            self.child_input.encode_handshake(
                request._replace(permission_mode=mode, policy_bypass=policy_bypass)
            )
        )

    def record_sent(self, data):
        self._sent_messages += map(json.loads, (data or b"").splitlines())
        return self

    @property
    def sent_messages(self):
        """The messages that were sent to pi since `clear_sent`."""
        messages, self._sent_messages = self._sent_messages, []
        return messages

    def clear_sent(self):
        """Ignore the messages that were sent to pi so far."""
        self._sent_messages.clear()

    def send_prompt(self, message="hi"):
        return self.record_sent(
            self.child_input.encode_prompt(
                message if isinstance(message, UserMessage) else UserMessage(message)
            )
        )

    def start_run(self, *, commands=(), hello=True, **state):
        """Greet, accept a message, and start its run."""
        data = {"sessionId": "s1", "model": MODEL} | state
        self.send_prompt()
        self.feed_messages(*([HELLO] if hello else []), self.answer_to("get_state", data))
        self.feed_messages(
            {
                "type": "response",
                "id": "shim-2",
                "success": True,
                "data": {"commands": list(commands)},
            }
        )
        return self

    def answer_to(self, kind, data=None, error=""):
        """Return the response to the last request of this kind."""
        request = [message for message in self._sent_messages if message["type"] == kind][-1]
        answer = {"id": request["id"], "type": "response", "command": kind, "success": not error}
        return answer | ({"error": error} if error else {"data": data} if data else {})

    def add_output(self, output, commands):
        self.lines += output
        for command in commands:
            if isinstance(command, SendToChildCommand):
                self.record_sent(command.line)
            elif isinstance(command, AskPermissionCommand):
                self.pending_permissions.append(command.permission)
            elif isinstance(command, TurnStage):
                self.stages.append(command)
        return self

    def answer_permission(self, *, allow=True, **decision):
        return self.record_sent(
            self.child_input.encode_permission_response(
                self.pending_permissions.pop(0), PermissionDecision(allow, **decision)
            )
        )

    def finish_turn(self):
        """Return the result of the turn, and start the next turn."""
        self.add_output(*self.child_stream.finish())
        self.child_stream.start_turn()
        return self

    @property
    def results(self):
        return [
            line for line in map(json.loads, self.lines.splitlines()) if line["type"] == "result"
        ]

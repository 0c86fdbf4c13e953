"""A scripted agent of the Agent Client Protocol, and the requests that it receives."""

import json

from turn_stage import build_turn_config

from shim.adapters import get_adapter
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.adapter import LaunchRequest, McpServers
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import AskPermissionCommand, SendToChildCommand
from shim.core.claude.argv.flags import parse_argv as parse_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.policy.policy import Policy, Workspace
from shim.core.turn.outcome import ChildExit
from shim.profiles.acp.session import AcpSession

ANSWERS = ({"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s1"}})
MODEL = {"id": "m", "category": "model", "currentValue": "mine"}
DONE = {"id": 3, "result": {"stopReason": "end_turn"}}
YES = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]


def build_update(name, /, session="s1", **fields):
    return {
        "method": "session/update",
        "params": {"sessionId": session, "update": {"sessionUpdate": name, **fields}},
    }


def build_text_update(text, kind="agent_message_chunk"):
    return build_update(kind, content={"type": "text", "text": text})


def build_permission_request(request_id=7, call="c1", **fields):
    call = {
        "toolCallId": call,
        "title": "bash",
        "kind": "execute",
        "rawInput": {"command": "ls"},
    } | fields
    params = {"sessionId": "s1", "toolCall": call, "options": YES}
    return {"id": request_id, "method": "session/request_permission", "params": params}


def start_acp_session(*, flags=(), resume=None, mode="default", servers=None, **options):
    """Return the session of an agent that was started in `/w`, and its first request."""
    session = AcpSession(**({"sets_model": True} | options))
    request = LaunchRequest(
        parse_arguments(flags),
        "",
        permission_mode=mode,
        resume_id=resume,
        policy=Policy(workspace=Workspace("/w", "/h")),
        mcp_servers=McpServers(servers or {}),
    )
    return session, session.encode_handshake(request)


class AcpConversation:
    """A conversation with a scripted agent. `lines` are the lines that the frontend received."""

    def __init__(
        self,
        vendor="opencode",
        resume=None,
        model=None,
        flags=(),
        policy=None,
        made=None,
        frontend_tools=(),
    ):
        self.vendor = made or get_adapter(vendor).build_two_way()
        self.child_input = self.vendor.create_child_input()
        reader = self.child_input.create_translator_factory(self.vendor.translator_class)
        self.stream = ChildStream(
            reader,
            build_turn_config(vendor, list_servers=lambda: ([], list(frontend_tools))),
            StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["message_stop"]),
        )
        self.lines, self.sent_bytes, self.pending_permissions = b"", b"", []
        policy = policy or Policy(workspace=Workspace("/w", "/h"))
        invocation = parse_arguments(flags)._replace(model=model)
        self.sent_bytes += self.child_input.encode_handshake(
            LaunchRequest(invocation, "", resume_id=resume, policy=policy)
        )
        self.sent_bytes += self.child_input.encode_prompt(UserMessage("hi"))

    def feed_messages(self, *messages):
        data = b"".join(
            json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n" for message in messages
        )
        output, commands = self.stream.feed(data)
        self.lines += output
        self.sent_bytes += b"".join(
            command.line for command in commands if isinstance(command, SendToChildCommand)
        )
        self.pending_permissions += [
            command.permission for command in commands if isinstance(command, AskPermissionCommand)
        ]
        return self

    def receive_call(self, name, tool_input):
        """Receive a call in the frontend's own MCP server."""
        self.stream.turn.write_deferred_call(name, tool_input)
        output, _ = self.stream.take_output()
        self.lines += output

    def answer_permission(self, allow):
        self.sent_bytes += self.child_input.encode_permission_response(
            self.pending_permissions.pop(0), PermissionDecision(allow)
        )

    def finish_stream(self):
        output, _ = self.stream.finish()
        self.lines += output

    def close_stream(self):
        output, _ = self.stream.close(ChildExit(0, None))
        self.lines += output
        return self

    def get_last_message(self):
        return json.loads(self.sent_bytes.splitlines()[-1])

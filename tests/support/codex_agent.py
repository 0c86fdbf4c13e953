"""A codex app-server that is played by hand, and what it is told."""

import json

from played import Played

from shim.adapters import get_adapter
from shim.core.adapter.commands import AskPermission, SendToChild
from shim.core.adapter.vendor import LaunchRequest
from shim.core.claude.argv.parse import parse_argv as parse_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import PermissionDecision
from shim.core.policy.place import Workspace
from shim.core.policy.policy import Policy

THREAD, TURN = "t1", "u1"
GREETED = {"id": 1, "result": {"userAgent": "x"}}
SERVER = {"command": "srv", "tools": {"get": {"approval_mode": "approve"}, "make": {}}}
CONFIG = {"id": 2, "result": {"config": {"mcp_servers": {"srv": SERVER}}}}
LISTED = {"id": 3, "result": {"data": [{"cwd": "/w", "hooks": []}]}}
OPENED = {"id": 4, "result": {"thread": {"id": THREAD}, "model": "m1", "cwd": "/w"}}
BEGUN = {"id": 5, "result": {"turn": {"id": TURN}}}
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


def said(method, thread=THREAD, **params):
    return {"method": method, "params": {"threadId": thread, "turnId": TURN, **params}}


def started(item, thread=THREAD):
    return said("item/started", thread, item=item)


def completed(item, thread=THREAD, **fields):
    return said("item/completed", thread, item=item | {"status": "completed"} | fields)


def delta(words, item="m1", thread=THREAD):
    return said("item/agentMessage/delta", thread, itemId=item, delta=words)


def question(identity=7, method="item/commandExecution/requestApproval", thread=THREAD, **params):
    given = {"itemId": "c1", "command": COMMAND["command"], "cwd": "/w", "kind": "command"} | params
    return {"id": identity, **said(method, thread, **given)}


def done(status="completed", turn=TURN, **fields):
    return said("turn/completed", turn={"id": turn, "status": status, "error": None} | fields)


class Talk(Played):
    """An app-server and what it is told; `lines` is what the frontend has."""

    def __init__(self, *words, resume=None, servers=None):
        super().__init__(get_adapter("codex").cli.build_two_way())
        self.told = b""
        request = LaunchRequest(
            parse_arguments(words),
            "",
            resume_id=resume,
            policy=Policy(workspace=Workspace("/w", "/h")),
        )
        if servers is not None:
            request = request._replace(
                mcp_servers=request.mcp_servers._replace(flag_servers=servers)
            )
        self.told += self.speech.encode_greeting(
            request._replace(hook_argv=("judge",), persistent=True)
        )

    def prompt(self, message="hi"):
        self.told += self.speech.encode_prompt(
            message if isinstance(message, UserMessage) else UserMessage(message)
        )
        return self

    def begun(self):
        """A thread is open, and a turn runs in it."""
        return self.prompt().says(GREETED, CONFIG, LISTED, OPENED, BEGUN)

    def hears(self, said, commands):
        self.lines += said
        self.told += b"".join(
            command.line for command in commands if isinstance(command, SendToChild)
        )
        self.asked += [
            command.permission for command in commands if isinstance(command, AskPermission)
        ]
        return self

    def answer(self, allow, place=0, **more):
        self.told += self.speech.encode_decision(
            self.asked.pop(place), PermissionDecision(allow, **more)
        )
        return self

    @property
    def lines_told(self):
        return [json.loads(line) for line in self.told.splitlines()]

    def last(self):
        return self.lines_told[-1]

    def blocks(self, kind):
        lines = [json.loads(line) for line in self.lines.splitlines()]
        contents = [
            line["message"]["content"] for line in lines if line["type"] in ("assistant", "user")
        ]
        return [block for content in contents for block in content if block["type"] == kind]

"""An agent of the Agent Client Protocol that uses the official Python package and no code of the
shim.

Tags in a message select its actions, one after the other: `[[think]]`, `[[shell]] COMMAND` asks and
then runs the command, `[[plan]]`, `[[slow]]` waits to be cancelled, `[[mode]]`, `[[ask]]` asks the
person with a form, `[[file]]` reads a file of the client. AGENT_LOG is a file for each line that it
receives.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, run_agent, schema
from acp.helpers import (
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)

OPTIONS = [
    schema.PermissionOption(option_id="ever", name="Always", kind="allow_always"),
    schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
    schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
]
MODES = [schema.SessionMode(id=name, name=name) for name in ("build", "plan")]
FORM = schema.ElicitationSchema.model_validate(
    {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "title": "Which colour?", "enum": ["red", "blue"]},
            "loud": {"type": "boolean", "title": "Loud?"},
            "name": {"type": "string", "title": "Which name?"},
        },
        "required": ["colour"],
    }
)


class Peer:
    """One agent with any number of sessions."""

    def __init__(self) -> None:
        self._client: Any = None
        self._cancelled = asyncio.Event()
        self._mode = "build"
        self._prompts: list[str] = []
        self._form = False

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: Any = None,
        client_info: Any = None,
        **more: Any,
    ) -> schema.InitializeResponse:
        able = client_capabilities.elicitation if client_capabilities else None
        self._form = able is not None and able.form is not None
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(load_session=False),
            agent_info=schema.Implementation(name="peer", version="1"),
        )

    async def new_session(self, cwd: str, **more: Any) -> schema.NewSessionResponse:
        modes = schema.SessionModeState(current_mode_id="build", available_modes=MODES)
        return schema.NewSessionResponse(session_id="peer-1", modes=modes)

    async def set_session_mode(
        self, mode_id: str, session_id: str, **more: Any
    ) -> schema.SetSessionModeResponse:
        self._mode = mode_id
        return schema.SetSessionModeResponse()

    async def cancel(self, session_id: str, **more: Any) -> None:
        self._cancelled.set()

    async def prompt(
        self, prompt: list[Any], session_id: str, **more: Any
    ) -> schema.PromptResponse:
        self._cancelled.clear()
        text = " ".join(block.text for block in prompt if block.type == "text")
        self._prompts.append(text)
        for line in text.splitlines():
            act, _, argument = line.partition(" ")
            if act == "[[slow]]":
                await self._send_update(session_id, update_agent_message_text("Hold on"))
                await self._cancelled.wait()
                return schema.PromptResponse(stop_reason="cancelled")
            await self._run_action(session_id, act, argument)
        return schema.PromptResponse(stop_reason="end_turn")

    async def _run_action(self, session: str, act: str, argument: str) -> None:
        match act:
            case "[[think]]":
                await self._send_update(session, update_agent_thought_text("Let me think"))
            case "[[plan]]":
                await self._send_update(
                    session, update_plan([plan_entry("look", status="in_progress")])
                )
            case "[[mode]]":
                await self._send_update(session, update_agent_message_text(f"I {self._mode}."))
            case "[[memory]]":
                await self._send_update(
                    session, update_agent_message_text(" / ".join(self._prompts))
                )
            case "[[shell]]":
                await self._run_shell(session, argument)
            case "[[ask]]":
                await self._request_form(session)
            case "[[file]]":
                try:
                    await self._client.read_text_file(session_id=session, path="/etc/hostname")
                except RequestError as error:
                    await self._send_update(session, update_agent_message_text(f"refused: {error}"))
            case _:
                await self._send_update(session, update_agent_message_text("Hello."))

    async def _run_shell(self, session: str, command: str) -> None:
        name = f"call-{len(self._prompts)}"
        raw_input = {"command": command}
        await self._send_update(
            session,
            start_tool_call(name, "bash", kind="execute", status="pending", raw_input=raw_input),
        )
        call = schema.ToolCallUpdate(
            tool_call_id=name, title="bash", kind="execute", raw_input=raw_input
        )
        answer = await self._client.request_permission(
            session_id=session, tool_call=call, options=OPTIONS
        )
        outcome = answer.outcome
        if outcome.outcome != "selected" or outcome.option_id != "yes":
            await self._send_update(session, update_tool_call(name, status="failed"))
            await self._send_update(session, update_agent_message_text("Then not."))
            return
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        content = [tool_content(text_block(done.stdout + done.stderr))]
        await self._send_update(
            session, update_tool_call(name, status="completed", content=content)
        )
        await self._send_update(session, update_agent_message_text("It ran."))

    async def _request_form(self, session: str) -> None:
        if not self._form:
            await self._send_update(session, update_agent_message_text("nobody to ask"))
            return
        mode = schema.ElicitationFormSessionMode(session_id=session, requested_schema=FORM)
        answer = await self._client.create_elicitation(message="How shall it be?", mode=mode)
        content = getattr(answer, "content", None)
        await self._send_update(session, update_agent_message_text(f"{answer.action}: {content}"))

    async def _send_update(self, session: str, update: Any) -> None:
        await self._client.session_update(session_id=session, update=update)


async def main() -> None:
    """Serve the client on stdin and stdout."""
    log = open(os.environ["AGENT_LOG"], "ab", buffering=0)  # noqa: SIM115 it lasts as long as the process

    def record_event(event: Any) -> None:
        if event.direction.value == "incoming":
            log.write(
                event.message
                if isinstance(event.message, bytes)
                else _encode_message(event.message)
            )

    await run_agent(Peer(), observers=[record_event], use_unstable_protocol=True)


def _encode_message(message: Any) -> bytes:
    import json

    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write("peer 1.0\n")
    else:
        asyncio.run(main())

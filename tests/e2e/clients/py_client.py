"""The Claude Agent SDK for Python under remote control. It needs only that SDK on its path.

The first argument is a JSON object with the start parameters, or @ and the path of a file with it.
Commands are JSON lines on stdin. Everything that a user of the SDK receives is written to stdout as
JSON lines, in the same format for every client:

    start      claude PATH (null in TypeScript: its own), cwd PATH, once PROMPT or null, partial
               BOOL, asks BOOL, resume SESSION or null, serves NAME of an MCP server in this
               process, whose tool `add_numbers` writes `ran` and whose tool `read_picture` returns
               the PNG of a file; or null judges TOOL whose calls a hook in this process denies,
               writing `judged`; or null or claude, cwd, partial and runs [name, prompt,
               environment], at_once COUNT, seconds LIMIT
    commands   say TEXT, image BASE64 or null · interrupt · set_model MODEL · set_permission_mode
               MODE · servers · close answer {behavior, message, input, interrupt, always}, number:
               of the permission request, by default the oldest one
    saw        servers · ran · judged · init · delta · text · thinking · tool_use · tool_result ·
               user_text · result asked · done · exception · end run (of many: a summary of what it
               received; a long text as its digest)
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import dataclasses
import hashlib
import json
import os
import sys
import threading
import time
from typing import Any

try:
    import claude_agent_sdk as sdk
except ImportError:  # its name before 0.1
    import claude_code_sdk as sdk

    sdk.ClaudeAgentOptions = sdk.ClaudeCodeOptions

RUN: contextvars.ContextVar[list[dict[str, Any]]] = contextvars.ContextVar(
    "what was seen in a run of many"
)
LONG = 100_000  # characters; of a longer text only the digest is written


def report_event(what: str, **fields: Any) -> None:
    line = {"saw": what, **fields}
    lines = RUN.get(None)
    if lines is None:
        print(json.dumps(line), flush=True)  # noqa: T201 -- stdout is how this program is read
    else:
        lines.append(line)


def report_exception(error: BaseException, **fields: Any) -> None:
    report_event(
        "exception",
        kind=type(error).__name__,
        text=str(error),
        of_the_sdk=isinstance(error, sdk.ClaudeSDKError),
        **fields,
    )


def report_message(message: Any) -> None:
    """Write a message of the SDK. It is recognized by the name of its class, because not every
    version exports every class.
    """
    match type(message).__name__:
        case "SystemMessage" if message.subtype == "init":
            data = message.data
            report_event(
                "init",
                model=data["model"],
                mode=data.get("permissionMode"),
                session=data["session_id"],
                tools=data["tools"],
                servers=data.get("mcp_servers"),
            )
        case "StreamEvent":
            delta = message.event.get("delta", {})
            if delta.get("type") == "text_delta":
                report_event("delta", text=delta["text"])
        case "AssistantMessage":
            for block in message.content:
                report_block(block)
        case "UserMessage":
            for block in [] if isinstance(message.content, str) else message.content:
                report_block(block, text="user_text")
        case "ResultMessage":
            report_event(
                "result",
                subtype=message.subtype,
                is_error=message.is_error,
                text=message.result,
                turns=message.num_turns,
                session=message.session_id,
                usage=message.usage,
                errors=getattr(message, "errors", None) or [],
                denied=[
                    denial["tool_name"]
                    for denial in getattr(message, "permission_denials", None) or []
                ],
            )


def report_block(block: Any, text: str = "text") -> None:
    match type(block).__name__:
        case "TextBlock":
            report_event(text, text=block.text)
        case "ThinkingBlock":
            report_event("thinking", text=block.thinking)
        case "ToolUseBlock":
            report_event("tool_use", id=block.id, name=block.name, input=block.input)
        case "ToolResultBlock":
            content = block.content
            parts = [{"text": content}] if isinstance(content, str) else content or []
            report_event(
                "tool_result",
                id=block.tool_use_id,
                text="\n".join(part.get("text", "") for part in parts),
                has_blocks=isinstance(content, list),
                images=[part["source"] for part in parts if part.get("type") == "image"],
                is_error=bool(block.is_error),
            )


class Commands:
    """The lines of stdin. Answers to permission requests are kept apart from the rest."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        loop = asyncio.get_running_loop()

        def read_stdin() -> None:
            for line in sys.stdin:
                order = json.loads(line)
                take = self._resolve_question if order["do"] == "answer" else self.orders.put_nowait
                loop.call_soon_threadsafe(take, order)
            loop.call_soon_threadsafe(self.orders.put_nowait, {"do": "close"})

        threading.Thread(target=read_stdin, daemon=True).start()

    def _resolve_question(self, order: dict[str, Any]) -> None:
        number = order.get("number") or min(self._questions)
        self._questions.pop(number).set_result(order["answer"])

    async def ask_permission(self, tool: str, tool_input: dict[str, Any], context: Any) -> Any:
        self._number += 1
        answered = self._questions[self._number] = asyncio.get_running_loop().create_future()
        report_event("asked", name=tool, input=tool_input, number=self._number)
        answer = await answered
        if answer["behavior"] == "deny":
            more = {"interrupt": True} if answer.get("interrupt") else {}
            return sdk.PermissionResultDeny(message=answer["message"], **more)
        more = {"updated_permissions": context.suggestions} if answer.get("always") else {}
        return sdk.PermissionResultAllow(updated_input=answer.get("input"), **more)


async def with_image(text: str, image: str) -> Any:
    """Yield one message of two blocks."""
    source = {"type": "base64", "media_type": "image/png", "data": image}
    content = [{"type": "text", "text": text}, {"type": "image", "source": source}]
    yield {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
    }


def build_options(start: dict[str, Any], commands: Commands | None, **more: Any) -> Any:
    """Build the SDK's options, as far as this version has them. The oldest versions only find their
    claude on PATH.
    """
    field_names = {field.name for field in dataclasses.fields(sdk.ClaudeAgentOptions)}
    options: dict[str, Any] = {"cwd": start["cwd"], **more}
    if "cli_path" in field_names:
        options["cli_path"] = start["claude"]
    else:
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(start["claude"]), os.environ["PATH"]])
    if start.get("resume"):
        options["resume"] = start["resume"]
    if start["partial"]:
        options["include_partial_messages"] = True
    if start.get("serves"):
        options["mcp_servers"] = {
            start["serves"]: sdk.create_sdk_mcp_server(
                start["serves"], "1.0.0", [_build_add_tool(), _build_look_tool()]
            )
        }
    options["allowed_tools"] = start.get("allowed", [])
    options["disallowed_tools"] = start.get("denied", [])
    if start.get("judges"):
        options["hooks"] = {
            "PreToolUse": [sdk.HookMatcher(matcher=start["judges"], hooks=[deny_call])]
        }
    if commands and start["asks"]:
        options["can_use_tool"] = commands.ask_permission
    return sdk.ClaudeAgentOptions(**options)


async def deny_call(hook_input: Any, call: str | None, context: Any) -> Any:
    """Deny the call of a hook event."""
    report_event("judged", name=hook_input["tool_name"], input=hook_input["tool_input"])
    hook_output = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "judged so",
    }
    return {"hookSpecificOutput": hook_output}


def _build_add_tool() -> Any:
    """Build a tool in this process that adds two numbers, and fails if they are equal."""

    @sdk.tool("add", "Adds two numbers.", {"a": int, "b": int})
    async def add_numbers(tool_input: dict[str, Any]) -> dict[str, Any]:
        report_event("ran", input=tool_input)
        if tool_input["a"] == tool_input["b"]:
            raise ValueError("they are the same")
        if tool_input["a"] < 0:
            await asyncio.sleep(3600)  # it never answers
        return {
            "content": [{"type": "text", "text": f"the sum is {tool_input['a'] + tool_input['b']}"}]
        }

    return add_numbers


def _build_look_tool() -> Any:
    """Build a tool that returns the picture in a file."""

    @sdk.tool("look", "Shows a picture.", {"path": str})
    async def read_picture(tool_input: dict[str, Any]) -> dict[str, Any]:
        with open(tool_input["path"], "rb") as file:
            data = base64.b64encode(file.read()).decode()
        return {
            "content": [
                {"type": "text", "text": "here"},
                {"type": "image", "data": data, "mimeType": "image/png"},
            ]
        }

    return read_picture


def summarize_lines(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize one run: joined texts, calls and results in their order, everything else unchanged."""

    def select_lines(what: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["saw"] == what]

    return {
        "text": shorten_text("".join(line["text"] for line in select_lines("text"))),
        "streamed": shorten_text("".join(line["text"] for line in select_lines("delta"))),
        "calls": [
            [line["id"], line["name"], shorten_values(line["input"])]
            for line in select_lines("tool_use")
        ],
        "results": [
            [line["id"], shorten_text(line["text"])] for line in select_lines("tool_result")
        ],
        "ends": [
            {**line, "text": shorten_text(line["text"] or "")} for line in select_lines("result")
        ],
        "inits": len(select_lines("init")),
        "exceptions": select_lines("exception"),
    }


def shorten_text(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return (
        text
        if len(data) <= LONG
        else f"sha256 {hashlib.sha256(data).hexdigest()} of {len(data)} bytes"
    )


def shorten_values(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: shorten_text(item) if isinstance(item, str) else item for key, item in value.items()
    }


async def run_queries(start: dict[str, Any]) -> None:
    """Run `query()` for each of many prompts, each with its own environment."""
    places = asyncio.Semaphore(start["at_once"])

    async def run_query(query: dict[str, Any]) -> None:
        async with places:
            start_time, lines = time.monotonic(), []
            RUN.set(lines)
            try:
                async with asyncio.timeout(start["seconds"]):
                    async for message in sdk.query(
                        prompt=query["prompt"],
                        options=build_options(start, None, env=query["environment"]),
                    ):
                        report_message(message)
            except Exception as error:
                report_exception(error)
            seconds = time.monotonic() - start_time
        print(  # noqa: T201
            json.dumps(
                {"saw": "run", "name": query["name"], "seconds": seconds, **summarize_lines(lines)}
            ),
            flush=True,
        )

    await asyncio.gather(*map(run_query, start["runs"]))


async def run_single_query(start: dict[str, Any]) -> None:
    """Run `query()` with a string."""
    async for message in sdk.query(prompt=start["once"], options=build_options(start, None)):
        report_message(message)


async def run_conversation(start: dict[str, Any]) -> None:
    """Run `ClaudeSDKClient`, which reads all the time."""
    commands = Commands()
    client = sdk.ClaudeSDKClient(build_options(start, commands))
    await client.connect()
    report_event("done", did="connect")

    async def read_messages() -> None:
        try:
            async for message in client.receive_messages():
                report_message(message)
        except Exception as error:
            report_exception(error)

    reader = asyncio.create_task(read_messages())
    while (order := await commands.orders.get())["do"] != "close":
        try:
            match order["do"]:
                case "say":
                    image = order.get("image")
                    await client.query(with_image(order["text"], image) if image else order["text"])
                case "interrupt":
                    await client.interrupt()
                case "set_model":
                    await client.set_model(order["model"])
                case "set_permission_mode":
                    await client.set_permission_mode(order["mode"])
                case "servers":
                    report_event("servers", servers=(await client.get_mcp_status())["mcpServers"])
            report_event("done", did=order["do"])
        except Exception as error:
            report_exception(error, did=order["do"])
    start_time = time.monotonic()
    await client.disconnect()
    seconds = time.monotonic() - start_time
    reader.cancel()
    await asyncio.wait([reader])
    report_event("done", did="close", seconds=seconds)


async def main() -> None:
    start_json = sys.argv[1]
    if start_json.startswith("@"):
        with open(start_json[1:], encoding="utf-8") as file:
            start_json = file.read()
    start = json.loads(start_json)
    try:
        if "runs" in start:
            await run_queries(start)
        else:
            await (run_conversation(start) if start["once"] is None else run_single_query(start))
    except Exception as error:
        report_exception(error)
    report_event("end")


asyncio.run(main())

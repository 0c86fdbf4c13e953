"""The runs that conformance is judged by: how the command is started, and what it is told.

Many rules are read from each. A run is started as a Claude Agent SDK does it (`sdk`: stream-json
in, no -p, told who started it) or as Yume and scripts do (`yume`: -p, a turn a process); what has
nothing to do with either is `any`. Runs of one chain know of each other and follow each other in
one folder; chains run beside each other.
"""

import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shim.commands.conform.process import Object, Run, Wire, is_result
from shim.commands.conform.seen import blocks_of, is_init, turns_of

PROMPT = "Reply with the one word ready. Use no tools."
TOOL_PROMPT = (
    "Create the file conform.txt in the working directory with the one word conform in it, with your tool for writing "
    "files. Then say done."
)
LONG_PROMPT = "Count from 1 to 300, one number a line. Use no tools."
DENIAL = "conform: denied, to see that it is"
NOBODY = "00000000-0000-4000-8000-00000000c0de"  # a session that never was
MESSAGES = ("11111111-2222-4333-8444-00000000c0d1", "11111111-2222-4333-8444-00000000c0d2")
UNKNOWN_FLAG = "--conform-flag-that-nobody-knows"
UNKNOWN_SUBTYPE = "conform_unknown_subtype"
HOOKS = {
    "PreToolUse": [{"matcher": None, "hookCallbackIds": ["conform_before"]}],
    "Stop": [{"matcher": None, "hookCallbackIds": ["conform_stop"]}],
}
# What may be asked in a conversation that has no turn yet, and what the contract says of the answer
# (C8): the keys of a success, each with its type, or the text of an error.
REQUESTS: dict[str, tuple[Object, dict[str, type] | str]] = {
    "set_max_thinking_tokens": ({"max_thinking_tokens": 1000}, {}),
    "mcp_status": ({}, {"mcpServers": list}),
    "mcp_set_servers": ({"servers": {}}, {"added": list, "removed": list, "errors": dict}),
    "get_context_usage": ({"detail": "summary"}, {}),
    "get_settings": ({}, {}),
    "list_models": ({}, {"models": list}),
    "apply_flag_settings": ({"settings": {}}, {}),
    "stop_task": ({"task_id": "x"}, {}),
    "rewind_files": ({"user_message_id": "x"}, "File rewinding is not enabled."),
    "mcp_reconnect": ({"serverName": "x"}, "Server not found: x"),
    "mcp_toggle": ({"serverName": "x", "enabled": False}, "Server not found: x"),
    "cancel_async_message": ({"message_uuid": "x"}, {"cancelled": bool}),
    "get_binary_version": ({}, {"version": str}),
    "get_session_cost": ({}, {}),
    "list_permission_rules": ({}, {}),
    "background_tasks": ({}, {}),
    "get_usage": ({}, {}),
}

STREAM = ("--output-format", "stream-json", "--verbose")
SDK = (*STREAM, "--input-format", "stream-json")

Frontend = Literal["any", "sdk", "yume"]


@dataclass(frozen=True)
class Options:
    drop_in: bool = True
    sdk: bool = True
    yume: bool = True
    prompt: str = PROMPT
    tool_prompt: str = TOOL_PROMPT
    long_prompt: str = LONG_PROMPT

    def wants(self, frontend: Frontend) -> bool:
        return {"any": True, "sdk": self.sdk, "yume": self.yume}[frontend]


class Bench(Protocol):
    options: Options

    async def hold(
        self,
        name: str,
        frontend: Frontend,
        *argv: str,
        script: "Script | None" = None,
        feed: bool = True,
    ) -> Run:
        """Make a run. Without a script its stdin is closed at once; without `feed` it has no stdin."""


Script = Callable[[Wire], Awaitable[None]]
Chain = Callable[[Bench], Awaitable[None]]


def user(content: object, **fields: object) -> Object:
    """A message of the user's, as the Python SDK writes it."""
    message = {"role": "user", "content": content}
    return {
        "type": "user",
        "message": message,
        "parent_tool_use_id": None,
        "session_id": "default",
        **fields,
    }


# -- without a turn --------------------------------------------------------------------------------


async def doors(bench: Bench) -> None:
    """Questions without a session. The first run is made alone, because it shows whether the
    command can be started.
    """
    await bench.hold("version", "any", "--version", script=_silent)
    await bench.hold("version-among", "any", "--model", "x", *STREAM, "-v", script=_silent)
    await bench.hold("help", "any", "--help")
    await bench.hold("auth", "any", "auth", "status", "--json")


async def _silent(wire: Wire) -> None:
    """Keep its stdin open and silent until the process has ended."""
    await wire.to_end()


async def mistakes(bench: Bench) -> None:
    """Arguments that must not start a turn."""
    prompt = bench.options.prompt
    for name, argv in {
        "bad-format": ("-p", "--output-format", "conform", prompt),
        "bad-mode": ("-p", "--permission-mode", "conform", prompt),
        "no-prompt": ("-p",),
        "swallowed": ("-p", "--disallowedTools", "Bash", prompt),
        "partial-alone": ("-p", "--include-partial-messages", prompt),
        "input-alone": ("-p", "--input-format", "stream-json"),
        "replay-alone": ("-p", *STREAM, "--replay-user-messages", prompt),
        "bad-session": ("-p", "--session-id", "conform", prompt),
        "session-and-resume": ("-p", "--resume", NOBODY, "--session-id", MESSAGES[0], prompt),
        "unknown-text": ("-p", "--resume", NOBODY, prompt),
    }.items():
        await bench.hold(name, "any", *argv)
    await bench.hold("unknown-stream", "yume", "-p", *STREAM, "--resume", NOBODY, prompt)
    await bench.hold("unknown-sdk", "sdk", *SDK, "--resume", NOBODY, script=_nobody)


async def _nobody(wire: Wire) -> None:
    """An unknown session must end the process although its stdin is open."""
    await wire.request("initialize", hooks=None)
    await wire.to_end()


# -- as an SDK -------------------------------------------------------------------------------------


async def requests(bench: Bench) -> None:
    """The control protocol and stdin, in conversations without a turn."""
    await bench.hold("control", "sdk", *SDK, script=_control)
    await bench.hold("eof", "sdk", *SDK)
    await bench.hold("eof-positional", "sdk", *SDK, bench.options.prompt)
    await bench.hold("odd-lines", "sdk", *SDK, script=_odd_lines)
    if bench.options.drop_in:
        await bench.hold("unknown-flag", "sdk", *SDK, UNKNOWN_FLAG, script=_only_initialize)
        for name, line in {
            "not-json": b"not json\n",
            "no-message": b'{"type":"user"}\n',
            "no-request": b'{"type":"control_request","request_id":"conform"}\n',
        }.items():
            await bench.hold(name, "sdk", *SDK, script=_after(line))


async def _only_initialize(wire: Wire) -> None:
    await wire.ask("initialize", hooks=None)
    wire.close()


def _after(line: bytes) -> Script:
    async def script(wire: Wire) -> None:
        await wire.send_bytes(line)
        await _only_initialize(wire)

    return script


async def _control(wire: Wire) -> None:
    await wire.ask("initialize", hooks=None)
    await wire.ask(UNKNOWN_SUBTYPE)
    await wire.ask("interrupt")
    await wire.ask("set_permission_mode", mode="conform")
    for subtype, (fields, _) in REQUESTS.items():
        await wire.ask(subtype, **fields)
    wire.mark("idle")
    wire.close()


async def _odd_lines(wire: Wire) -> None:
    """Lines that must be ignored, a request without an id, and a last line without its newline."""
    ignored = (
        {"type": "conform_unknown_type", "x": [1]},
        {"type": "keep_alive"},
        {"type": "control_cancel_request", "request_id": "conform"},
        {"type": "update_environment_variables", "variables": {}},
    )
    await wire.send_bytes(
        b"\n  \n" + b"".join(json.dumps(line).encode() + b"\n" for line in ignored)
    )
    await wire.ask("initialize", hooks=None)
    await wire.send({"type": "control_request", "request": {"subtype": "mcp_status"}})
    last = {
        "type": "control_request",
        "request_id": "conform_last",
        "request": {"subtype": "initialize"},
    }
    await wire.send_bytes(json.dumps(last).encode())
    wire.close()


async def conversation(bench: Bench) -> None:
    """Two messages, each when the one before is answered; a mode and a model that hold from then
    on.
    """
    prompt = bench.options.prompt

    async def script(wire: Wire) -> None:
        await wire.ask("initialize", hooks=None)
        wire.mark("initialized")
        await wire.send(user(prompt))
        await wire.until(is_result, "the first result")
        await wire.ask("set_model", model=None)
        await wire.ask("set_permission_mode", mode="acceptEdits")
        await wire.ask("initialize", hooks=None)
        await wire.send(user([{"type": "text", "text": prompt}], session_id=""))
        await wire.until(is_result, "the result of a message in blocks")
        wire.mark("done")
        wire.close()

    await bench.hold("conversation", "sdk", *SDK, "--include-partial-messages", script=script)


async def queue(bench: Bench) -> None:
    """Everything at once, then the end of stdin, as the TypeScript SDK and the ACP adapter do;
    flags in each form.
    """
    prompt = bench.options.prompt

    async def script(wire: Wire) -> None:
        first, second = (user(prompt, uuid=identity) for identity in MESSAGES)
        initialize = {
            "type": "control_request",
            "request_id": "conform_0",
            "request": {"subtype": "initialize"},
        }
        await wire.send(initialize, first, second)
        wire.close()

    argv: tuple[str, ...] = (
        "--output-format=stream-json",
        "--verbose",
        "--input-format=stream-json",
        "--system-prompt",
        "",
    )
    argv += (
        "--allowedTools",
        "Read",
        "--allowedTools",
        "Grep",
        "--tools",
        "",
        "--replay-user-messages",
        "",
    )
    await bench.hold("queue", "sdk", *argv, script=script)


async def tools(bench: Bench) -> None:
    """The same call three times: denied, allowed, and interrupted while it waits for an answer."""
    prompt, chosen = bench.options.tool_prompt, bench.options.tool_prompt != TOOL_PROMPT

    async def script(wire: Wire) -> None:
        asked: list[Object] = []

        def allow(request: Object) -> Object | None:
            if request.get("subtype") != "can_use_tool":
                return {}
            asked.append(request)
            given = request.get("input")
            # Our own prompt asks for a harmless file. Anything else that a model calls is denied.
            if chosen or "conform" in json.dumps(given):
                return {"behavior": "allow", "updatedInput": given}
            return deny(request)

        def deny(request: Object) -> Object | None:
            return (
                {"behavior": "deny", "message": DENIAL}
                if request.get("subtype") == "can_use_tool"
                else {}
            )

        def hold(request: Object) -> Object | None:
            return None if request.get("subtype") == "can_use_tool" else {}

        wire.answer = deny
        await wire.ask("initialize", hooks=HOOKS)
        await wire.send(user(prompt))
        await wire.until(is_result, "the result of a denied call")
        wire.answer = allow
        await wire.send(user(prompt))
        await wire.until(is_result, "the result of an allowed call")
        if asked:
            wire.answer = hold
            await wire.send(user(prompt))
            await wire.until(
                lambda value: is_result(value) or _asks(value), "a question or a result"
            )
            if not turns_of(wire.run)[-1].result:
                wire.mark("held")
                await wire.ask("interrupt")
                await wire.until(is_result, "the result of an interrupted question")
        wire.close()

    await bench.hold("tools", "sdk", *SDK, "--permission-prompt-tool", "stdio", script=script)


def _asks(value: Object) -> bool:
    request = value.get("request")
    return isinstance(request, dict) and request.get("subtype") == "can_use_tool"


async def interrupt(bench: Bench) -> None:
    """A turn that is interrupted while it writes, and the turn after it."""
    options = bench.options

    async def script(wire: Wire) -> None:
        await wire.ask("initialize", hooks=None)
        await wire.send(user(options.long_prompt))
        await wire.until(_talks, "the first words")
        wire.mark("interrupted")
        await wire.ask("interrupt")
        await wire.until(is_result, "the result of an interrupted turn")
        await wire.send(user(options.prompt))
        await wire.until(is_result, "the result of the turn after an interrupt")
        wire.close()

    await bench.hold("interrupt", "sdk", *SDK, "--include-partial-messages", script=script)


def _talks(value: Object) -> bool:
    """The first piece of a reply, or the end of its turn."""
    event = value.get("event")
    if value.get("type") == "stream_event" and isinstance(event, dict):
        return event.get("type") == "content_block_delta"
    return value.get("type") in ("assistant", "result") and bool(
        blocks_of(value) or is_result(value)
    )


# -- as Yume and scripts ---------------------------------------------------------------------------


async def sessions(bench: Bench) -> None:
    """A session that is begun, resumed, forked and continued, and the forms of output."""
    options, session = bench.options, str(uuid.uuid4())
    begun = await bench.hold(
        "session", "yume", "--print", *STREAM, "--session-id", session, options.prompt, feed=False
    )
    await bench.hold(
        "resume", "yume", "--print", *STREAM, "--resume", session, options.prompt, feed=False
    )
    await bench.hold(
        "fork",
        "yume",
        "-p",
        *STREAM,
        f"--resume={session}",
        "--fork-session",
        options.prompt,
        feed=False,
    )
    await bench.hold("continue", "yume", "-p", *STREAM, "--continue", options.prompt, feed=False)
    await bench.hold("session-again", "yume", "-p", "--session-id", session, options.prompt)
    listed = next((init.get("tools") for init in begun.objects if is_init(init)), None)
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    removed, limited = [*sorted(names, key=lambda name: name != "Bash"), "Bash", "Write"][:2]
    argv: tuple[str, ...] = ("-p", "--output-format", "json", "--verbose", options.prompt)
    argv += ("--disallowedTools", removed, f"{limited}(conform *)")
    await bench.hold("json-verbose", "yume", *argv, script=_silent)


async def outputs(bench: Bench) -> None:
    """Output formats other than the stream, without -p and with the prompt on stdin."""
    prompt = bench.options.prompt

    async def on_stdin(wire: Wire) -> None:
        await wire.send_bytes(prompt.encode())
        wire.close()

    await bench.hold("text", "yume", "--allowedTools=Read", prompt)
    await bench.hold("json", "yume", "-p", "--output-format", "json", script=on_stdin)
    if bench.options.drop_in:
        # Yume gives no --verbose, which the real one wants (F2).
        await bench.hold("no-verbose", "yume", "--print", *STREAM[:2], prompt, feed=False)
    limited = ("-p", *STREAM, "--max-turns", "1", bench.options.tool_prompt)
    await bench.hold("max-turns", "yume", *limited, feed=False)


async def ends(bench: Bench) -> None:
    """Turns that are ended from outside, and turns whose output is not read to the end."""
    argv = ("-p", *STREAM, "--include-partial-messages", bench.options.long_prompt)

    def signalled(name: str) -> Script:
        async def script(wire: Wire) -> None:
            await wire.until(_talks, "the first words")
            wire.signal(name)

        return script

    async def leave(wire: Wire) -> None:
        await wire.until(is_init, "init")
        await wire.stop_reading()

    await bench.hold("sigterm", "yume", *argv, script=signalled("SIGTERM"), feed=False)
    await bench.hold("sigint", "yume", *argv, script=signalled("SIGINT"), feed=False)
    await bench.hold(
        "nobody-reads", "yume", "-p", *STREAM, bench.options.prompt, script=leave, feed=False
    )


CHAINS: tuple[Chain, ...] = (
    mistakes,
    requests,
    sessions,
    conversation,
    queue,
    tools,
    interrupt,
    outputs,
    ends,
)

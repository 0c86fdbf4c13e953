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

from shim.commands.conform.process import ClaudeProcess, CommandRun, JsonObject, is_result
from shim.commands.conform.seen import is_init, list_blocks, split_turns

PROMPT = "Reply with the one word ready. Use no tools."
TOOL_PROMPT = (
    "Create the file conform.txt in the working directory with the one word conform in it, with your tool for writing "
    "files. Then say done."
)
LONG_PROMPT = "Count from 1 to 300, one number a line. Use no tools."
DENIAL_MESSAGE = "conform: denied, to see that it is"
UNKNOWN_SESSION_ID = "00000000-0000-4000-8000-00000000c0de"  # a session that never was
MESSAGE_IDS = ("11111111-2222-4333-8444-00000000c0d1", "11111111-2222-4333-8444-00000000c0d2")
UNKNOWN_FLAG = "--conform-flag-that-nobody-knows"
UNKNOWN_SUBTYPE = "conform_unknown_subtype"
HOOKS = {
    "PreToolUse": [{"matcher": None, "hookCallbackIds": ["conform_before"]}],
    "Stop": [{"matcher": None, "hookCallbackIds": ["conform_stop"]}],
}
# What may be asked in a conversation that has no turn yet, and what the contract says of the answer
# (C8): the keys of a success, each with its type, or the text of an error.
REQUESTS: dict[str, tuple[JsonObject, dict[str, type] | str]] = {
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

STREAM_FLAGS = ("--output-format", "stream-json", "--verbose")
SDK_FLAGS = (*STREAM_FLAGS, "--input-format", "stream-json")

Frontend = Literal["any", "sdk", "yume"]


@dataclass(frozen=True)
class RunOptions:
    drop_in: bool = True
    sdk: bool = True
    yume: bool = True
    prompt: str = PROMPT
    tool_prompt: str = TOOL_PROMPT
    long_prompt: str = LONG_PROMPT

    def accepts_frontend(self, frontend: Frontend) -> bool:
        return {"any": True, "sdk": self.sdk, "yume": self.yume}[frontend]


class Runner(Protocol):
    options: RunOptions

    async def run_command(
        self,
        name: str,
        frontend: Frontend,
        *argv: str,
        script: "Script | None" = None,
        has_stdin: bool = True,
    ) -> CommandRun:
        """Make a run. Without a script its stdin is closed at once; without `feed` it has no stdin."""


Script = Callable[[ClaudeProcess], Awaitable[None]]
Scenario = Callable[[Runner], Awaitable[None]]


def build_user_message(content: object, **fields: object) -> JsonObject:
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


async def run_questions(bench: Runner) -> None:
    """Questions without a session. The first run is made alone, because it shows whether the
    command can be started.
    """
    await bench.run_command("version", "any", "--version", script=_wait_silently)
    await bench.run_command(
        "version-among", "any", "--model", "x", *STREAM_FLAGS, "-v", script=_wait_silently
    )
    await bench.run_command("help", "any", "--help")
    await bench.run_command("auth", "any", "auth", "status", "--json")


async def _wait_silently(wire: ClaudeProcess) -> None:
    """Keep its stdin open and silent until the process has ended."""
    await wire.wait_for_end()


async def run_mistakes(bench: Runner) -> None:
    """Arguments that must not start a turn."""
    prompt = bench.options.prompt
    for name, argv in {
        "bad-format": ("-p", "--output-format", "conform", prompt),
        "bad-mode": ("-p", "--permission-mode", "conform", prompt),
        "no-prompt": ("-p",),
        "swallowed": ("-p", "--disallowedTools", "Bash", prompt),
        "partial-alone": ("-p", "--include-partial-messages", prompt),
        "input-alone": ("-p", "--input-format", "stream-json"),
        "replay-alone": ("-p", *STREAM_FLAGS, "--replay-user-messages", prompt),
        "bad-session": ("-p", "--session-id", "conform", prompt),
        "session-and-resume": (
            "-p",
            "--resume",
            UNKNOWN_SESSION_ID,
            "--session-id",
            MESSAGE_IDS[0],
            prompt,
        ),
        "unknown-text": ("-p", "--resume", UNKNOWN_SESSION_ID, prompt),
    }.items():
        await bench.run_command(name, "any", *argv)
    await bench.run_command(
        "unknown-stream", "yume", "-p", *STREAM_FLAGS, "--resume", UNKNOWN_SESSION_ID, prompt
    )
    await bench.run_command(
        "unknown-sdk",
        "sdk",
        *SDK_FLAGS,
        "--resume",
        UNKNOWN_SESSION_ID,
        script=_resume_unknown_session,
    )


async def _resume_unknown_session(wire: ClaudeProcess) -> None:
    """An unknown session must end the process although its stdin is open."""
    await wire.send_request("initialize", hooks=None)
    await wire.wait_for_end()


# -- as an SDK -------------------------------------------------------------------------------------


async def run_requests(bench: Runner) -> None:
    """The control protocol and stdin, in conversations without a turn."""
    await bench.run_command("control", "sdk", *SDK_FLAGS, script=_send_control_requests)
    await bench.run_command("eof", "sdk", *SDK_FLAGS)
    await bench.run_command("eof-positional", "sdk", *SDK_FLAGS, bench.options.prompt)
    await bench.run_command("odd-lines", "sdk", *SDK_FLAGS, script=_send_odd_lines)
    if bench.options.drop_in:
        await bench.run_command(
            "unknown-flag", "sdk", *SDK_FLAGS, UNKNOWN_FLAG, script=_initialize_and_close
        )
        for name, line in {
            "not-json": b"not json\n",
            "no-message": b'{"type":"user"}\n',
            "no-request": b'{"type":"control_request","request_id":"conform"}\n',
        }.items():
            await bench.run_command(name, "sdk", *SDK_FLAGS, script=_build_line_script(line))


async def _initialize_and_close(wire: ClaudeProcess) -> None:
    await wire.call("initialize", hooks=None)
    wire.close_stdin()


def _build_line_script(line: bytes) -> Script:
    async def script(wire: ClaudeProcess) -> None:
        await wire.send_bytes(line)
        await _initialize_and_close(wire)

    return script


async def _send_control_requests(wire: ClaudeProcess) -> None:
    await wire.call("initialize", hooks=None)
    await wire.call(UNKNOWN_SUBTYPE)
    await wire.call("interrupt")
    await wire.call("set_permission_mode", mode="conform")
    for subtype, (fields, _) in REQUESTS.items():
        await wire.call(subtype, **fields)
    wire.record_line_count("idle")
    wire.close_stdin()


async def _send_odd_lines(wire: ClaudeProcess) -> None:
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
    await wire.call("initialize", hooks=None)
    await wire.send({"type": "control_request", "request": {"subtype": "mcp_status"}})
    last = {
        "type": "control_request",
        "request_id": "conform_last",
        "request": {"subtype": "initialize"},
    }
    await wire.send_bytes(json.dumps(last).encode())
    wire.close_stdin()


async def run_conversation(bench: Runner) -> None:
    """Two messages, each when the one before is answered; a mode and a model that hold from then
    on.
    """
    prompt = bench.options.prompt

    async def script(wire: ClaudeProcess) -> None:
        await wire.call("initialize", hooks=None)
        wire.record_line_count("initialized")
        await wire.send(build_user_message(prompt))
        await wire.wait_for_line(is_result, "the first result")
        await wire.call("set_model", model=None)
        await wire.call("set_permission_mode", mode="acceptEdits")
        await wire.call("initialize", hooks=None)
        await wire.send(build_user_message([{"type": "text", "text": prompt}], session_id=""))
        await wire.wait_for_line(is_result, "the result of a message in blocks")
        wire.record_line_count("done")
        wire.close_stdin()

    await bench.run_command(
        "conversation", "sdk", *SDK_FLAGS, "--include-partial-messages", script=script
    )


async def run_queue(bench: Runner) -> None:
    """Everything at once, then the end of stdin, as the TypeScript SDK and the ACP adapter do;
    flags in each form.
    """
    prompt = bench.options.prompt

    async def script(wire: ClaudeProcess) -> None:
        first, second = (build_user_message(prompt, uuid=identity) for identity in MESSAGE_IDS)
        initialize = {
            "type": "control_request",
            "request_id": "conform_0",
            "request": {"subtype": "initialize"},
        }
        await wire.send(initialize, first, second)
        wire.close_stdin()

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
    await bench.run_command("queue", "sdk", *argv, script=script)


async def run_tools(bench: Runner) -> None:
    """The same call three times: denied, allowed, and interrupted while it waits for an answer."""
    prompt, chosen = bench.options.tool_prompt, bench.options.tool_prompt != TOOL_PROMPT

    async def script(wire: ClaudeProcess) -> None:
        asked: list[JsonObject] = []

        def allow(request: JsonObject) -> JsonObject | None:
            if request.get("subtype") != "can_use_tool":
                return {}
            asked.append(request)
            given = request.get("input")
            # Our own prompt asks for a harmless file. Anything else that a model calls is denied.
            if chosen or "conform" in json.dumps(given):
                return {"behavior": "allow", "updatedInput": given}
            return deny(request)

        def deny(request: JsonObject) -> JsonObject | None:
            return (
                {"behavior": "deny", "message": DENIAL_MESSAGE}
                if request.get("subtype") == "can_use_tool"
                else {}
            )

        def hold(request: JsonObject) -> JsonObject | None:
            return None if request.get("subtype") == "can_use_tool" else {}

        wire.answer_request = deny
        await wire.call("initialize", hooks=HOOKS)
        await wire.send(build_user_message(prompt))
        await wire.wait_for_line(is_result, "the result of a denied call")
        wire.answer_request = allow
        await wire.send(build_user_message(prompt))
        await wire.wait_for_line(is_result, "the result of an allowed call")
        if asked:
            wire.answer_request = hold
            await wire.send(build_user_message(prompt))
            await wire.wait_for_line(
                lambda value: is_result(value) or _is_permission_request(value),
                "a question or a result",
            )
            if not split_turns(wire.run)[-1].result:
                wire.record_line_count("held")
                await wire.call("interrupt")
                await wire.wait_for_line(is_result, "the result of an interrupted question")
        wire.close_stdin()

    await bench.run_command(
        "tools", "sdk", *SDK_FLAGS, "--permission-prompt-tool", "stdio", script=script
    )


def _is_permission_request(value: JsonObject) -> bool:
    request = value.get("request")
    return isinstance(request, dict) and request.get("subtype") == "can_use_tool"


async def run_interrupt(bench: Runner) -> None:
    """A turn that is interrupted while it writes, and the turn after it."""
    options = bench.options

    async def script(wire: ClaudeProcess) -> None:
        await wire.call("initialize", hooks=None)
        await wire.send(build_user_message(options.long_prompt))
        await wire.wait_for_line(_is_turn_output, "the first words")
        wire.record_line_count("interrupted")
        await wire.call("interrupt")
        await wire.wait_for_line(is_result, "the result of an interrupted turn")
        await wire.send(build_user_message(options.prompt))
        await wire.wait_for_line(is_result, "the result of the turn after an interrupt")
        wire.close_stdin()

    await bench.run_command(
        "interrupt", "sdk", *SDK_FLAGS, "--include-partial-messages", script=script
    )


def _is_turn_output(value: JsonObject) -> bool:
    """The first piece of a reply, or the end of its turn."""
    event = value.get("event")
    if value.get("type") == "stream_event" and isinstance(event, dict):
        return event.get("type") == "content_block_delta"
    return value.get("type") in ("assistant", "result") and bool(
        list_blocks(value) or is_result(value)
    )


# -- as Yume and scripts ---------------------------------------------------------------------------


async def run_sessions(bench: Runner) -> None:
    """A session that is begun, resumed, forked and continued, and the forms of output."""
    options, session = bench.options, str(uuid.uuid4())
    begun = await bench.run_command(
        "session",
        "yume",
        "--print",
        *STREAM_FLAGS,
        "--session-id",
        session,
        options.prompt,
        has_stdin=False,
    )
    await bench.run_command(
        "resume",
        "yume",
        "--print",
        *STREAM_FLAGS,
        "--resume",
        session,
        options.prompt,
        has_stdin=False,
    )
    await bench.run_command(
        "fork",
        "yume",
        "-p",
        *STREAM_FLAGS,
        f"--resume={session}",
        "--fork-session",
        options.prompt,
        has_stdin=False,
    )
    await bench.run_command(
        "continue", "yume", "-p", *STREAM_FLAGS, "--continue", options.prompt, has_stdin=False
    )
    await bench.run_command("session-again", "yume", "-p", "--session-id", session, options.prompt)
    listed = next((init.get("tools") for init in begun.objects if is_init(init)), None)
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    removed, limited = [*sorted(names, key=lambda name: name != "Bash"), "Bash", "Write"][:2]
    argv: tuple[str, ...] = ("-p", "--output-format", "json", "--verbose", options.prompt)
    argv += ("--disallowedTools", removed, f"{limited}(conform *)")
    await bench.run_command("json-verbose", "yume", *argv, script=_wait_silently)


async def run_outputs(bench: Runner) -> None:
    """Output formats other than the stream, without -p and with the prompt on stdin."""
    prompt = bench.options.prompt

    async def on_stdin(wire: ClaudeProcess) -> None:
        await wire.send_bytes(prompt.encode())
        wire.close_stdin()

    await bench.run_command("text", "yume", "--allowedTools=Read", prompt)
    await bench.run_command("json", "yume", "-p", "--output-format", "json", script=on_stdin)
    if bench.options.drop_in:
        # Yume gives no --verbose, which the real one wants (F2).
        await bench.run_command(
            "no-verbose", "yume", "--print", *STREAM_FLAGS[:2], prompt, has_stdin=False
        )
    limited = ("-p", *STREAM_FLAGS, "--max-turns", "1", bench.options.tool_prompt)
    await bench.run_command("max-turns", "yume", *limited, has_stdin=False)


async def run_ends(bench: Runner) -> None:
    """Turns that are ended from outside, and turns whose output is not read to the end."""
    argv = ("-p", *STREAM_FLAGS, "--include-partial-messages", bench.options.long_prompt)

    def signalled(name: str) -> Script:
        async def script(wire: ClaudeProcess) -> None:
            await wire.wait_for_line(_is_turn_output, "the first words")
            wire.send_signal(name)

        return script

    async def leave(wire: ClaudeProcess) -> None:
        await wire.wait_for_line(is_init, "init")
        await wire.stop_reading()

    await bench.run_command("sigterm", "yume", *argv, script=signalled("SIGTERM"), has_stdin=False)
    await bench.run_command("sigint", "yume", *argv, script=signalled("SIGINT"), has_stdin=False)
    await bench.run_command(
        "nobody-reads",
        "yume",
        "-p",
        *STREAM_FLAGS,
        bench.options.prompt,
        script=leave,
        has_stdin=False,
    )


SCENARIOS: tuple[Scenario, ...] = (
    run_mistakes,
    run_requests,
    run_sessions,
    run_conversation,
    run_queue,
    run_tools,
    run_interrupt,
    run_outputs,
    run_ends,
)

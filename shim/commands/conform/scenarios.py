"""Defines how the checked command is run for conformance rules: its arguments and its input.

Many rules check the same run. Each run imitates a frontend:

    sdk   a Claude Agent SDK: stream-json input, no -p, variables that identify the frontend
    yume  Yume or a script: -p, one turn per process
    any   the run does not depend on the frontend

The runs of one scenario execute one after another in the same folder, and may resume each other's
sessions. Different scenarios run in parallel.
"""

import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from shim.commands.conform.observations import split_run_into_turns
from shim.commands.conform.process import ClaudeProcess, CommandRun, JsonObject, is_result_line
from shim.core.claude.grammar import (
    get_delta,
    is_init_line,
    is_permission_request,
    list_content_blocks,
)
from shim.core.reading.values import as_list

PROMPT = "Reply with the one word ready. Use no tools."
TOOL_PROMPT = (
    "Create the file conform.txt in the working directory with the one word conform in it, with your tool for writing "
    "files. Then say done."
)
LONG_PROMPT = "Count from 1 to 300, one number a line. Use no tools."
DENIAL_MESSAGE = "conform: this call is denied on purpose"
UNKNOWN_SESSION_ID = (
    "00000000-0000-4000-8000-00000000c0de"  # the id of a session that never existed
)
MESSAGE_IDS = ("11111111-2222-4333-8444-00000000c0d1", "11111111-2222-4333-8444-00000000c0d2")
UNKNOWN_FLAG = "--conform-flag-that-nobody-knows"
UNKNOWN_SUBTYPE = "conform_unknown_subtype"
HOOKS = {
    "PreToolUse": [{"matcher": None, "hookCallbackIds": ["conform_before"]}],
    "Stop": [{"matcher": None, "hookCallbackIds": ["conform_stop"]}],
}
# Control requests that may be sent before the first turn, with their fields and the required
# response (C8): field types for a success, or the error text.
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
class ConformanceOptions:
    drop_in: bool = True
    sdk: bool = True
    yume: bool = True
    prompt: str = PROMPT
    tool_prompt: str = TOOL_PROMPT
    long_prompt: str = LONG_PROMPT

    def is_frontend_enabled(self, frontend: Frontend) -> bool:
        return {"any": True, "sdk": self.sdk, "yume": self.yume}[frontend]


class ScenarioRunner(Protocol):
    options: ConformanceOptions

    async def run_command(
        self,
        name: str,
        frontend: Frontend,
        *argv: str,
        script: "Script | None" = None,
        has_stdin: bool = True,
    ) -> CommandRun:
        """Run the command once. Without a script, stdin is closed immediately. Without `has_stdin`,
        the command gets no stdin.
        """


Script = Callable[[ClaudeProcess], Awaitable[None]]
Scenario = Callable[[ScenarioRunner], Awaitable[None]]


def build_user_message(content: object, **fields: object) -> JsonObject:
    """Build a user message in the form that the Python SDK writes."""
    message = {"role": "user", "content": content}
    return {
        "type": "user",
        "message": message,
        "parent_tool_use_id": None,
        "session_id": "default",
        **fields,
    }


async def _send_message_and_wait(
    claude_process: ClaudeProcess, content: object, description: str, **fields: object
) -> None:
    """Send a user message and wait for the result of its turn."""
    await claude_process.send_lines(build_user_message(content, **fields))
    await claude_process.wait_for_stdout_line(is_result_line, description)


async def _initialize(claude_process: ClaudeProcess) -> None:
    await claude_process.send_control_request_and_wait("initialize", hooks=None)


# -- without a turn --------------------------------------------------------------------------------


async def run_version_help_and_auth_commands(runner: ScenarioRunner) -> None:
    """Run commands that need no session. The first command runs alone, because it shows whether the
    program can be started.
    """
    await runner.run_command("version", "any", "--version", script=_wait_silently)
    await runner.run_command(
        "version-among", "any", "--model", "x", *STREAM_FLAGS, "-v", script=_wait_silently
    )
    await runner.run_command("help", "any", "--help")
    await runner.run_command("auth", "any", "auth", "status", "--json")


async def _wait_silently(claude_process: ClaudeProcess) -> None:
    """Keep stdin open without writing until the process closes its stdout."""
    await claude_process.wait_for_stdout_end()


async def run_invalid_arguments(runner: ScenarioRunner) -> None:
    """Run the command with arguments that must not start a turn."""
    prompt = runner.options.prompt
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
        await runner.run_command(name, "any", *argv)
    await runner.run_command(
        "unknown-stream", "yume", "-p", *STREAM_FLAGS, "--resume", UNKNOWN_SESSION_ID, prompt
    )
    await runner.run_command(
        "unknown-sdk",
        "sdk",
        *SDK_FLAGS,
        "--resume",
        UNKNOWN_SESSION_ID,
        script=_resume_unknown_session,
    )


async def _resume_unknown_session(claude_process: ClaudeProcess) -> None:
    """Resume an unknown session with stdin kept open, and wait until the command exits."""
    await claude_process.send_control_request("initialize", hooks=None)
    await claude_process.wait_for_stdout_end()


# -- as an SDK -------------------------------------------------------------------------------------


async def run_control_protocol(runner: ScenarioRunner) -> None:
    """Test the control protocol and stdin in conversations without a turn."""
    await runner.run_command("control", "sdk", *SDK_FLAGS, script=_send_control_requests)
    await runner.run_command("eof", "sdk", *SDK_FLAGS)
    await runner.run_command("eof-positional", "sdk", *SDK_FLAGS, runner.options.prompt)
    await runner.run_command("odd-lines", "sdk", *SDK_FLAGS, script=_send_odd_lines)
    if runner.options.drop_in:
        await runner.run_command(
            "unknown-flag", "sdk", *SDK_FLAGS, UNKNOWN_FLAG, script=_initialize_and_close
        )
        for name, line in {
            "not-json": b"not json\n",
            "no-message": b'{"type":"user"}\n',
            "no-request": b'{"type":"control_request","request_id":"conform"}\n',
        }.items():
            await runner.run_command(name, "sdk", *SDK_FLAGS, script=_build_line_script(line))


async def _initialize_and_close(claude_process: ClaudeProcess) -> None:
    await _initialize(claude_process)
    claude_process.close_stdin()


def _build_line_script(line: bytes) -> Script:
    async def script(claude_process: ClaudeProcess) -> None:
        await claude_process.send_bytes(line)
        await _initialize_and_close(claude_process)

    return script


async def _send_control_requests(claude_process: ClaudeProcess) -> None:
    await _initialize(claude_process)
    await claude_process.send_control_request_and_wait(UNKNOWN_SUBTYPE)
    await claude_process.send_control_request_and_wait("interrupt")
    await claude_process.send_control_request_and_wait("set_permission_mode", mode="conform")
    for subtype, (fields, _) in REQUESTS.items():
        await claude_process.send_control_request_and_wait(subtype, **fields)
    claude_process.record_stdout_line_count("idle")
    claude_process.close_stdin()


async def _send_odd_lines(claude_process: ClaudeProcess) -> None:
    """Send lines that must be ignored, a request without an id, and a last line without a newline."""
    ignored_lines = (
        {"type": "conform_unknown_type", "x": [1]},
        {"type": "keep_alive"},
        {"type": "control_cancel_request", "request_id": "conform"},
        {"type": "update_environment_variables", "variables": {}},
    )
    await claude_process.send_bytes(
        b"\n  \n" + b"".join(json.dumps(line).encode() + b"\n" for line in ignored_lines)
    )
    await _initialize(claude_process)
    await claude_process.send_lines(
        {"type": "control_request", "request": {"subtype": "mcp_status"}}
    )
    last_line = {
        "type": "control_request",
        "request_id": "conform_last",
        "request": {"subtype": "initialize"},
    }
    await claude_process.send_bytes(json.dumps(last_line).encode())
    claude_process.close_stdin()


async def run_conversation(runner: ScenarioRunner) -> None:
    """Run a conversation of two turns. Between the turns, change the model and the permission mode."""
    prompt = runner.options.prompt

    async def script(claude_process: ClaudeProcess) -> None:
        await _initialize(claude_process)
        claude_process.record_stdout_line_count("initialized")
        await _send_message_and_wait(claude_process, prompt, "the first result")
        await claude_process.send_control_request_and_wait("set_model", model=None)
        await claude_process.send_control_request_and_wait(
            "set_permission_mode", mode="acceptEdits"
        )
        await _initialize(claude_process)
        blocks = [{"type": "text", "text": prompt}]
        await _send_message_and_wait(
            claude_process, blocks, "the result of a message with content blocks", session_id=""
        )
        claude_process.record_stdout_line_count("done")
        claude_process.close_stdin()

    await runner.run_command(
        "conversation", "sdk", *SDK_FLAGS, "--include-partial-messages", script=script
    )


async def run_queued_messages(runner: ScenarioRunner) -> None:
    """Send all messages at once and close stdin, as the TypeScript SDK and the ACP adapter do.
    The flags of this run cover all accepted spellings.
    """
    prompt = runner.options.prompt

    async def script(claude_process: ClaudeProcess) -> None:
        first_message, second_message = (
            build_user_message(prompt, uuid=message_id) for message_id in MESSAGE_IDS
        )
        initialize = {
            "type": "control_request",
            "request_id": "conform_0",
            "request": {"subtype": "initialize"},
        }
        await claude_process.send_lines(initialize, first_message, second_message)
        claude_process.close_stdin()

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
    await runner.run_command("queue", "sdk", *argv, script=script)


async def run_tool_calls(runner: ScenarioRunner) -> None:
    """Request the same tool call three times. The call is first denied, then allowed, then
    interrupted during its permission prompt.
    """
    prompt = runner.options.tool_prompt
    has_custom_prompt = runner.options.tool_prompt != TOOL_PROMPT

    async def script(claude_process: ClaudeProcess) -> None:
        permission_requests: list[JsonObject] = []

        def allow(request: JsonObject) -> JsonObject | None:
            if not is_permission_request(request):
                return {}
            permission_requests.append(request)
            tool_input = request.get("input")
            # The default prompt asks the model to create a harmless file. All other tool calls are denied.
            if has_custom_prompt or "conform" in json.dumps(tool_input):
                return {"behavior": "allow", "updatedInput": tool_input}
            return deny(request)

        def deny(request: JsonObject) -> JsonObject | None:
            if is_permission_request(request):
                return {"behavior": "deny", "message": DENIAL_MESSAGE}
            return {}

        def hold(request: JsonObject) -> JsonObject | None:
            if is_permission_request(request):
                return None
            return {}

        claude_process.answer_request = deny
        await claude_process.send_control_request_and_wait("initialize", hooks=HOOKS)
        await _send_message_and_wait(claude_process, prompt, "the result of a denied call")
        claude_process.answer_request = allow
        await _send_message_and_wait(claude_process, prompt, "the result of an allowed call")
        if permission_requests:
            claude_process.answer_request = hold
            await claude_process.send_lines(build_user_message(prompt))
            await claude_process.wait_for_stdout_line(
                lambda value: is_result_line(value) or is_permission_request(value.get("request")),
                "a permission prompt or a result",
            )
            if not split_run_into_turns(claude_process.run)[-1].result:
                claude_process.record_stdout_line_count("held")
                await claude_process.send_control_request_and_wait("interrupt")
                await claude_process.wait_for_stdout_line(
                    is_result_line,
                    "the result of a turn that was interrupted at a permission prompt",
                )
        claude_process.close_stdin()

    await runner.run_command(
        "tools", "sdk", *SDK_FLAGS, "--permission-prompt-tool", "stdio", script=script
    )


async def run_interrupted_turn(runner: ScenarioRunner) -> None:
    """Interrupt a turn during its reply, and run another turn afterwards."""
    options = runner.options

    async def script(claude_process: ClaudeProcess) -> None:
        await _initialize(claude_process)
        await claude_process.send_lines(build_user_message(options.long_prompt))
        await claude_process.wait_for_stdout_line(_is_turn_output, "the first words of the reply")
        claude_process.record_stdout_line_count("interrupted")
        await claude_process.send_control_request_and_wait("interrupt")
        await claude_process.wait_for_stdout_line(
            is_result_line, "the result of an interrupted turn"
        )
        await _send_message_and_wait(
            claude_process, options.prompt, "the result of the turn after an interrupt"
        )
        claude_process.close_stdin()

    await runner.run_command(
        "interrupt", "sdk", *SDK_FLAGS, "--include-partial-messages", script=script
    )


def _is_turn_output(value: JsonObject) -> bool:
    """Return whether a line is part of a reply or is the result of a turn."""
    if value.get("type") == "assistant" and list_content_blocks(value):
        return True
    if is_result_line(value):
        return True
    return bool(get_delta(value))


# -- as Yume and scripts ---------------------------------------------------------------------------


async def run_resumed_sessions(runner: ScenarioRunner) -> None:
    """Start, resume, fork and continue a session."""
    options = runner.options
    session_id = str(uuid.uuid4())
    first_run = await runner.run_command(
        "session",
        "yume",
        "--print",
        *STREAM_FLAGS,
        "--session-id",
        session_id,
        options.prompt,
        has_stdin=False,
    )
    await runner.run_command(
        "resume",
        "yume",
        "--print",
        *STREAM_FLAGS,
        "--resume",
        session_id,
        options.prompt,
        has_stdin=False,
    )
    await runner.run_command(
        "fork",
        "yume",
        "-p",
        *STREAM_FLAGS,
        f"--resume={session_id}",
        "--fork-session",
        options.prompt,
        has_stdin=False,
    )
    await runner.run_command(
        "continue", "yume", "-p", *STREAM_FLAGS, "--continue", options.prompt, has_stdin=False
    )
    await runner.run_command(
        "session-again", "yume", "-p", "--session-id", session_id, options.prompt
    )
    init_line = next(filter(is_init_line, first_run.json_lines), {})
    tool_names = [name for name in as_list(init_line.get("tools")) if isinstance(name, str)]
    removed_tool, limited_tool = [
        *sorted(tool_names, key=lambda name: name != "Bash"),
        "Bash",
        "Write",
    ][:2]
    argv: tuple[str, ...] = ("-p", "--output-format", "json", "--verbose", options.prompt)
    argv += ("--disallowedTools", removed_tool, f"{limited_tool}(conform *)")
    await runner.run_command("json-verbose", "yume", *argv, script=_wait_silently)


async def run_output_formats(runner: ScenarioRunner) -> None:
    """Run the command with output formats other than stream-json, without -p, and with a prompt on
    stdin.
    """
    prompt = runner.options.prompt

    async def write_prompt(claude_process: ClaudeProcess) -> None:
        await claude_process.send_bytes(prompt.encode())
        claude_process.close_stdin()

    await runner.run_command("text", "yume", "--allowedTools=Read", prompt)
    await runner.run_command("json", "yume", "-p", "--output-format", "json", script=write_prompt)
    if runner.options.drop_in:
        # Like Yume, this run does not pass --verbose, which the real claude requires (F2).
        await runner.run_command(
            "no-verbose", "yume", "--print", *STREAM_FLAGS[:2], prompt, has_stdin=False
        )
    limited_argv = ("-p", *STREAM_FLAGS, "--max-turns", "1", runner.options.tool_prompt)
    await runner.run_command("max-turns", "yume", *limited_argv, has_stdin=False)


async def run_terminated_turns(runner: ScenarioRunner) -> None:
    """Stop turns with a signal, and close stdout during a turn."""
    argv = ("-p", *STREAM_FLAGS, "--include-partial-messages", runner.options.long_prompt)

    def build_signal_script(signal_name: str) -> Script:
        async def script(claude_process: ClaudeProcess) -> None:
            await claude_process.wait_for_stdout_line(
                _is_turn_output, "the first words of the reply"
            )
            claude_process.send_signal(signal_name)

        return script

    async def stop_reading(claude_process: ClaudeProcess) -> None:
        await claude_process.wait_for_stdout_line(is_init_line, "init")
        await claude_process.close_stdout()

    await runner.run_command(
        "sigterm", "yume", *argv, script=build_signal_script("SIGTERM"), has_stdin=False
    )
    await runner.run_command(
        "sigint", "yume", *argv, script=build_signal_script("SIGINT"), has_stdin=False
    )
    await runner.run_command(
        "nobody-reads",
        "yume",
        "-p",
        *STREAM_FLAGS,
        runner.options.prompt,
        script=stop_reading,
        has_stdin=False,
    )


SCENARIOS: tuple[Scenario, ...] = (
    run_invalid_arguments,
    run_control_protocol,
    run_resumed_sessions,
    run_conversation,
    run_queued_messages,
    run_tool_calls,
    run_interrupted_turn,
    run_output_formats,
    run_terminated_turns,
)

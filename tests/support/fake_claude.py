"""A claude-like command that follows every rule of the contract that can be observed from outside.

FAKE_DEFECT names a single defect. The program runs with `-I -S`, so that a start takes little time.
It answers at once. A prompt that asks for a file makes a call, and a reply to a prompt that asks to
count continues until it is interrupted.
"""

import json
import os
import select
import signal
import sys

DEFECT = os.environ.get("FAKE_DEFECT", "")
VARIADIC = (
    "--allowedTools",
    "--disallowedTools",
    "--tools",
    "--add-dir",
    "--mcp-config",
    "--betas",
)
SINGLE = [
    "--output-format",
    "--input-format",
    "--model",
    "--permission-mode",
    "--session-id",
    "--resume",
    "--max-turns",
    "--system-prompt",
    "--permission-prompt-tool",
]
FLAGS = [
    "-p",
    "--print",
    "--verbose",
    "--include-partial-messages",
    "--replay-user-messages",
    "--fork-session",
    "--continue",
]
TOOLS = ["Bash", "Read", "Write"]
USAGE = dict.fromkeys(
    ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), 1
)
WAIT_SECONDS = 10.0  # for a signal or a closed pipe, if the conformance check fails to send one
LONG = "x" * 1_100_000
REPLAY = {
    "set_max_thinking_tokens": None, "get_context_usage": {}, "get_settings": {}, "apply_flag_settings": None,
    "stop_task": {}, "get_session_cost": {}, "list_permission_rules": {}, "background_tasks": {}, "get_usage": {},
    "mcp_status": {"mcpServers": []}, "mcp_set_servers": {"added": [], "removed": [], "errors": {}},
    "list_models": {"models": []}, "cancel_async_message": {"cancelled": False},
    "get_binary_version": {"version": "2.1.0"}, "rewind_files": "File rewinding is not enabled.",
    "mcp_reconnect": "Server not found: x", "mcp_toggle": "Server not found: x",
}  # fmt: skip


def create_uuid():
    """Create a UUID of version 4 without importing `uuid`, which would take most of the run time."""
    value = bytearray(os.urandom(16))
    value[6], value[8] = value[6] & 0x0F | 0x40, value[8] & 0x3F | 0x80
    text = value.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def has_defect(name):
    return name == DEFECT


# Bytes that a defect prints after the init of a turn.
NOISE = {
    "escapes": b'{"type":"\x1b[31m\\u001b]52;c;ZXZpbA==\\u0007[red]x[/red]\\u202e"\n',
    "deep": b"[" * 100_000 + b"\n",
}


class Fake:
    def __init__(self, flags, prompt):
        self.flags, self.prompt = flags, prompt
        self.output = flags.get("--output-format", "text")
        self.partial = "--include-partial-messages" in flags
        self.sdk = flags.get("--input-format") == "stream-json"
        self.model, self.mode = (
            flags.get("--model", "m1"),
            flags.get("--permission-mode", "default"),
        )
        self.session = create_uuid()
        self.failed = False
        self.emitted_lines = []
        self.waiting = []
        self.stopped = False
        self.hooks = {}

    # -- lines out ---------------------------------------------------------------------------------

    def emit_line(self, kind, **fields):
        line = {"type": kind, **fields, "session_id": self.session, "uuid": create_uuid()} | {
            key: fields[key] for key in ("uuid",) if key in fields
        }
        if has_defect("message-is-text") and kind == "assistant":
            line["message"] = "hello"
        if self.output == "stream-json":
            write_stdout(json.dumps(line).encode() + b"\n")
        self.emitted_lines.append(line)
        return line

    def emit_stream_event(self, **event):
        if self.partial:
            self.emit_line("stream_event", event=event, parent_tool_use_id=None)

    def emit_init(self):
        tools = list(TOOLS)
        if "--tools" in self.flags and not has_defect("tools-kept"):
            tools = [name for name in tools if name in self.flags["--tools"]]
        for rule in self.flags.get("--disallowedTools", ()):
            name = rule.partition("(")[0] if has_defect("specifier-removes") else rule
            if name in tools and not has_defect("disallowed-kept"):
                tools.remove(name)
        fields = {
            "mcp_servers": [],
            "slash_commands": [],
            "apiKeySource": "none",
            "model": self.model,
        }
        self.emit_line(
            "system",
            subtype="init",
            cwd=os.getcwd(),
            tools=tools,
            permissionMode=self.mode,
            **fields,
        )
        if self.output == "stream-json":
            write_stdout(NOISE.get(DEFECT, b""))

    def emit_block(self, block, index=0):
        kind = block["type"]
        message = {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [block],
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": USAGE}
        empty = {"text": {"text": ""}, "tool_use": {"input": {}}}[kind]
        self.emit_stream_event(type="content_block_start", index=index, content_block=block | empty)
        text = block["text"] if kind == "text" else json.dumps(block["input"])
        name = "text" if kind == "text" else "partial_json"
        for part in (text[:3], text[3:]):
            delta = {"type": f"{'text' if kind == 'text' else 'input_json'}_delta", name: part}
            self.emit_stream_event(type="content_block_delta", index=index, delta=delta)
        if has_defect("line-behind-block"):
            self.emit_stream_event(type="content_block_stop", index=index)
        self.emit_line("assistant", message=message, parent_tool_use_id=None)
        if not has_defect("line-behind-block"):
            self.emit_stream_event(type="content_block_stop", index=index)

    def begin_reply(self):
        self.message_id = f"msg_{os.urandom(4).hex()}"
        start = {"id": self.message_id, "type": "message", "role": "assistant", "usage": USAGE}
        self.emit_stream_event(type="message_start", message=start)

    def end_reply(self, reason="end_turn"):
        delta = {"stop_reason": reason, "stop_sequence": None}
        self.emit_stream_event(type="message_delta", delta=delta, usage={"output_tokens": 1})
        self.emit_stream_event(type="message_stop")

    def emit_result(self, text="", subtype="success", errors=None, failed=False):
        self.failed = failed or errors is not None
        outcome_fields = {"result": text} if errors is None else {"errors": errors}
        counts = {
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 0 if self.session == self.flags.get("NOBODY") else 1,
        }
        fields = {
            "stop_reason": None,
            "total_cost_usd": 0,
            "usage": USAGE,
            "modelUsage": {},
            "permission_denials": [],
        }
        self.emit_line(
            "result", subtype=subtype, is_error=self.failed, **outcome_fields, **counts, **fields
        )
        if self.output == "stream-json" and not self.sdk and not has_defect("no-terminator"):
            write_stdout(b'{"type":"message_stop"}\n')

    # -- turns -------------------------------------------------------------------------------------

    def run_turn(self, prompt, echo=None):
        self.emit_init()
        if echo is not None and "--replay-user-messages" in self.flags:
            self.emit_line(
                "user", message=echo["message"], uuid=echo.get("uuid", create_uuid()), isReplay=True
            )
        if has_defect("says-escapes"):
            prompt = "\x1b]52;c;ZXZpbA==\x07[red]x[/red]\u202e"
        if DEFECT.startswith("api-"):
            message = {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "<synthetic>",
                "usage": USAGE,
            }
            message |= {
                "content": [{"type": "text", "text": "API Error: 500"}],
                "stop_reason": "stop_sequence",
            }
            if not has_defect("api-silent"):
                self.emit_line(
                    "assistant", message=message, parent_tool_use_id=None, error="server_error"
                )
            self.emit_result("API Error: 500", failed=True)
        elif "Count" in prompt:
            self.run_count_turn()
        elif "file" in prompt:
            self.write_file()
        else:
            self.begin_reply()
            self.emit_block({"type": "text", "text": "ready"})
            self.end_reply()
            if has_defect("nobody-reads"):
                self.wait_for_reader_to_leave()
            self.emit_result("ready")

    def wait_for_reader_to_leave(self):
        poll = select.poll()
        poll.register(1, select.POLLERR)
        if poll.poll(WAIT_SECONDS * 1000):
            os.write(1, b"x" * 10)  # raises BrokenPipeError, which is not caught

    def run_count_turn(self):
        if not self.sdk:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            import subprocess

            child = subprocess.Popen(
                ["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL
            )
        self.begin_reply()
        self.emit_stream_event(
            type="content_block_start", index=0, content_block={"type": "text", "text": ""}
        )
        self.emit_stream_event(
            type="content_block_delta", index=0, delta={"type": "text_delta", "text": "1 2"}
        )
        if self.sdk:
            while not self.stopped and (line := self.read_line()) is not None:
                self.accept_line(line)
        else:
            caught = signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, WAIT_SECONDS)
            if not has_defect("orphan"):
                child.kill()
                child.wait()
            if caught and caught.si_signo == signal.SIGTERM:
                sys.exit(0 if has_defect("sigterm-0") else 143)
        self.stopped = False
        self.reply_cut()
        if has_defect("interrupt-ignored"):
            self.emit_result("1 2 3")
            return
        if not (has_defect("sigint-silent") and not self.sdk):
            content = [{"type": "text", "text": "[Request interrupted by user]"}]
            self.emit_line(
                "user", message={"role": "user", "content": content}, parent_tool_use_id=None
            )
        self.emit_result(subtype="error_during_execution", errors=["interrupted"])
        if not self.sdk:
            self.failed = has_defect("sigint-1")

    def reply_cut(self):
        message = {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "usage": USAGE,
        }
        message |= {
            "content": [{"type": "text", "text": "1 2"}],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self.emit_line("assistant", message=message, parent_tool_use_id=None)
        self.emit_stream_event(type="content_block_stop", index=0)
        self.end_reply(None)

    def write_file(self):
        call_id = f"toolu_{os.urandom(4).hex()}"
        tool_input = {"file_path": "conform.txt", "content": "conform"}
        self.begin_reply()
        call = {"type": "tool_use", "id": call_id, "name": "Write", "input": tool_input}
        answer = None
        if has_defect("question-first"):
            answer = self.ask_permission(call_id, tool_input)
        self.emit_block(call)
        self.end_reply("tool_use")
        if answer is None:
            answer = self.ask_permission(call_id, tool_input)
        if self.stopped:
            self.stopped = False
            self.emit_tool_result(call_id, "interrupted", True)
            self.emit_line(
                "user",
                message={
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "[Request interrupted by user for tool use]"}
                    ],
                },
            )
            self.emit_result(subtype="error_during_execution", errors=["interrupted"])
            return
        allowed = answer.get("behavior") == "allow"
        self.emit_tool_result(
            call_id, "written" if allowed else answer.get("message", "denied"), not allowed
        )
        if self.flags.get("--max-turns") == "1" and not has_defect("no-limit"):
            self.emit_result(
                subtype="error_max_turns", errors=["Reached maximum number of turns (1)"]
            )
            return
        self.begin_reply()
        self.emit_block({"type": "text", "text": "done"})
        self.end_reply()
        if "Stop" in self.hooks:
            self.send_request(
                "hook_callback", callback_id="conform_stop", input={"hook_event_name": "Stop"}
            )
        self.emit_result("done")

    def emit_tool_result(self, call_id, content, failed):
        tool_use_result = (
            f"Error: {content}" if failed else {"filePath": "conform.txt", "content": "conform"}
        )
        block = {
            "type": "tool_result",
            "tool_use_id": call_id,
            "content": content,
            "is_error": failed,
        }
        self.emit_line(
            "user",
            message={"role": "user", "content": [block]},
            parent_tool_use_id=None,
            tool_use_result=tool_use_result,
        )

    def ask_permission(self, call_id, tool_input):
        if "PreToolUse" in self.hooks:
            self.send_request(
                "hook_callback",
                callback_id="conform_before",
                input={"hook_event_name": "PreToolUse"},
            )
        if "--permission-prompt-tool" not in self.flags and not (
            has_defect("asks-unasked") and self.sdk
        ):
            return {"behavior": "allow"}
        return self.send_request(
            "can_use_tool", tool_name="Write", input=tool_input, tool_use_id=call_id
        )

    # -- the control protocol ----------------------------------------------------------------------

    def send_request(self, subtype, **fields):
        request_id = create_uuid()
        line = {
            "type": "control_request",
            "request_id": request_id,
            "request": {"subtype": subtype, **fields},
        }
        write_stdout(json.dumps(line).encode() + b"\n")
        while (line := self.read_line()) is not None:
            if (
                line.get("type") == "control_response"
                and line["response"]["request_id"] == request_id
            ):
                return line["response"]["response"]
            self.accept_line(line, question=request_id)
            if self.stopped:
                break
        return {}

    def read_line(self):
        while raw := sys.stdin.buffer.readline():
            if not raw.strip():
                if has_defect("blank-is-fatal"):
                    sys.exit(1)
                continue
            if not raw.endswith(b"\n") and has_defect("last-line-lost"):
                return None
            try:
                return json.loads(raw)
            except ValueError:
                if has_defect("not-json-is-fatal"):
                    sys.exit(1)
        return None

    def accept_line(self, line, question=None):
        kind = line.get("type")
        if kind == "user" and isinstance(line.get("message"), dict):
            self.waiting.append(line)
        elif kind == "control_request" and isinstance(line.get("request"), dict):
            self.answer_request(line, question)

    def answer_request(self, line, question):
        request, request_id = line["request"], line.get("request_id")
        subtype = request.get("subtype")
        body, error = None, None
        if subtype == "initialize":
            self.hooks = request.get("hooks") or {}
            self.initialize_count = getattr(self, "initialize_count", 0) + 1
            body = {
                "commands": [],
                "agents": [],
                "output_style": "default",
                "available_output_styles": ["default"],
            }
            model = {"value": "default", "displayName": "Default", "description": "d"}
            body |= {"models": [model], "account": {}}
            if self.initialize_count > 1 and has_defect("initialize-once"):
                body = {}
            error = "no" if has_defect("initialize-error") else None
        elif subtype == "interrupt":
            body = {"still_queued": []}
            if has_defect("no-interrupt"):
                error = "no"
            elif question and not has_defect("question-stays"):
                write_stdout(
                    json.dumps({"type": "control_cancel_request", "request_id": question}).encode()
                    + b"\n"
                )
            if has_defect("idle-interrupt-talks"):
                self.emit_line(
                    "user", message={"role": "user", "content": "[Request interrupted by user]"}
                )
            self.stopped = True
        elif subtype == "set_model":
            body = (
                {}
                if has_defect("set-model-silent")
                else {"model": "m2" if has_defect("set-model-lost") else self.model}
            )
        elif subtype == "set_permission_mode":
            body, error = self.set_mode(request["mode"])
        elif subtype in REPLAY:
            body = REPLAY[subtype]
            if isinstance(body, str):
                body, error = None, body
            if has_defect("mcp-status-empty") and subtype == "mcp_status":
                body = {}
            if has_defect("rewinds") and subtype == "rewind_files":
                error = None
        elif has_defect("unknown-unanswered"):
            return
        elif not has_defect("unknown-succeeds"):
            error = f"Unsupported control request subtype: {subtype}"
        if request_id is None and has_defect("no-id-unanswered"):
            return
        if has_defect("wrong-id") and subtype != "initialize":
            request_id = "another"
        response = {"subtype": "success", "request_id": request_id, "response": body}
        if error is not None:
            response = {"subtype": "error", "request_id": request_id, "error": error}
            if has_defect("error-without-text"):
                response.pop("error")
        write_stdout(
            json.dumps({"type": "control_response", "response": response}).encode() + b"\n"
        )
        if subtype == "set_permission_mode" and error is None and not has_defect("mode-unsaid"):
            self.emit_line("system", subtype="status", status=None, permissionMode=self.mode)

    def set_mode(self, mode):
        if mode not in ("default", "plan", "acceptEdits") and not has_defect("any-mode"):
            return None, "Cannot set permission mode"
        if has_defect("mode-refused"):
            return None, "this agent has no such mode"
        if not has_defect("mode-lost"):
            self.mode = mode
        return {"mode": mode}, None

    def run_conversation(self):
        if has_defect("early-init"):
            self.emit_init()
        if has_defect("takes-positional") and self.prompt:
            self.run_turn(self.prompt)
        ended = False
        while not ended or self.waiting:
            if not self.waiting:
                line = self.read_line()
                ended = line is None
                if line is not None:
                    if (
                        line.get("type") == "conform_unknown_type"
                        and has_defect("unknown-type-is-fatal")
                    ) or (
                        line.get("type") == "user"
                        and "message" not in line
                        and has_defect("no-message-is-fatal")
                    ):
                        return 1
                    self.accept_line(line)
                    self.stopped = False
                continue
            message = self.waiting.pop(0)
            content = message["message"]["content"]
            if isinstance(content, list):
                if has_defect("blocks-ignored"):
                    continue
                content = content[0]["text"]
            while "--replay-user-messages" in self.flags and not ended and not self.waiting:
                # Lines that arrive together are all parsed before the first one is answered.
                line = self.read_line()
                ended = line is None
                if line is not None:
                    self.accept_line(line)
            if self.waiting and has_defect("last-first"):
                self.waiting, message = [message], self.waiting[0]
            self.run_turn(content, message)
            if has_defect("one-message-only") or has_defect("leaves-after-result"):
                break
            if has_defect("leaves-after-interrupt") and self.failed:
                break
        if DEFECT == "no-newline" and self.emitted_lines:
            write_stdout(b'{"type":"conform"}')
        return self.get_exit_status()

    def get_exit_status(self):
        if has_defect("error-exit-0"):
            return 0
        return 1 if has_defect("good-exit-1") else int(self.failed)


def write_stdout(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def exit_with_error(sentence):
    sys.stderr.write(sentence + "\n")
    sys.exit(0 if has_defect("mistakes-exit-0") else 1)


def parse_args(args):
    flags, positional, args = {}, [], list(args)
    while args:
        arg = args.pop(0)
        if arg == "--":
            positional += args
            break
        name, joined, value = arg.partition("=")
        if not arg.startswith("-"):
            positional.append(arg)
        elif joined and has_defect("no-equals"):
            exit_with_error(f"error: unknown option '{arg}'")
        elif name in VARIADIC:
            values = flags.setdefault(name, [])
            if joined:
                values.append(value)
            elif has_defect("not-variadic"):
                values.append(args.pop(0))
            else:
                while args and not args[0].startswith("-"):
                    values.append(args.pop(0))
        elif name in SINGLE:
            flags[name] = value if joined else args.pop(0)
        elif name in FLAGS:
            flags[name] = True
        elif has_defect("strict-flags"):
            exit_with_error(f"error: unknown option '{arg}'")
    return flags, next((arg for arg in positional if arg), "")


def run_cli_command(args):
    if "--version" in args or "-v" in args:
        if has_defect("version-reads"):
            sys.stdin.read()
        if has_defect("version-only-first") and args[0] != "--version":
            return
        write_stdout(
            {"version-text": b"claude 2.1\n", "version-old": b"1.9.9 (Claude Code)\n"}.get(
                DEFECT, b"2.1.0 (Claude Code)\n"
            )
        )
        sys.exit(0)
    if args == ["--help"]:
        write_stdout(
            b""
            if has_defect("no-help")
            else " ".join((*VARIADIC, *SINGLE, *FLAGS)).encode() + b"\n"
        )
        sys.exit(0)
    if args[:1] == ["auth"]:
        write_stdout(
            b"ready\n"
            if has_defect("auth-is-a-prompt")
            else b'{"loggedIn": %s}\n' % (b"{}" if has_defect("auth-unsaid") else b"true")
        )
        sys.exit(int(has_defect("auth-exit-1")))


def check_flags(flags, prompt):
    """Exit with an error for wrong flags, as the real claude does."""
    output, stream = flags.get("--output-format", "text"), flags.get("--input-format")
    if output not in ("text", "json", "stream-json") and not has_defect("bad-values-pass"):
        exit_with_error("error: option '--output-format <format>' argument is invalid")
    if flags.get("--permission-mode", "plan") not in (
        "default",
        "plan",
        "acceptEdits",
    ) and not has_defect("bad-values-pass"):
        exit_with_error(
            ""
            if has_defect("bad-values-silent")
            else "error: option '--permission-mode <mode>' argument is invalid"
        )
    for name, wrong in {
        "--include-partial-messages": output != "stream-json",
        "--replay-user-messages": stream is None,
    }.items():
        if name in flags and wrong and not has_defect("flags-alone-pass"):
            exit_with_error(f"Error: {name} requires more")
    if stream and output != "stream-json":
        exit_with_error("Error: --input-format=stream-json requires output-format=stream-json.")
    if output == "stream-json" and "--verbose" not in flags and has_defect("wants-verbose"):
        exit_with_error("Error: it requires --verbose")
    if not ({"-p", "--print"} & flags.keys()) and has_defect("needs-print"):
        exit_with_error("Error: this is not a terminal")


def choose_session(fake, flags):
    """Return the id of the session. A file in the working directory lists earlier sessions."""
    try:
        with open(".held") as file:
            existing_ids = file.read().split()
    except OSError:
        existing_ids = []
    chosen, resumed = flags.get("--session-id"), flags.get("--resume")
    if chosen is not None and len(chosen) != 36:
        exit_with_error("Error: Invalid session ID. Must be a valid UUID.")
    if chosen and resumed and "--fork-session" not in flags:
        exit_with_error(
            "Error: --session-id with --continue or --resume also needs --fork-session."
        )
    if chosen in existing_ids and not has_defect("session-twice"):
        exit_with_error(f"Error: Session ID {chosen} is already in use.")
    if resumed and resumed not in existing_ids and not has_defect("unknown-resumes"):
        sentence = f"No conversation found with session ID: {resumed}"
        if fake.output == "stream-json" or has_defect("unknown-in-text"):
            fake.session, fake.output, flags["NOBODY"] = resumed, "stream-json", resumed
            if has_defect("unknown-with-init"):
                fake.emit_init()
            fake.emit_result(subtype="error_during_execution", errors=[sentence])
        if not has_defect("unknown-unsaid"):
            sys.stderr.write(sentence + "\n")
        sys.exit(int(not has_defect("error-exit-0")))
    if chosen and not has_defect("other-session"):
        fake.session = chosen
    elif resumed and ("--fork-session" not in flags or has_defect("fork-is-the-same")):
        fake.session = resumed
    elif "--continue" in flags and existing_ids and not has_defect("continue-begins"):
        fake.session = existing_ids[-1]
    with open(".held", "a") as file:
        file.write(fake.session + "\n")


def main():
    args = sys.argv[1:]
    run_cli_command(args)
    flags, prompt = parse_args(args)
    check_flags(flags, prompt)
    fake = Fake(flags, prompt)
    choose_session(fake, flags)
    if fake.sdk:
        sys.exit(fake.run_conversation())
    if (not prompt and not has_defect("stdin-unread")) or has_defect("waits-for-stdin"):
        prompt += sys.stdin.read().strip()
    if not prompt and not has_defect("no-prompt-passes"):
        exit_with_error(
            "Error: Input must be provided either through stdin or as a prompt argument when using --print"
        )
    try:
        fake.run_turn(prompt)
    except BrokenPipeError:
        if has_defect("nobody-reads"):
            raise
        sys.stdout = None
        os._exit(0)
    if fake.output == "text":
        write_stdout(
            b""
            if has_defect("text-empty")
            else json.dumps(fake.emitted_lines[-1]).encode()
            if has_defect("text-is-json")
            else b"ready\n"
        )
    elif fake.output == "json" and "--verbose" in flags:
        write_stdout(
            json.dumps(
                fake.emitted_lines[-1] if has_defect("verbose-is-one") else fake.emitted_lines
            ).encode()
        )
    elif fake.output == "json":
        write_stdout(
            b"".join(
                json.dumps(line).encode() + b"\n"
                for line in (
                    fake.emitted_lines if has_defect("json-is-many") else fake.emitted_lines[-1:]
                )
            )
        )
    sys.exit(fake.get_exit_status())


if __name__ == "__main__":
    main()

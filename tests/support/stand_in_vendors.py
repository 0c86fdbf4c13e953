"""Stand-ins for vendors' programs that implement exactly the effects of each vendor's permission
arguments.

A stand-in gets only the command line and the environment from the launch code. Its model makes some
calls, and `ran` contains the calls that took effect. `tests/e2e/test_permissions.py` tests the real
programs with the same table.
"""

from __future__ import annotations

import fnmatch
import functools
import io
import json
import os
import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shim.conversation import tool_hook
from shim.core.reading.json_text import dump_json

EDITS = ("Write", "Edit")
MCP_TOOL = "mcp__srv__make"  # the tool of an MCP server


@dataclass(frozen=True)
class StandInCall:
    """A call of a model, with Claude's tool name. `target` is the file that a shell command
    changes, or "".
    """

    tool: str  # Bash, Read, Write, Edit, WebFetch or MCP_TOOL
    argument: str  # a command, a path or an address; "" for MCP_TOOL
    target: str = ""

    @property
    def changes(self) -> bool:
        """Return whether a file is changed."""
        return self.tool in EDITS or bool(self.target)


class StandIn:
    """A program that makes its calls when it is started, prints nothing and exits.

    `names` are its own names of Claude's tools.
    """

    names: ClassVar[Mapping[str, str]] = {}
    waits = False

    def __init__(
        self,
        calls: Sequence[StandInCall],
        command: Sequence[str],
        environment: Mapping[str, str],
        cwd: str,
    ) -> None:
        self.calls = calls
        self.args = list(command[1:])
        self.environment = environment
        self.cwd = cwd
        self.ran: set[StandInCall] = set()

    def build_greeting(self) -> bytes:
        return b""

    def answer_line(self, line: bytes) -> bytes:
        return b""

    def make_calls(self) -> None:
        """Run the calls that are not forbidden. Call this outside of an event loop."""
        self.ran = {call for call in self.calls if call.tool in self.names and self.can_run(call)}

    def can_run(self, call: StandInCall) -> bool:
        """Return whether a call takes effect without a permission prompt."""
        raise NotImplementedError

    def list_flag_values(self, flag: str) -> list[str]:
        """Return the values of a flag, written `FLAG VALUE` or `FLAG=VALUE`."""
        values = [arg[len(flag) + 1 :] for arg in self.args if arg.startswith(f"{flag}=")]
        return values + [
            value for arg, value in zip(self.args, self.args[1:], strict=False) if arg == flag
        ]

    def is_inside(self, path: str, folders: Sequence[str]) -> bool:
        """Return whether a path is in one of the folders."""
        path = os.path.realpath(os.path.join(self.cwd, path))
        roots = [os.path.realpath(os.path.join(self.cwd, folder)) for folder in folders]
        return any(path == root or path.startswith(f"{root}{os.sep}") for root in roots)


class Pi(StandIn):
    """pi: `--tools` lists its tools, and pi_gate.js restricts file tools to folders."""

    names: ClassVar = {
        "Bash": "bash",
        "Read": "read",
        "Write": "write",
        "Edit": "edit",
        MCP_TOOL: MCP_TOOL,
    }

    def can_run(self, call: StandInCall) -> bool:
        tools = ["read", "bash", "edit", "write", MCP_TOOL]
        if "--no-tools" in self.args:
            tools = []
        # pi keeps MCP tools unless the list names one of them
        for names in self.list_flag_values("--tools"):
            tools = names.split(",") + ([] if "mcp__" in names else [MCP_TOOL])
        if "--no-mcp" in self.args:
            tools = [name for name in tools if name != MCP_TOOL]
        return self.names[call.tool] in tools and self._is_allowed_by_extension(call)

    def _is_allowed_by_extension(self, call: StandInCall) -> bool:
        if not any(file.endswith("pi_gate.js") for file in self.list_flag_values("-e")):
            return True
        config = json.loads(self.environment["PI_GATE"])
        if call.tool in ("Bash", MCP_TOOL):
            return True
        parts = os.path.realpath(os.path.join(self.cwd, call.argument)).split(os.sep)
        is_named = any(part.lower() in config["names"] for part in parts)
        reached = any(path.lower() in "/".join([*parts, ""]).lower() for path in config["paths"])
        protected = call.tool in EDITS and (is_named or reached)
        return self.is_inside(call.argument, config["folders"]) and not protected


class Gemini(StandIn):
    """gemini: rules of `--admin-policy` come first, then its approval mode. Its file tools stay in
    the workspace.
    """

    names: ClassVar = {
        "Bash": "run_shell_command",
        "Read": "read_file",
        "Write": "write_file",
        "Edit": "replace",
        "WebFetch": "web_fetch",
        MCP_TOOL: "make",
    }
    modes: ClassVar = {"auto_edit": "autoEdit"}

    def can_run(self, call: StandInCall) -> bool:
        workspace = [self.cwd, *self.list_flag_values("--include-directories")]
        if call.tool in ("Read", *EDITS) and not self.is_inside(call.argument, workspace):
            return False
        (mode,) = self.list_flag_values("--approval-mode")
        decision = self._find_rule_decision(call, self.modes.get(mode, mode))
        if decision is not None:
            return decision == "allow"
        by_mode = {"yolo": self.names, "auto_edit": ("Read", *EDITS)}
        return call.tool in by_mode.get(mode, ("Read",))

    def _find_rule_decision(self, call: StandInCall, mode: str) -> str | None:
        matches: list[tuple[int, str]] = []
        tool = self.names[call.tool]
        args_text = f'"file_path":{json.dumps(call.argument)}' if call.tool in EDITS else ""
        for path in self.list_flag_values("--admin-policy"):
            with open(path, "rb") as file:
                rules = tomllib.load(file)["rule"]
            for rule in rules:
                names = (
                    rule["toolName"] if isinstance(rule["toolName"], list) else [rule["toolName"]]
                )
                is_match = re.search(rule.get("argsPattern", ""), args_text) is not None
                is_match = (
                    is_match
                    and self._matches_server(rule, call)
                    and (tool in names or "*" in names)
                )
                if is_match and mode in rule.get("modes", [mode]):
                    matches.append((rule["priority"], rule["decision"]))
        return max(matches)[1] if matches else None

    def _matches_server(self, rule: Mapping[str, Any], call: StandInCall) -> bool:
        """Return whether a rule names the call's MCP server, or names no server and the tool is
        built in.
        """
        return rule.get("mcpName") in (("srv", "*") if call.tool == MCP_TOOL else (None,))


class OpenCode(StandIn):
    """opencode: OPENCODE_PERMISSION, in which the last matching pattern wins.

    A call that requires a permission is refused without --auto.
    """

    names: ClassVar = {
        "Bash": "bash",
        "Read": "read",
        "Write": "edit",
        "Edit": "edit",
        "WebFetch": "webfetch",
        MCP_TOOL: "srv_make",
    }

    def can_run(self, call: StandInCall) -> bool:
        path = os.path.relpath(call.argument, self.cwd) if call.tool in EDITS else "*"
        decisions = [self._decide_permission(self.names[call.tool], "allow", path)]
        if call.tool in ("Read", *EDITS) and not self.is_inside(call.argument, [self.cwd]):
            decisions.append(self._decide_permission("external_directory", "ask"))
        return "deny" not in decisions and ("ask" not in decisions or "--auto" in self.args)

    def _decide_permission(self, permission: str, default: str, path: str = "*") -> str:
        rules = json.loads(self.environment.get("OPENCODE_PERMISSION", "{}"))
        decision = default
        for pattern, rule in rules.items():
            if fnmatch.fnmatchcase(permission, pattern):
                by_path = rule if isinstance(rule, dict) else {"*": rule}
                for file, decided in by_path.items():
                    decision = decided if fnmatch.fnmatchcase(path, file) else decision
        return str(decision)


class Droid(StandIn):
    """droid: `--only-tools` lists its tools. It runs commands that its model labels as a low risk,
    and all reads.
    """

    names: ClassVar = {
        "Bash": "Execute",
        "Read": "Read",
        "Write": "Create",
        "Edit": "Edit",
        "WebFetch": "FetchUrl",
        MCP_TOOL: "srv___make",
    }

    def can_run(self, call: StandInCall) -> bool:
        only = [
            name for names in self.list_flag_values("--only-tools") for name in names.split(",")
        ]
        if only and self.names[call.tool] not in only:
            return False
        if "--skip-permissions-unsafe" in self.args or call.tool in ("Bash", "Read"):
            return True
        return call.tool in EDITS and self.list_flag_values("--auto") == ["low"]


class Cline(StandIn):
    """cline: without `--auto-approve true` no call runs, because no person can approve it."""

    names: ClassVar = {
        "Bash": "run_commands",
        "Read": "read_files",
        "Write": "editor",
        "Edit": "editor",
        "WebFetch": "fetch_web_content",
        MCP_TOOL: "srv__make",
    }

    def can_run(self, call: StandInCall) -> bool:
        return self.list_flag_values("--auto-approve") == ["true"] and "--plan" not in self.args


class Kimi(StandIn):
    """kimi: with `--print` it runs everything."""

    names: ClassVar = {
        "Bash": "Shell",
        "Read": "ReadFile",
        "Write": "WriteFile",
        "Edit": "StrReplaceFile",
        MCP_TOOL: "make",
    }

    def can_run(self, call: StandInCall) -> bool:
        return True


class KimiCode(StandIn):
    """Kimi Code CLI with `-p`: it runs everything."""

    names: ClassVar = {
        "Bash": "Bash",
        "Read": "Read",
        "Write": "Write",
        "Edit": "Edit",
        "WebFetch": "FetchURL",
        MCP_TOOL: "mcp__srv__make",
    }

    def can_run(self, call: StandInCall) -> bool:
        return True


class KimiCodeAcp(KimiCode):
    """`kimi acp` of Kimi Code CLI in a git work tree: it only asks before commands and MCP tools."""

    waits = True
    keys: ClassVar = {"Bash": "command", "WebFetch": "url"}
    prompted_tools: ClassVar = ("Bash", MCP_TOOL)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.planned = list(self.calls)
        self.remaining_calls: list[StandInCall] = []
        self.prompt_id: object = None
        self.mode = "default"

    def make_calls(self) -> None:
        """Make the calls during the prompt."""

    def answer_line(self, line: bytes) -> bytes:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            return _format_response(
                message, {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
            )
        if method == "session/new":
            modes = [{"id": "default", "name": "Default"}, {"id": "plan", "name": "Plan"}]
            result = {
                "sessionId": "s1",
                "modes": {"currentModeId": "default", "availableModes": modes},
            }
            return _format_response(message, result)
        if method == "session/prompt":
            self.remaining_calls, self.prompt_id = self.planned, message["id"]
            self.planned = []  # a prompt that explains a denial leads to no further calls
            return self._run_until_prompt()
        if method == "session/set_mode":
            self.mode = message["params"]["modeId"]
        if method is None and self.remaining_calls:
            call = self.remaining_calls.pop(0)
            allowed = message["result"]["outcome"].get("optionId") == "yes"
            if allowed:
                self.ran.add(call)
            return self._end_call(call) + self._run_until_prompt()
        return _format_response(message, {}) if "id" in message else b""

    def _run_until_prompt(self) -> bytes:
        """Make calls up to the next one that needs an answer. Answer the prompt after the last
        call.
        """
        printed = b""
        while self.remaining_calls:
            call = self.remaining_calls[0]
            printed += self._start_call(call)
            if call.tool in self.prompted_tools:
                return printed + self._format_permission_request(call)
            if not (self.mode == "plan" and call.tool in EDITS):
                self.ran.add(call)
            printed += self._end_call(self.remaining_calls.pop(0))
        return printed + _format_response({"id": self.prompt_id}, {"stopReason": "end_turn"})

    def _start_call(self, call: StandInCall) -> bytes:
        input_json = json.dumps({self.keys.get(call.tool, "path"): call.argument})
        content = [{"type": "content", "content": {"type": "text", "text": input_json}}]
        return self._format_update(
            "tool_call", call, title=self.names[call.tool], status="in_progress", content=content
        )

    def _end_call(self, call: StandInCall) -> bytes:
        content = [{"type": "content", "content": {"type": "text", "text": "."}}]
        status = "completed" if call in self.ran else "failed"
        return self._format_update("tool_call_update", call, status=status, content=content)

    def _format_permission_request(self, call: StandInCall) -> bytes:
        options = [
            {"optionId": "yes", "kind": "allow_once"},
            {"optionId": "no", "kind": "reject_once"},
        ]
        tool_call = {"toolCallId": self._build_call_id(call), "title": self.names[call.tool]}
        params = {"sessionId": "s1", "toolCall": tool_call, "options": options}
        request = {
            "id": f"q-{self._build_call_id(call)}",
            "method": "session/request_permission",
            "params": params,
        }
        return _encode_line({"jsonrpc": "2.0", **request})

    def _format_update(self, kind: str, call: StandInCall, **fields: object) -> bytes:
        update = {"sessionUpdate": kind, "toolCallId": self._build_call_id(call), **fields}
        params = {"sessionId": "s1", "update": update}
        return _encode_line({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def _build_call_id(self, call: StandInCall) -> str:
        return f"call_{self.calls.index(call)}"


class KimiAcp(KimiCodeAcp):
    """`kimi acp` of kimi-cli: it asks before commands, changes and MCP tools, but not before reads."""

    names: ClassVar = {**Kimi.names, "WebFetch": "FetchURL"}
    prompted_tools: ClassVar = ("Bash", MCP_TOOL, *EDITS)


class Codex(StandIn):
    """codex: its sandbox, and a hook before each call. It reads files with the shell and changes
    them with patches.
    """

    names: ClassVar = {
        "Bash": "Bash",
        "Read": "Bash",
        "Write": "apply_patch",
        "Edit": "apply_patch",
        MCP_TOOL: MCP_TOOL,
    }

    def can_run(self, call: StandInCall) -> bool:
        settings = dict(
            value.split("=", 1) for value in self.list_flag_values("-c") if "=" in value
        )
        sandboxed = "--dangerously-bypass-approvals-and-sandbox" not in self.args
        if (
            sandboxed
            and call.changes
            and call.tool != MCP_TOOL
            and settings.get("sandbox_mode") == '"read-only"'
        ):
            return False
        if "hooks.PreToolUse" not in settings:
            return not sandboxed
        tool, tool_input = self._translate_call(call)
        event = {
            "hook_event_name": "PreToolUse",
            "cwd": self.cwd,
            "tool_name": tool,
            "tool_input": tool_input,
        }
        status, _ = run_hook(_parse_hook_command(settings["hooks.PreToolUse"]), event)
        return status == 0

    def _translate_call(self, call: StandInCall) -> tuple[str, dict[str, str]]:
        if call.tool in EDITS:
            head, change = ("Add", "+x") if call.tool == "Write" else ("Update", "@@\n-notes\n+x")
            patch = f"*** Begin Patch\n*** {head} File: {call.argument}\n{change}\n*** End Patch\n"
            return "apply_patch", {"command": patch}
        if call.tool == MCP_TOOL:
            return MCP_TOOL, {}
        command = f"cat {shlex.quote(call.argument)}" if call.tool == "Read" else call.argument
        return "Bash", {"command": command}


class Copilot(StandIn):
    """copilot: the hook of its plugin decides. Without a hook, `--allow-all` and `--allow-tool`
    decide.
    """

    names: ClassVar = {
        "Bash": "bash",
        "Read": "view",
        "Write": "create",
        "Edit": "edit",
        "WebFetch": "web_fetch",
        MCP_TOOL: "srv-make",
    }
    kinds: ClassVar = {"Bash": "shell", "Write": "write", "Edit": "write"}

    def can_run(self, call: StandInCall) -> bool:
        excluded = [
            name for names in self.list_flag_values("--excluded-tools") for name in names.split(",")
        ]
        if self.names[call.tool] in excluded:
            return False
        if "PERMISSION_RULES_HOOK" in self.environment:
            key = {"Bash": "command", "WebFetch": "url"}.get(call.tool, "path")
            event = {"sessionId": "s", "cwd": self.cwd, "toolName": self.names[call.tool]}
            status, answer = run_hook(
                self.environment["PERMISSION_RULES_HOOK"],
                {**event, "toolArgs": {key: call.argument}},
            )
            return status == 0 and json.loads(answer).get("permissionDecision") == "allow"
        return "--allow-all" in self.args or self.kinds.get(call.tool) in self.list_flag_values(
            "--allow-tool"
        )


class Qwen(StandIn):
    """qwen: `--core-tools` and `--exclude-tools`, its approval mode, and permission requests to its
    client.

    With the bundled system settings it asks about every call.
    """

    names: ClassVar = {
        "Bash": "run_shell_command",
        "Read": "read_file",
        "Write": "write_file",
        "Edit": "edit",
        "WebFetch": "web_fetch",
        MCP_TOOL: MCP_TOOL,
    }
    keys: ClassVar = {"Bash": "command", "WebFetch": "url"}

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.waits = "stream-json" in self.list_flag_values("--input-format")
        self.remaining_calls: list[StandInCall] = []

    def make_calls(self) -> None:
        if not self.waits:
            super().make_calls()

    def can_run(self, call: StandInCall) -> bool:
        return self._decide_call(call) == "allow"

    def answer_line(self, line: bytes) -> bytes:
        message = json.loads(line)
        if message["type"] == "user":
            self.remaining_calls = list(self.calls)
            return (
                _encode_line(
                    {
                        "type": "system",
                        "subtype": "init",
                        "session_id": "s",
                        "tools": [],
                        "model": "m",
                    }
                )
                + self._run_until_prompt()
            )
        if message["type"] == "control_response" and self.remaining_calls:
            call = self.remaining_calls.pop(0)
            answer = message["response"].get("response", {})
            if answer.get("behavior") == "allow":
                self.ran.add(call)
            return self._format_tool_result(call) + self._run_until_prompt()
        return b""

    def _run_until_prompt(self) -> bytes:
        """Make the calls up to the next call that needs an answer. After the last call the turn
        ends.
        """
        printed = b""
        while self.remaining_calls:
            call = self.remaining_calls[0]
            decision = self._decide_call(call)
            printed += self._format_tool_use(call)
            if decision == "ask":
                return printed + self._format_permission_request(call)
            if decision == "allow":
                self.ran.add(call)
            printed += self._format_tool_result(self.remaining_calls.pop(0))
        return printed + _encode_line(
            {
                "type": "result",
                "subtype": "success",
                "session_id": "s",
                "is_error": False,
                "result": ".",
            }
        )

    def _decide_call(self, call: StandInCall) -> str:
        name = self.names.get(call.tool, "")
        core = self.list_flag_values("--core-tools")
        if (
            not name
            or name in self.list_flag_values("--exclude-tools")
            or (core and name not in core)
        ):
            return "deny"
        (mode,) = self.list_flag_values("--approval-mode")
        if mode == "yolo":
            return "allow"
        if mode == "plan" and call.changes:
            return "deny"
        asks_all = self.environment.get("QWEN_CODE_SYSTEM_SETTINGS_PATH", "").endswith(
            "qwen_asks_all.json"
        )
        if call.tool == "Read" or (mode == "auto-edit" and call.tool in EDITS):
            return "ask" if asks_all else "allow"
        return "ask" if self.waits else "deny"

    def _format_tool_use(self, call: StandInCall) -> bytes:
        use = {
            "type": "tool_use",
            "id": self._build_call_id(call),
            "name": self.names.get(call.tool, call.tool),
        }
        content = [{**use, "input": self._build_tool_input(call)}]
        message = {"id": "m", "role": "assistant", "model": "m", "content": content, "usage": {}}
        return _encode_line(
            {"type": "assistant", "session_id": "s", "parent_tool_use_id": None, "message": message}
        )

    def _format_permission_request(self, call: StandInCall) -> bytes:
        request = {
            "subtype": "can_use_tool",
            "tool_name": self.names[call.tool],
            "tool_use_id": self._build_call_id(call),
            "input": self._build_tool_input(call),
            "permission_suggestions": None,
            "blocked_path": None,
        }
        return _encode_line(
            {
                "type": "control_request",
                "request_id": f"q-{self._build_call_id(call)}",
                "request": request,
            }
        )

    def _format_tool_result(self, call: StandInCall) -> bytes:
        block = {
            "type": "tool_result",
            "tool_use_id": self._build_call_id(call),
            "content": ".",
            "is_error": call not in self.ran,
        }
        message = {"role": "user", "content": [block]}
        return _encode_line(
            {"type": "user", "session_id": "s", "parent_tool_use_id": None, "message": message}
        )

    def _build_tool_input(self, call: StandInCall) -> dict[str, str]:
        return {self.keys.get(call.tool, "file_path"): call.argument}

    def _build_call_id(self, call: StandInCall) -> str:
        return f"call_{self.calls.index(call)}"


STAND_INS: dict[str, type[StandIn]] = {
    "qwen": Qwen,
    "pi": Pi,
    "codex": Codex,
    "copilot": Copilot,
    "gemini": Gemini,
    "opencode": OpenCode,
    "kimi": Kimi,
    "kimi-code": KimiCode,
    "droid": Droid,
    "cline": Cline,
}
# Vendors that are started in another way for a conversation, so that they ask for permission.
CONVERSATIONS: dict[str, type[StandIn]] = {"kimi": KimiAcp, "kimi-code": KimiCodeAcp}


def run_hook(line: str, event: Mapping[str, Any]) -> tuple[int, str]:
    """Run a vendor's hook in this process. Return its exit status and its output.

    The vendor passes `line` to a shell. The shell line that the launch code wraps around the hook
    turns every failure into a denial, and so does this function.
    """
    args = _split_shell_line(line)
    hook_argv = args[args.index("shim.conversation.tool_hook") :]
    printed = io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(dump_json(event)))
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(printed),
        redirect_stderr(io.StringIO()),
    ):
        patch.setattr(sys, "argv", hook_argv)
        patch.setattr(sys, "stdin", stdin)
        # pytest keeps its signals
        patch.setattr(tool_hook, "reset_inherited_signals", lambda: None)
        try:
            status = tool_hook.main()
        except Exception:
            status = 2
        finally:
            signal.alarm(0)
    return status, printed.getvalue()


@functools.cache
def _split_shell_line(line: str) -> list[str]:
    return shlex.split(line)


@functools.cache
def _parse_hook_command(setting: str) -> str:
    """Return the command of the only hook in a setting of codex."""
    (matcher,) = tomllib.loads(f"hook = {setting}")["hook"]
    (hook,) = matcher["hooks"]
    return str(hook["command"])


def find_target(line: str) -> str:
    """Return the file that a shell command of the permission table changes, or ""."""
    redirect = re.search(r">\s*(\S+)", line)
    if redirect is not None:
        return redirect[1]
    return "made" if "made" in line else ""


def _format_response(request: Mapping[str, Any], result: Mapping[str, Any]) -> bytes:
    return _encode_line({"jsonrpc": "2.0", "id": request["id"], "result": result})


def _encode_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"

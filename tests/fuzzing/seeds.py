"""The first inputs of the fuzzers: every fixture, lines that no program should print, and frontend
lines.
"""

import json
from functools import cache

from fixture_cases import Case, list_fixture_cases

from fuzzing.edits import Pool
from fuzzing.inputs import FuzzRun, build_knobs
from fuzzing.targets import EXITS

LONGEST_LINE = 20_000  # of a fixture as a seed: longer lines cost time and find little

DEEP = 3000
TORTURE: list[bytes] = [
    b"", b"null", b"[]", b"{}", b"42", b'"text"', b"true", b"NaN", b"\xef\xbb\xbf", b"\x00", b"\r", b"$", b"{", b"}",
    b'{"type":', b'{"type":null}', b'{"type":"nobody knows this"}', b'{"type":["result"]}', b'{"not":"an event"}',
    b'{"type":"result"}{"type":"result"}', b'YOLO mode is enabled.{"type":"system","subtype":"init"}',
    b"\x1b]0;title\x07\x1b[?25l", b"Active code page: 65001\r", b"10%\r50%\r100%\r", b"(node:1) Warning: old",
    b'{"type":"x","deep":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"type":"x","a":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    b"[" * 100_000, b'{"type":"x","n":' + b"9" * 5000 + b"}", b'{"type":"x","n":123456789012345678901234567890}',
    b'{"type":"x","n":1e400,"m":-Infinity}', b'{"type":"x","type":"y","type":"z"}', b'{"type":"x","s":"\\ud83d"}',
    b'{"type":"x","\\ud99c":1}', b'{"type":"x","s":"caf\xe9 \xed\xa0\xbd\xed\xb8\x80 \xc0\xaf \xf0\x9f"}',
    b'{"type":"x","s":"a\tb\x1bc\x00d"}', b'{"type":"x","s":"\xe2\x80\xa8 \xe2\x80\xa9 \xc2\x85"}',
    b'{"type":"x","s":"a', b'b"}', b"x" * 66_000, b'[{"type":"result"},{"type":"init"}]',
    b'{"type":"control_request","request_id":"1"}',
    b'{"type":"control_request","request_id":"1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{}}}',
    b'{"type":"control_response","response":{"subtype":"success","request_id":"1"}}', b'{"type":"message_stop"}',
]  # fmt: skip

FRONTEND: list[dict[str, object]] = [
    {"type": "user", "message": {"role": "user", "content": "hi"}, "uuid": "u1"},
    {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}},
    {"type": "control_cancel_request", "request_id": "r1"},
    {"type": "user", "content": "hi"}, {"type": "interrupt"}, {"type": "set_permission_mode", "mode": "interactive"},
    {"type": "tool_approval", "id": "call_5", "approved": True}, {"type": "tool_approval", "id": "call_13"},
    {"type": "control_response", "response": {"subtype": "error", "request_id": "uuid-1", "error": "no"}},
    *(
        {
            "type": "control_response",
            "response": {"subtype": "success", "request_id": f"uuid-{number}", "response": answer},
        }
        for number, answer in enumerate(
            (
                {"behavior": "allow", "updatedInput": {"command": "ls -l"}},
                {"behavior": "deny", "message": "no", "interrupt": True},
                {"behavior": "allow", "updatedPermissions": [{"type": "addRules", "behavior": "allow", "rules": [
                    {"toolName": "Bash", "ruleContent": "ls:*"}]}]},
                {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}},
                {"continue": False, "decision": "block", "reason": "no"},
            )
        )
    ),
    *(
        {"type": "control_request", "request_id": f"r-{request['subtype']}", "request": request}
        for request in (
            {"subtype": "initialize", "hooks": {"PreToolUse": [{"matcher": "Bash|Edit", "hookCallbackIds": ["h1"]}],
             "UserPromptSubmit": [{"hookCallbackIds": ["h2"]}]}, "systemPrompt": "be short"},
            {"subtype": "interrupt"}, {"subtype": "set_model", "model": "m"}, {"subtype": "mcp_status"},
            {"subtype": "set_permission_mode", "mode": "plan"}, {"subtype": "rename_session", "title": "t"},
            {"subtype": "mcp_set_servers", "servers": {"a": {}}}, {"subtype": "get_usage"}, {"subtype": "nobody"},
            {"subtype": "cancel_async_message", "message_uuid": "u1"}, {"subtype": "mcp_toggle", "serverName": "s"},
        )
    ),
]  # fmt: skip

CLI_ARGS = """
-p --print hi --output-format stream-json --input-format stream-json --verbose --include-partial-messages --model m
--session-id 11111111-2222-4333-8444-555555555555 --resume --continue -c -r --fork-session --permission-mode plan
--allowedTools Read,Bash(git:*) Edit --disallowedTools Write -- --max-turns 3 --max-budget-usd 0.5 acceptEdits
--settings {} --shim-vendor pi --shim-dialect=yume --version -v --help -pc -rU doctor --unknown --unknown=1
--add-dir /a --tools default - -- @file
"""

SETTINGS = b"""vendor = ["pi", "qwen"]
dialect = "claude"
max_line_bytes = 100000
idle_timeout = 900.5
transcripts = true
[tools]
deny = ["Bash(rm:*)"]
hide = []
[vendors.pi]
bin = "/opt/pi"
args = ["--x"]
env = { A = "b" }
trust = false
timeouts = { idle = 5 }
[vendors.claude]
driver = "one-way"
"""


@cache
def build_pool() -> Pool:
    """Return the lines that are inserted into inputs."""
    lines: dict[str, list[bytes]] = {}
    for case in list_fixture_cases():
        lines.setdefault(case.vendor, []).extend(_list_lines(case))
    lines["control"] = [json.dumps(line).encode() for line in FRONTEND]
    lines["words"] = [token.encode() for token in CLI_ARGS.split()]
    lines["settings"] = SETTINGS.split(b"\n")
    return Pool(lines, TORTURE)


@cache
def list_seeds() -> tuple[FuzzRun, ...]:
    """Return one run per fixture with the settings of its case.toml, the torture list for every
    vendor, and the rest.
    """
    cases = [case for case in list_fixture_cases() if case.data]
    runs = [_build_run(case) for case in cases]
    runs += [
        FuzzRun(vendor, build_knobs(partial=1), list(TORTURE))
        for vendor in dict.fromkeys(case.vendor for case in cases)
    ]
    runs += [
        FuzzRun(name, build_knobs(), list(build_pool().lines[name]))
        for name in ("control", "words", "settings")
    ]
    return tuple(runs)


@cache
def group_seeds_by_target() -> dict[str, list[FuzzRun]]:
    """Return the seeds of each target."""
    groups: dict[str, list[FuzzRun]] = {}
    for run in list_seeds():
        groups.setdefault(run.target, []).append(run)
    return groups


def _list_lines(case: Case) -> list[bytes]:
    return [line for line in case.data.split(b"\n") if len(line) <= LONGEST_LINE]


def _build_run(case: Case) -> FuzzRun:
    ending = EXITS.index(case.exit) if case.exit in EXITS else 0
    return FuzzRun(
        case.vendor, build_knobs(partial=int(case.partial), exit=ending), _list_lines(case)
    )

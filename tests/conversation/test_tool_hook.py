"""The hook that decides about a call before a vendor runs it: in this process, and through the
command line that a vendor receives.
"""

import io
import json
import shlex
import signal
import subprocess
import sys

import pytest
from policy_builder import WORKSPACE, build_policy

from shim.adapters.codex_rules import APPROVAL_HOOK_MODULE as ASKING_CODEX
from shim.adapters.codex_rules import HOOK_MODULE as CODEX
from shim.conversation import tool_hook
from shim.conversation.drivers.launcher import HOOK_ARGV
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.policy_hook import RULES_UNAVAILABLE, build_hook_command
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.core.policy.settings_hooks import SettingsHook

SECONDS = 30.0
RULES = build_policy(deny=["Bash(touch:*)"])
SLOW = """
import signal, sys, time, types
from shim.conversation import tool_hook
signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
tool_hook.CHECK_TIMEOUT_S = 0.3
module = types.ModuleType("slow")
def list_hook_calls(event, workspace):
    time.sleep(600)
module.list_hook_calls = list_hook_calls
sys.modules["slow"] = module
sys.exit(tool_hook.main())
"""


def run_hook(
    event, *, hook_argv=HOOK_ARGV, module=CODEX, rules=RULES, mode="bypassPermissions", mode_file=""
):
    """Return the exit status of the hook and its message to the model."""
    request = LaunchRequest(
        parse_argv(()),
        "",
        permission_mode=mode,
        policy=rules,
        hook_argv=hook_argv,
        session_id="S",
        mode_file=mode_file,
    )
    line = build_hook_command(request, "codex", module)
    argv = shlex.split(line)
    if hook_argv is HOOK_ARGV:
        return in_this_process(argv[argv.index(HOOK_ARGV[-1]) :], event)
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        input=event.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr.decode()


def in_this_process(argv, event):
    """Run the hook in this process. A failure counts as a denial, as in the shell of the command
    line.
    """
    stderr = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(event.encode())))
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", stderr)
        try:
            status = tool_hook.main()
        except Exception:
            return tool_hook.DENY_EXIT_STATUS, RULES_UNAVAILABLE
        finally:
            signal.alarm(0)
    return status, stderr.getvalue()


def call(line):
    return json.dumps({"tool_name": "Bash", "tool_input": {"command": line}, "cwd": WORKSPACE.cwd})


# The second runs in a separate process.
ALONE = pytest.mark.parametrize("hook_argv", [HOOK_ARGV, list(HOOK_ARGV)], ids=["here", "alone"])


@ALONE
def test_call_without_a_matching_rule_is_allowed(hook_argv):
    assert run_hook(call("ls"), hook_argv=hook_argv) == (0, "")


@ALONE
def test_denied_call_is_refused_with_its_rule(hook_argv):
    status, stderr = run_hook(call("A=1 touch m"), hook_argv=hook_argv)
    assert status == 2
    assert "Bash(touch:*)" in stderr


@pytest.mark.parametrize(
    "event", ["", "no JSON", "{}", "[" * 100_000], ids=["nothing", "words", "empty", "nested"]
)
def test_unreadable_event_is_refused(event):
    status, stderr = run_hook(event)
    assert status == 2
    assert stderr


@pytest.mark.parametrize(
    ("mode", "line", "status"),
    [
        ("default", "touch m", 2),
        ("bypassPermissions", "touch m", 2),
        ("default", "make", 0),
        ("default", "ls", 0),
        ("plan", "make", 2),
        ("dontAsk", "make", 2),
        ("plan", "ls", 0),
    ],
)
def test_hook_of_an_asking_vendor_refuses_only_denied_calls(mode, line, status):
    assert run_hook(call(line), module=ASKING_CODEX, mode=mode)[0] == status


def test_hook_of_an_asking_vendor_applies_a_stricter_mode_to_the_next_call(tmp_path):
    file = tmp_path / "1.mode"
    for now, status in (("bypassPermissions", 0), ("default", 0), ("plan", 2), ("dontAsk", 2)):
        file.write_text(now)
        result = run_hook(
            call("make"),
            module=ASKING_CODEX,
            rules=build_policy(),
            mode="default",
            mode_file=str(file),
        )
        assert result[0] == status, now


def test_hook_timeout_refuses_the_call():
    status, stderr = run_hook(call("ls"), hook_argv=(sys.executable, "-c", SLOW), module="slow")
    assert (status, stderr.splitlines()[-1]) == (2, RULES_UNAVAILABLE)


def test_missing_hook_program_refuses_the_call():
    status, stderr = run_hook(call("ls"), hook_argv=("/nowhere/python",))
    assert status == 2
    assert RULES_UNAVAILABLE in stderr


def of_settings(tmp_path, command, **rules):
    """Return a policy with one hook from the settings, in an existing folder."""
    rules = {kind: parse_permission_rules(rule_texts) for kind, rule_texts in rules.items()}
    return Policy(
        workspace=Workspace(str(tmp_path)),
        hooks=[SettingsHook("Bash", command, source="s")],
        **rules,
    )


def call_in(folder, line):
    return json.dumps(
        {
            "tool_name": "Bash",
            "tool_input": {"command": line},
            "cwd": str(folder),
            "tool_use_id": "c",
        }
    )


def test_settings_hook_receives_the_call_and_refuses_execution(tmp_path):
    rules = of_settings(
        tmp_path, "cat > told; echo $CLAUDE_PROJECT_DIR > place; echo no way >&2; exit 2"
    )
    status, stderr = run_hook(call_in(tmp_path, "ls"), rules=rules, hook_argv=list(HOOK_ARGV))
    assert status == 2 and "no way" in stderr
    hook_input = json.loads((tmp_path / "told").read_text())
    assert (hook_input["tool_name"], hook_input["tool_input"], hook_input["tool_use_id"]) == (
        "Bash",
        {"command": "ls"},
        "c",
    )
    assert (hook_input["session_id"], hook_input["permission_mode"]) == ("S", "bypassPermissions")
    assert (tmp_path / "place").read_text() == f"{tmp_path}\n"


def answers(decision, **more):
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision, **more}
    return f"echo '{json.dumps({'hookSpecificOutput': output})}'"


@pytest.mark.parametrize(
    ("mode", "command", "rules", "status"),
    [
        ("default", answers("allow"), {}, 0),
        ("default", "true", {}, 2),
        ("default", answers("allow"), {"deny": ["Bash(touch:*)"]}, 2),
        ("default", answers("allow"), {"ask": ["Bash(touch:*)"]}, 2),
        ("plan", answers("allow"), {}, 2),
        ("dontAsk", answers("allow"), {}, 0),
        ("bypassPermissions", answers("ask"), {}, 2),
        ("bypassPermissions", answers("allow", updatedInput={"command": "ls"}), {}, 2),
        ("bypassPermissions", answers("allow", updatedInput={"command": "touch m"}), {}, 0),
        ("bypassPermissions", "exit 1", {}, 0),
    ],
)
def test_settings_hook_decisions_match_claude(tmp_path, mode, command, rules, status):
    result = run_hook(
        call_in(tmp_path, "touch m"), rules=of_settings(tmp_path, command, **rules), mode=mode
    )
    assert result[0] == status, result[1]


def test_mode_file_sets_the_mode_and_a_missing_file_refuses_calls(tmp_path):
    file = tmp_path / "1.mode"
    for now, status in (
        ("bypassPermissions", 0),
        ("plan", 2),
        ("default", 2),
        ("nonsense", 2),
        ("", 2),
    ):
        file.write_text(now)
        assert (
            run_hook(call("touch m"), rules=build_policy(), mode="default", mode_file=str(file))[0]
            == status
        )
    file.unlink()
    for hook_argv in (HOOK_ARGV, list(HOOK_ARGV)):
        result = run_hook(
            call("ls"),
            rules=build_policy(),
            mode="bypassPermissions",
            mode_file=str(file),
            hook_argv=hook_argv,
        )
        assert result == (2, result[1]) and RULES_UNAVAILABLE in result[1]

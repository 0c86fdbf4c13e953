"""The rules in codex's arguments: the arguments for every mode, and a hook that fails closed."""

import json
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise

import pytest
from sweeps import loop_over_rows

from shim.adapters import codex_rules, get_adapter
from shim.conversation.drivers.launcher import HOOK_ARGV
from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import PermissionRule, Policy, Workspace, parse_permission_rules
from shim.core.policy.serialize import PolicyContext, parse_policy
from shim.core.policy.settings_hooks import SettingsHook

HERE = Workspace('/work/it\'s "här"', "/home")
BYPASS = "bypassPermissions"
HOOK_SECONDS = 60


def request(mode, workspace=HERE, hook_argv=HOOK_ARGV, **rules):
    policy = Policy(
        workspace=workspace,
        **{kind: parse_permission_rules(texts) for kind, texts in rules.items()},
    )
    mode_arguments = get_adapter("codex").resolve_permission_mode_args(mode)
    return LaunchRequest(
        parse_argv(["-p", "hi"]),
        "hi",
        mode_arguments=mode_arguments,
        permission_mode=mode,
        policy=policy,
        hook_argv=hook_argv,
    )


def build_args(launch_request):
    return list(get_adapter("codex").build_launch(launch_request).arguments)


def settings(launch_request):
    """Return codex's settings as its `-c` arguments set them. Later arguments win."""
    args, values = build_args(launch_request), {}
    for flag, arg in pairwise(args):
        if flag == "-c":
            key, _, value = arg.partition("=")
            values[key] = tomllib.loads(f"it = {value}")["it"]
    return values


def hook(launch_request):
    """Return the command of the only hook."""
    ((handler,),) = (group["hooks"] for group in settings(launch_request)["hooks.PreToolUse"])
    return handler["command"]


def answer(command, call, **more):
    """Return the exit status and the output of the hook for a command of the model."""
    event = {
        "hook_event_name": "PreToolUse",
        "cwd": HERE.cwd,
        "tool_name": "Bash",
        "tool_input": {"command": call},
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=json.dumps(event | more),
        capture_output=True,
        text=True,
        timeout=HOOK_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


def test_bypass_mode_without_rules_adds_no_codex_settings():
    assert settings(request(BYPASS)) == {} and "--ignore-rules" not in build_args(request(BYPASS))


@pytest.mark.parametrize("mode", ["default", "plan", "acceptEdits"])
def test_stricter_mode_enables_hooks_ignores_rule_files_and_disables_web_search(mode):
    args = build_args(request(mode))
    assert {"--ignore-rules", "--dangerously-bypass-hook-trust"} <= set(args)
    assert settings(request(mode))["features.hooks"] is True
    assert settings(request(mode))["web_search"] == "disabled"


def test_working_directory_and_its_parents_are_untrusted_projects():
    untrusted = {"trust_level": "untrusted"}
    assert settings(request("default"))["projects"] == dict.fromkeys(
        ("/", "/work", HERE.cwd), untrusted
    )


def test_symlink_target_of_the_working_directory_is_untrusted():
    linked = Workspace("/work", resolve_links=lambda path: path.replace("/work", "/real/place"))
    assert set(settings(request("plan", linked))["projects"]) == {
        "/",
        "/work",
        "/real",
        "/real/place",
    }


def test_sandbox_is_writable_only_if_the_mode_or_a_rule_allows_changes():
    assert settings(request("plan", allow=["Bash"]))["sandbox_mode"] == "read-only"
    assert settings(request("default"))["sandbox_mode"] == "read-only"
    assert settings(request("default", allow=["Write"]))["sandbox_mode"] == "workspace-write"
    assert settings(request("acceptEdits"))["sandbox_mode"] == "workspace-write"


def test_writable_sandbox_covers_added_directories_but_not_tmp_or_network():
    codex_settings = settings(
        request("acceptEdits", HERE._replace(directories=("../other", "/more")))
    )
    table = "sandbox_workspace_write"
    assert (
        codex_settings[f"{table}.exclude_slash_tmp"] is True
        and codex_settings[f"{table}.exclude_tmpdir_env_var"] is True
    )
    assert (
        codex_settings[f"{table}.writable_roots"] == ["/work/other", "/more"]
        and codex_settings[f"{table}.network_access"] is False
    )
    assert (
        settings(request("acceptEdits", allow=["Bash(git push:*)"]))[f"{table}.network_access"]
        is True
    )


@pytest.mark.parametrize("kind", ["deny", "ask"])
def test_deny_or_ask_rule_adds_the_hook_in_bypass_mode(kind):
    launch_request = request(BYPASS, **{kind: ["Bash(touch:*)"]})
    assert "--dangerously-bypass-approvals-and-sandbox" in build_args(
        launch_request
    ) and "sandbox_mode" not in settings(launch_request)
    policy, context = parse_policy(shlex.split(hook(launch_request))[-1], str)
    assert (policy.deny + policy.ask, context.mode) == (
        (PermissionRule("Bash", "touch:*"),),
        BYPASS,
    )


@loop_over_rows(
    ("mode", "rules", "searches"),
    [
        (BYPASS, {"deny": ["WebSearch"]}, False),
        (BYPASS, {"ask": ["WebSearch"]}, False),
        (BYPASS, {"deny": ["Bash"]}, True),
        ("default", {"allow": ["WebSearch"]}, True),
        ("default", {"allow": ["WebSearch"], "deny": ["Web*"]}, False),
    ],
)
def test_web_search_is_enabled_only_if_rules_allow_web_search(mode, rules, searches):
    assert ("web_search" not in settings(request(mode, **rules))) is searches


def test_web_search_is_disabled_if_a_settings_hook_matches_web_search():
    for matcher, searches in (("Bash", True), ("WebSearch", False), ("", False)):
        hooked = Policy(workspace=HERE, hooks=[SettingsHook(matcher, "true")])
        assert ("web_search" not in settings(request(BYPASS)._replace(policy=hooked))) is searches


def test_settings_hook_is_passed_on_and_makes_the_sandbox_writable():
    hooks = (SettingsHook("Bash", "echo '\"'", ("a",), "Bash(x:*)", 7.0, True, "settings.json"),)
    launch_request = request("default")._replace(
        policy=Policy(workspace=HERE, hooks=hooks), session_id="S", transcript_path="/t"
    )
    policy, context = parse_policy(shlex.split(hook(launch_request))[-1], str)
    assert (policy.hooks, context) == (hooks, PolicyContext("default", "S", "/t"))
    assert settings(launch_request)["sandbox_mode"] == "workspace-write"


def test_rules_that_exceed_the_argument_limit_are_refused():
    with pytest.raises(UnsupportedPermissionModeError, match="that many permission rules"):
        build_args(request("default", deny=[f"Bash(command-{number})" for number in range(5000)]))


@pytest.mark.parametrize(
    "launch_request", [request("default"), request(BYPASS, deny=["Bash"])], ids=["mode", "rule"]
)
def test_launch_is_refused_if_codex_might_not_run_the_hook(launch_request):
    with pytest.raises(
        UnsupportedPermissionModeError,
        match=r"might not start the hook .*: a program that a launcher starts",
    ):
        build_args(
            launch_request._replace(
                policy_bypass="a program that a launcher starts might not see the shim's file"
            )
        )
    assert build_args(
        request(BYPASS)._replace(
            policy_bypass="a program that a launcher starts might not see the shim's file"
        )
    )


# -- the hook --------------------------------------------------------------------------------------


def test_hook_exits_0_if_rules_allow_and_2_with_a_reason_if_they_deny():
    command = hook(request("default", deny=["Bash(touch:*)"]))
    assert answer(command, "ls") == (0, "")
    assert answer(command, "A=1 touch x") == (2, "Bash is not allowed (Bash(touch:*))\n")
    assert answer(command, "make") == (
        2,
        "Bash is not allowed and permission prompts are not available (default)\n",
    )


def test_hook_denies_an_event_with_invalid_tool_input():
    command = hook(request(BYPASS, deny=["Bash(touch:*)"]))
    code, stderr = answer(command, None)
    assert code == 2 and stderr.startswith("the call cannot be checked")


@pytest.mark.parametrize(
    "hook_argv", [("/not/there",), ("false",), (sys.executable, "-c", "raise SystemExit(1)")]
)
def test_failing_hook_command_denies_the_call_with_a_message(hook_argv):
    """codex runs a call if its hook fails in any other way."""
    code, stderr = answer(hook(request("default", hook_argv=hook_argv)), "ls")
    assert code == 2 and stderr.endswith("the permission rules could not be applied to this call\n")


def test_killed_hook_command_denies_the_call():
    code, stderr = answer(hook(request("default", hook_argv=("/bin/sh", "-c", "kill -9 $$"))), "ls")
    assert code == 2 and "could not be applied" in stderr


def build_asking_settings(mode, *flags, **rules):
    """Return the settings of an app-server that asks about its calls."""
    launch_request = request(mode, **rules)._replace(invocation=parse_argv(["-p", "hi", *flags]))
    args, values = codex_rules.build_app_server_arguments(launch_request), {}
    for flag, arg in pairwise(args):
        if flag == "-c":
            key, _, value = arg.partition("=")
            values[key] = tomllib.loads(f"it = {value}")["it"]
    return values


ANSWERED = ("--permission-prompt-tool", "stdio")


@loop_over_rows(
    ("mode", "flags", "sandbox"),
    [
        ("default", ANSWERED, "danger-full-access"),
        ("acceptEdits", ANSWERED, "danger-full-access"),
        ("plan", ANSWERED, "read-only"),
        ("dontAsk", ANSWERED, "read-only"),
        ("default", (), "read-only"),
        ("acceptEdits", (), "workspace-write"),
        (BYPASS, (), "danger-full-access"),
    ],
)
def test_app_server_sandbox_mode_depends_on_permission_mode_and_prompts(mode, flags, sandbox):
    assert build_asking_settings(mode, *flags)["sandbox_mode"] == sandbox


@loop_over_rows(("mode", "sandbox"), [("default", "danger-full-access"), ("plan", "read-only")])
def test_command_that_a_hook_of_the_frontend_may_allow_runs_without_the_sandbox(mode, sandbox):
    launch_request = request(mode)._replace(hooks_may_allow=True)
    assert f'sandbox_mode="{sandbox}"' in codex_rules.build_sandbox_arguments(launch_request)


def test_app_server_disables_the_tty_of_commands():
    assert build_asking_settings(BYPASS)["features.unified_exec_tty"] is False


def test_request_user_input_is_enabled_only_if_the_frontend_can_answer():
    key = "features.default_mode_request_user_input"
    assert (
        key in build_asking_settings("default", *ANSWERED),
        key in build_asking_settings("default"),
    ) == (True, False)

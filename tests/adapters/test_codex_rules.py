"""What codex is told of the rules: its words for every mode, and a hook that fails closed."""

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
from shim.core.errors import PermissionModeError
from shim.core.policy.policy import Policy
from shim.core.policy.rules import PermissionRule, parse_permission_rules
from shim.core.policy.serialize import PolicyContext, parse_policy
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.policy.workspace import Workspace

HERE = Workspace('/work/it\'s "här"', "/home")
BYPASS = "bypassPermissions"
HOOK_SECONDS = 60


def request(mode, workspace=HERE, hook_argv=HOOK_ARGV, **rules):
    policy = Policy(
        workspace=workspace,
        **{kind: parse_permission_rules(texts) for kind, texts in rules.items()},
    )
    mode_arguments = get_adapter("codex").resolve_mode_arguments(mode)
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
    """codex's settings, as its `-c` words say them one over the other."""
    args, values = build_args(launch_request), {}
    for flag, arg in pairwise(args):
        if flag == "-c":
            key, _, value = arg.partition("=")
            values[key] = tomllib.loads(f"it = {value}")["it"]
    return values


def hook(launch_request):
    """The command of the only hook."""
    ((handler,),) = (group["hooks"] for group in settings(launch_request)["hooks.PreToolUse"])
    return handler["command"]


def answer(command, call, **more):
    """How the hook ends for a command of the model's, and what it says."""
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


def test_the_widest_mode_without_rules_is_told_nothing():
    assert settings(request(BYPASS)) == {} and "--ignore-rules" not in build_args(request(BYPASS))


@pytest.mark.parametrize("mode", ["default", "plan", "acceptEdits"])
def test_a_narrower_mode_has_the_hook_and_no_files_that_widen(mode):
    args = build_args(request(mode))
    assert {"--ignore-rules", "--dangerously-bypass-hook-trust"} <= set(args)
    assert settings(request(mode))["features.hooks"] is True
    assert settings(request(mode))["web_search"] == "disabled"


def test_each_folder_around_the_working_directory_is_untrusted():
    untrusted = {"trust_level": "untrusted"}
    assert settings(request("default"))["projects"] == dict.fromkeys(
        ("/", "/work", HERE.cwd), untrusted
    )


def test_the_folder_that_a_link_leads_to_is_untrusted_too():
    linked = Workspace("/work", resolve_links=lambda path: path.replace("/work", "/real/place"))
    assert set(settings(request("plan", linked))["projects"]) == {
        "/",
        "/work",
        "/real",
        "/real/place",
    }


def test_the_sandbox_is_open_only_where_something_may_be_changed():
    assert settings(request("plan", allow=["Bash"]))["sandbox_mode"] == "read-only"
    assert settings(request("default"))["sandbox_mode"] == "read-only"
    assert settings(request("default", allow=["Write"]))["sandbox_mode"] == "workspace-write"
    assert settings(request("acceptEdits"))["sandbox_mode"] == "workspace-write"


def test_an_open_sandbox_ends_at_the_folders_of_the_turn():
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
def test_a_rule_brings_the_hook_to_the_widest_mode_too(kind):
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
def test_the_web_is_searched_only_with_leave(mode, rules, searches):
    assert ("web_search" not in settings(request(mode, **rules))) is searches


def test_the_web_is_not_searched_under_a_hook_of_the_settings_about_it():
    for matcher, searches in (("Bash", True), ("WebSearch", False), ("", False)):
        hooked = Policy(workspace=HERE, hooks=[SettingsHook(matcher, "true")])
        assert ("web_search" not in settings(request(BYPASS)._replace(policy=hooked))) is searches


def test_a_hook_of_the_settings_is_carried_and_opens_the_sandbox_for_what_it_may_allow():
    hooks = (SettingsHook("Bash", "echo '\"'", ("a",), "Bash(x:*)", 7.0, True, "settings.json"),)
    launch_request = request("default")._replace(
        policy=Policy(workspace=HERE, hooks=hooks), session_id="S", transcript_path="/t"
    )
    policy, context = parse_policy(shlex.split(hook(launch_request))[-1], str)
    assert (policy.hooks, context) == (hooks, PolicyContext("default", "S", "/t"))
    assert settings(launch_request)["sandbox_mode"] == "workspace-write"


def test_too_many_rules_for_an_argument_are_refused():
    with pytest.raises(PermissionModeError, match="so many permission rules"):
        build_args(request("default", deny=[f"Bash(command-{number})" for number in range(5000)]))


@pytest.mark.parametrize(
    "launch_request", [request("default"), request(BYPASS, deny=["Bash"])], ids=["mode", "rule"]
)
def test_codex_is_not_started_where_the_hook_may_be_switched_off(launch_request):
    with pytest.raises(
        PermissionModeError, match=r"might not start the hook .*: behind a launcher"
    ):
        build_args(
            launch_request._replace(policy_bypass="behind a launcher it might not see our file")
        )
    assert build_args(
        request(BYPASS)._replace(policy_bypass="behind a launcher it might not see our file")
    )


# -- the hook --------------------------------------------------------------------------------------


def test_the_hook_lets_through_what_the_rules_allow_and_says_why_it_refuses():
    command = hook(request("default", deny=["Bash(touch:*)"]))
    assert answer(command, "ls") == (0, "")
    assert answer(command, "A=1 touch x") == (2, "Bash is not allowed (Bash(touch:*))\n")
    assert answer(command, "make") == (2, "Bash is not allowed and nobody can be asked (default)\n")


def test_an_event_that_the_hook_does_not_understand_is_refused():
    command = hook(request(BYPASS, deny=["Bash(touch:*)"]))
    code, stderr = answer(command, None)
    assert code == 2 and stderr.startswith("the call cannot be judged")


@pytest.mark.parametrize(
    "hook_argv", [("/not/there",), ("false",), (sys.executable, "-c", "raise SystemExit(1)")]
)
def test_a_hook_that_fails_refuses_the_call_and_says_so(hook_argv):
    """codex runs a call whose hook fails in any other way than this."""
    code, stderr = answer(hook(request("default", hook_argv=hook_argv)), "ls")
    assert code == 2 and stderr.endswith(
        "the permission rules could not be asked about this call\n"
    )


def test_a_hook_that_is_killed_refuses_the_call():
    code, stderr = answer(hook(request("default", hook_argv=("/bin/sh", "-c", "kill -9 $$"))), "ls")
    assert code == 2 and "could not be asked" in stderr


def build_asking_settings(mode, *flags, **rules):
    """The settings of an app-server, which asks about its calls."""
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
def test_a_command_that_a_person_allowed_has_no_sandbox_and_all_others_have_their_own(
    mode, flags, sandbox
):
    assert build_asking_settings(mode, *flags)["sandbox_mode"] == sandbox


def test_nothing_is_typed_into_a_program_that_was_asked_about():
    assert build_asking_settings(BYPASS)["features.unified_exec_tty"] is False


def test_the_person_is_asked_by_the_model_only_where_there_is_one():
    key = "features.default_mode_request_user_input"
    assert (
        key in build_asking_settings("default", *ANSWERED),
        key in build_asking_settings("default"),
    ) == (True, False)

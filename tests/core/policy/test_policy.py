"""The decision about a call: as the real claude decides, or stricter if a command line is
ambiguous.
"""

import policy_cases
import pytest
from policy_builder import build_evaluator
from sweeps import loop_over_rows

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import parse_permission_rule, parse_permission_rules

BYPASS = "bypassPermissions"
STRICTER = {"allow": 0, "ask": 1, "deny": 2}


@pytest.mark.parametrize("case", policy_cases.load_cases(), ids=str)
def test_evaluated_outcome_matches_the_recorded_case(case, tmp_path):
    case.write_files(tmp_path)
    policy = case.build_policy(tmp_path)
    became = {
        f"{call.tool} {call.argument}": PolicyEvaluator(policy)
        .evaluate_tool_call(*call.build_call(tmp_path), case.mode)
        .outcome
        for call in case.calls
    }
    assert became == {f"{call.tool} {call.argument}": call.ours for call in case.calls}


def test_recorded_outcomes_are_never_wider_than_those_of_claude():
    judged_calls = [call for case in policy_cases.load_cases() for call in case.calls]
    assert len(judged_calls) >= 150
    assert [call for call in judged_calls if STRICTER[call.ours] < STRICTER[call.theirs]] == []


def became(evaluator, tool, mode="default", **tool_input):
    return evaluator.evaluate_tool_call(tool, tool_input, mode).outcome


@pytest.mark.parametrize("rule", ["mcp__srv", "mcp__srv__*", "mcp__srv__tool"])
def test_deny_rule_matches_an_mcp_server_a_wildcard_or_a_tool(rule):
    assert became(build_evaluator(deny=[rule]), "mcp__srv__tool") == "deny"
    assert became(build_evaluator(deny=[rule]), "mcp__srver__tool", "bypassPermissions") == "allow"


@pytest.mark.parametrize("rule", ["Agent", "Task"])
@pytest.mark.parametrize("tool", ["Agent", "Task"])
def test_agent_and_task_rules_match_the_same_tool(rule, tool):
    assert became(build_evaluator(deny=[rule]), tool) == "deny"


def test_ask_rule_overrides_an_allow_rule():
    asks = build_evaluator(ask=["Bash(touch:*)"], allow=["Bash"])
    assert became(asks, "Bash", command="touch a") == "ask"
    assert became(asks, "Bash", command="ls") == "allow"


def test_search_of_a_directory_with_a_denied_file_is_denied():
    anywhere = build_evaluator(deny=["Read(key)"])
    assert became(anywhere, "Grep", pattern="x") == "deny"
    assert became(anywhere, "Grep", pattern="x", path="/work/sub") == "deny"
    for rule in ("Read(//work/secret/**)", "Read(./secret/key)", "Read(/secret)"):
        evaluator = build_evaluator(deny=[rule])
        assert became(evaluator, "Grep", pattern="x", path="/work") == "deny"
        assert became(evaluator, "Grep", pattern="x", path="/work/sub") == "allow"


@loop_over_rows(
    "line",
    ["touch 'a", "echo $((", "a" * 200_000, "\0touch", "((((((" * 100, "if", "cat <<E\ntouch"],
)
def test_unparsable_command_is_denied_by_any_deny_rule_and_never_allowed(line):
    assert became(build_evaluator(deny=["Bash(rm:*)"]), "Bash", command=line) == "deny"
    assert (
        became(build_evaluator(allow=["Bash(touch:*)", "Bash(a:*)"]), "Bash", command=line) == "ask"
    )


def test_command_is_evaluated_in_its_working_directory():
    denied = build_evaluator(deny=["Read(./secret)"])
    assert became(denied, "Bash", command="cat x", directory="/work/secret") == "deny"
    for rule in ("Bash(touch m)", "Bash(touch:*)"):
        assert became(build_evaluator(allow=[rule]), "Bash", command="touch m") == "allow"
        assert (
            became(build_evaluator(allow=[rule]), "Bash", command="touch m", directory="/elsewhere")
            == "ask"
        )


def test_edit_without_a_path_is_denied_by_a_path_rule():
    assert became(build_evaluator(deny=["Edit(./x)"]), "Write") == "deny"


def test_too_many_rules_deny_every_call():
    evaluator = build_evaluator()
    evaluator.policy.add_rules(
        {"deny": parse_permission_rules(f"Bash(x{number})" for number in range(10_001))}
    )
    assert became(evaluator, "Read", "bypassPermissions", file_path="/work/a") == "deny"


def test_added_allow_rule_does_not_override_a_deny_rule():
    evaluator = build_evaluator(deny=["Bash(rm:*)"])
    evaluator.policy.add_rules({"allow": parse_permission_rules(["Bash(touch:*)", "Bash(rm:*)"])})
    assert became(evaluator, "Bash", command="touch a") == "allow"
    assert became(evaluator, "Bash", command="rm a") == "deny"


@pytest.mark.parametrize("rule", ["Bash()", "Bash(*)", "Bash(:*)"])
def test_catch_all_specifier_denies_and_hides_the_tool(rule):
    evaluator = build_evaluator(deny=[rule])
    assert evaluator.policy.list_visible_tools(["Bash"]) == []
    assert evaluator.evaluate_tool_call("Bash", {}, BYPASS).outcome == "deny"


def test_only_listed_tools_are_visible_and_allowed():
    evaluator = build_evaluator(only=["Read"])
    assert evaluator.policy.list_visible_tools(["Bash", "Read"]) == ["Read"]
    assert evaluator.evaluate_tool_call("Bash", {}, BYPASS).outcome == "deny"
    assert evaluator.evaluate_tool_call("Read", {}, BYPASS).outcome == "allow"


def test_empty_tool_list_denies_every_tool():
    """`--tools ""` disables every tool. That differs from a missing `--tools`."""
    evaluator = build_evaluator(only=[])
    assert evaluator.policy
    assert evaluator.policy.list_visible_tools(["Bash"]) == []
    assert evaluator.evaluate_tool_call("Bash", {}, BYPASS).outcome == "deny"


def test_hidden_tool_is_not_listed():
    evaluator = build_evaluator(hidden=["Grep"], deny=["Grep"])
    assert evaluator.policy.list_visible_tools(["Grep", "Bash"]) == ["Bash"]
    assert evaluator.is_hidden_tool("Grep")


def test_deny_rule_with_a_specifier_does_not_hide_the_tool():
    """Contract F8."""
    evaluator = build_evaluator(deny=["Bash(rm *)"])
    assert evaluator.policy
    assert evaluator.policy.list_visible_tools(["Bash"]) == ["Bash"]


@loop_over_rows(
    ("rule", "name", "tool_input", "expected"),
    [
        ("Bash(rm *)", "Bash", {"command": "rm -rf /"}, "deny"),
        ("Bash(rm *)", "Bash", {"command": "ls"}, "allow"),
        ("Bash(rm *)", "Read", {"file_path": "rm x"}, "allow"),
        ("Bash(rm:*)", "Bash", {"command": "rm"}, "deny"),
        ("Bash(rm:*)", "Bash", {"command": "rm -r x"}, "deny"),
        ("Bash(rm:*)", "Bash", {"command": "rmdir x"}, "allow"),
        ("Read(./secret/**)", "Read", {"file_path": "secret/a"}, "deny"),
        ("Read(./secret/**)", "Read", {"file_path": "/work/secret/a"}, "deny"),
        ("Read(./secret/**)", "Read", {"file_path": "/work/open/a"}, "allow"),
        ("Read(~/.ssh/**)", "Read", {"file_path": "/home/ann/.ssh/id"}, "deny"),
        ("Read(//etc/**)", "Read", {"file_path": "/etc/passwd"}, "deny"),
        ("Read(/secret/**)", "Read", {"file_path": "/work/secret/a"}, "deny"),
        ("Read(~/.ssh/**)", "Read", {"file_path": "/home/ann/ssh/id"}, "allow"),
        ("Edit(*.lock)", "Edit", {"file_path": "/work/uv.lock"}, "deny"),
        ("WebFetch(domain:evil.example)", "WebFetch", {"url": "https://evil.example/x"}, "deny"),
        ("WebFetch(domain:evil.example)", "WebFetch", {"url": "https://good.example/"}, "allow"),
        ("NotebookEdit(*.ipynb)", "NotebookEdit", {"notebook_path": "/work/a.ipynb"}, "deny"),
    ],
)
def test_deny_specifier_matches_the_relevant_argument(rule, name, tool_input, expected):
    assert (
        build_evaluator(deny=[rule]).evaluate_tool_call(name, tool_input, BYPASS).outcome
        == expected
    )


@loop_over_rows(
    ("rule", "name", "tool_input", "permitted"),
    [
        ("Bash", "Bash", {"command": "rm -rf /; ls"}, True),
        ("Bash(git status)", "Bash", {"command": "git status"}, True),
        ("Bash(git status)", "Bash", {"command": "rm -rf /home/git status"}, False),
        ("Bash(git status)", "Bash", {"command": "./evil/git status"}, False),
        ("Bash(git *)", "Bash", {"command": "git push"}, True),
        ("Bash(git *)", "Bash", {"command": "rm -rf /x/git log"}, False),
        ("Bash(git:*)", "Bash", {"command": "git push"}, True),
        ("Bash(git:*)", "Bash", {"command": "gitk"}, False),
        ("Read(/src/**)", "Read", {"file_path": "/work/src/a"}, True),
        ("Read(./src/**)", "Read", {"file_path": "/other/src/a"}, False),
        ("Read(/src/**)", "Read", {"file_path": "/work/src/../../etc/passwd"}, False),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example/x"}, True),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example"}, True),
        (
            "WebFetch(domain:good.example)",
            "WebFetch",
            {"url": "https://evil.example/?good.example"},
            False,
        ),
        (
            "WebFetch(domain:good.example)",
            "WebFetch",
            {"url": "https://good.example.evil.example/"},
            False,
        ),
        (
            "WebFetch(domain:good.example)",
            "WebFetch",
            {"url": "https://good.example@evil.example/"},
            False,
        ),
        (
            "WebFetch(domain:evil.example)",
            "WebFetch",
            {"url": "https://good.example?@evil.example/"},
            False,
        ),
        ("Read", "Read", {}, True),
        ("Read(//work/**)", "Read", {}, False),
    ],
)
def test_allow_rule_permits_only_matching_calls(rule, name, tool_input, permitted):
    decision = build_evaluator(allow=[rule]).evaluate_tool_call(name, tool_input, "default")
    assert (decision.outcome == "allow" and decision.is_by_rule) is permitted


@pytest.mark.parametrize(
    "tool_input", [{}, {"command": None}, {"command": ["rm", "-rf"]}, {"raw": "rm -rf /"}]
)
def test_unreadable_tool_input_is_denied_by_the_rule(tool_input):
    """The policy never allows more than the rules: a rule that cannot be checked denies."""
    assert (
        build_evaluator(deny=["Bash(rm *)"]).evaluate_tool_call("Bash", tool_input, BYPASS).outcome
        == "deny"
    )


def test_deny_rule_matches_the_exact_name_of_an_mcp_tool():
    evaluator = build_evaluator(deny=["mcp__db__drop"])
    assert evaluator.evaluate_tool_call("mcp__db__drop", {}, BYPASS).outcome == "deny"
    assert evaluator.evaluate_tool_call("mcp__db__read", {}, BYPASS).outcome == "allow"


@loop_over_rows(
    "command",
    [
        "cd /x && rm -rf y",
        "  rm\t-rf y",
        "true\nrm -rf y",
        "echo $(rm -rf y)",
        "(rm -rf y)",
        "ls | rm y",
    ],
)
def test_denied_command_inside_a_compound_command_is_denied(command):
    for rule in ("Bash(rm *)", "Bash(rm:*)"):
        assert (
            build_evaluator(deny=[rule])
            .evaluate_tool_call("Bash", {"command": command}, BYPASS)
            .outcome
            == "deny"
        )
    assert (
        build_evaluator(deny=["Bash(mv:*)"])
        .evaluate_tool_call("Bash", {"command": command}, BYPASS)
        .outcome
        == "allow"
    )


@loop_over_rows(
    ("rule", "allows", "narrows"),
    [
        ("mcp__s_x__do_it", True, True),
        ("mcp__s_x", True, True),
        ("mcp__s_x__*", True, True),
        ("mcp__s.x", False, True),
        ("mcp__s.x__do it", False, True),
        ("mcp__s.x__*", False, True),
        ("mcp__s.*", False, True),
        ("mcp__s_y", False, False),
    ],
)
def test_only_restrictive_rules_match_unnormalized_mcp_server_names(rule, allows, narrows):
    """Measured with claude 2.1.330. A deny rule may also spell the server as its configuration
    does.
    """
    for name in ("mcp__s.x__do it", "mcp__s_x__do_it"):
        assert parse_permission_rule(rule).matches_tool(name) is allows
        assert parse_permission_rule(rule).matches_tool(name, is_restriction=True) is narrows


@pytest.mark.parametrize(
    "rule", ["mcp__s.x__do it(a:*)", "mcp__s_x__do_it(a:*)", "mcp__s.x__*(a:*)"]
)
def test_deny_specifier_matches_either_spelling_of_an_mcp_server(rule):
    for name in ("mcp__s.x__do it", "mcp__s_x__do_it"):
        assert build_evaluator(deny=[rule]).is_rule_violation(name, {"text": "a b"})
        assert not build_evaluator(deny=[rule]).is_rule_violation(name, {"text": "b"})


@pytest.mark.parametrize(("hook", "decided"), [(False, "ask"), (True, "allow")])
def test_unnamed_tool_is_allowed_by_a_hook_but_not_by_a_rule(hook, decided):
    """copilot does not name MCP tools, so a rule for one tool would apply to all. A hook allows the
    call that it saw.
    """
    assert (
        build_evaluator(allow=["unknown"])
        .evaluate_tool_call("unknown", {}, "default", hook_allows_call=hook)
        .outcome
        == decided
    )


def test_deny_rule_matches_an_unnamed_tool():
    assert (
        build_evaluator(deny=["unknown"])
        .evaluate_tool_call("unknown", {}, "bypassPermissions")
        .outcome
        == "deny"
    )

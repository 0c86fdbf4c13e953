"""What becomes of a call: as the real claude judges it, or stricter where a line cannot be told."""

import judged
import pytest
from ruling import build_evaluator
from sweeps import loop_over_rows

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.rules import parse_permission_rule, parse_permission_rules

BYPASS = "bypassPermissions"
STRICTER = {"allow": 0, "ask": 1, "deny": 2}


@pytest.mark.parametrize("case", judged.load_cases(), ids=str)
def test_a_call_becomes_what_the_real_claude_makes_of_it(case, tmp_path):
    case.write_files(tmp_path)
    policy = case.build_policy(tmp_path)
    became = {
        f"{call.tool} {call.argument}": PolicyEvaluator(policy)
        .evaluate(*call.build_call(tmp_path), case.mode)
        .outcome
        for call in case.calls
    }
    assert became == {f"{call.tool} {call.argument}": call.ours for call in case.calls}


def test_no_verdict_that_was_judged_is_wider_than_the_real_ones():
    judged_calls = [call for case in judged.load_cases() for call in case.calls]
    assert len(judged_calls) >= 150
    assert [call for call in judged_calls if STRICTER[call.ours] < STRICTER[call.theirs]] == []


def became(evaluator, tool, mode="default", **tool_input):
    return evaluator.evaluate(tool, tool_input, mode).outcome


@pytest.mark.parametrize("rule", ["mcp__srv", "mcp__srv__*", "mcp__srv__tool"])
def test_a_server_is_denied_by_its_name_by_all_its_tools_and_by_one(rule):
    assert became(build_evaluator(deny=[rule]), "mcp__srv__tool") == "deny"
    assert became(build_evaluator(deny=[rule]), "mcp__srver__tool", "bypassPermissions") == "allow"


@pytest.mark.parametrize("rule", ["Agent", "Task"])
@pytest.mark.parametrize("tool", ["Agent", "Task"])
def test_the_subagent_has_two_names_and_one_meaning(rule, tool):
    assert became(build_evaluator(deny=[rule]), tool) == "deny"


def test_a_rule_that_asks_is_obeyed_though_everything_is_allowed():
    asks = build_evaluator(ask=["Bash(touch:*)"], allow=["Bash"])
    assert became(asks, "Bash", command="touch a") == "ask"
    assert became(asks, "Bash", command="ls") == "allow"


def test_a_search_through_a_folder_is_denied_where_it_would_show_a_denied_file():
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
def test_a_line_that_cannot_be_taken_apart_is_denied_by_any_rule_and_allowed_by_none(line):
    assert became(build_evaluator(deny=["Bash(rm:*)"]), "Bash", command=line) == "deny"
    assert (
        became(build_evaluator(allow=["Bash(touch:*)", "Bash(a:*)"]), "Bash", command=line) == "ask"
    )


def test_a_command_in_another_folder_is_judged_there():
    denied = build_evaluator(deny=["Read(./secret)"])
    assert became(denied, "Bash", command="cat x", directory="/work/secret") == "deny"
    for rule in ("Bash(touch m)", "Bash(touch:*)"):
        assert became(build_evaluator(allow=[rule]), "Bash", command="touch m") == "allow"
        assert (
            became(build_evaluator(allow=[rule]), "Bash", command="touch m", directory="/elsewhere")
            == "ask"
        )


def test_a_call_without_its_path_is_denied_by_a_rule_about_paths():
    assert became(build_evaluator(deny=["Edit(./x)"]), "Write") == "deny"


def test_more_rules_than_can_be_looked_at_deny_everything():
    evaluator = build_evaluator()
    evaluator.policy.add_rules(
        {"deny": parse_permission_rules(f"Bash(x{number})" for number in range(10_001))}
    )
    assert became(evaluator, "Read", "bypassPermissions", file_path="/work/a") == "deny"


def test_what_a_person_granted_allows_and_a_denied_call_stays_denied():
    evaluator = build_evaluator(deny=["Bash(rm:*)"])
    evaluator.policy.add_rules({"allow": parse_permission_rules(["Bash(touch:*)", "Bash(rm:*)"])})
    assert became(evaluator, "Bash", command="touch a") == "allow"
    assert became(evaluator, "Bash", command="rm a") == "deny"


@pytest.mark.parametrize("rule", ["Bash()", "Bash(*)", "Bash(:*)"])
def test_a_specifier_that_means_everything_denies_the_tool(rule):
    evaluator = build_evaluator(deny=[rule])
    assert evaluator.policy.list_visible_tools(["Bash"]) == []
    assert evaluator.evaluate("Bash", {}, BYPASS).outcome == "deny"


def test_only_the_named_tools_are_left():
    evaluator = build_evaluator(only=["Read"])
    assert evaluator.policy.list_visible_tools(["Bash", "Read"]) == ["Read"]
    assert evaluator.evaluate("Bash", {}, BYPASS).outcome == "deny"
    assert evaluator.evaluate("Read", {}, BYPASS).outcome == "allow"


def test_no_tool_at_all_may_be_left():
    """`--tools ""` takes every tool away; that is not the same as no `--tools`."""
    evaluator = build_evaluator(only=[])
    assert evaluator.policy
    assert evaluator.policy.list_visible_tools(["Bash"]) == []
    assert evaluator.evaluate("Bash", {}, BYPASS).outcome == "deny"


def test_a_hidden_tool_is_not_listed():
    evaluator = build_evaluator(hidden=["Grep"], deny=["Grep"])
    assert evaluator.policy.list_visible_tools(["Grep", "Bash"]) == ["Bash"]
    assert evaluator.is_hidden_tool("Grep")


def test_a_rule_with_a_specifier_leaves_the_tool_on_the_list():
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
def test_a_specifier_looks_at_the_argument_that_matters(rule, name, tool_input, expected):
    assert build_evaluator(deny=[rule]).evaluate(name, tool_input, BYPASS).outcome == expected


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
def test_a_call_is_allowed_beforehand_only_by_a_rule_that_says_just_it(
    rule, name, tool_input, permitted
):
    decision = build_evaluator(allow=[rule]).evaluate(name, tool_input, "default")
    assert (decision.outcome == "allow" and decision.is_by_rule) is permitted


@pytest.mark.parametrize(
    "tool_input", [{}, {"command": None}, {"command": ["rm", "-rf"]}, {"raw": "rm -rf /"}]
)
def test_a_call_that_cannot_be_read_falls_under_the_rule(tool_input):
    """Never wider than asked for: a rule that cannot be checked denies."""
    assert (
        build_evaluator(deny=["Bash(rm *)"]).evaluate("Bash", tool_input, BYPASS).outcome == "deny"
    )


def test_the_names_of_mcp_tools_are_names_like_others():
    evaluator = build_evaluator(deny=["mcp__db__drop"])
    assert evaluator.evaluate("mcp__db__drop", {}, BYPASS).outcome == "deny"
    assert evaluator.evaluate("mcp__db__read", {}, BYPASS).outcome == "allow"


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
def test_a_denied_command_is_found_among_others(command):
    for rule in ("Bash(rm *)", "Bash(rm:*)"):
        assert (
            build_evaluator(deny=[rule]).evaluate("Bash", {"command": command}, BYPASS).outcome
            == "deny"
        )
    assert (
        build_evaluator(deny=["Bash(mv:*)"]).evaluate("Bash", {"command": command}, BYPASS).outcome
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
def test_a_rule_matches_claudes_name_of_an_mcp_tool(rule, allows, narrows):
    """Measured with claude 2.1.330. A rule that forbids may also spell the server as its
    configuration does.
    """
    for name in ("mcp__s.x__do it", "mcp__s_x__do_it"):
        assert parse_permission_rule(rule).matches_tool(name) is allows
        assert parse_permission_rule(rule).matches_tool(name, is_restriction=True) is narrows


@pytest.mark.parametrize(
    "rule", ["mcp__s.x__do it(a:*)", "mcp__s_x__do_it(a:*)", "mcp__s.x__*(a:*)"]
)
def test_a_rule_about_an_argument_may_spell_the_server_as_its_configuration_does(rule):
    for name in ("mcp__s.x__do it", "mcp__s_x__do_it"):
        assert build_evaluator(deny=[rule]).is_rule_violation(name, {"text": "a b"})
        assert not build_evaluator(deny=[rule]).is_rule_violation(name, {"text": "b"})


@pytest.mark.parametrize(("hook", "decided"), [(False, "ask"), (True, "allow")])
def test_no_rule_allows_a_call_whose_tool_has_no_name(hook, decided):
    """copilot names no tool of MCP: a rule about one of them would be about all. A hook allows the
    call that it saw.
    """
    assert (
        build_evaluator(allow=["unknown"])
        .evaluate("unknown", {}, "default", hook_allows_call=hook)
        .outcome
        == decided
    )


def test_a_rule_denies_a_call_whose_tool_has_no_name():
    assert (
        build_evaluator(deny=["unknown"]).evaluate("unknown", {}, "bypassPermissions").outcome
        == "deny"
    )

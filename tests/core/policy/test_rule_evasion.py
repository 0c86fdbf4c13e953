"""Calls that try to evade the rules: the apparent meaning of a line, and what a shell or a vendor
would do.
"""

import pytest
from policy_builder import build_evaluator
from sweeps import loop_over_rows

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules

BYPASS = "bypassPermissions"


def became(evaluator, tool, mode="default", **tool_input):
    return evaluator.evaluate_tool_call(tool, tool_input, mode).outcome


@loop_over_rows("mode", ["default", "plan", "acceptEdits"])
@loop_over_rows(
    "line",
    [
        "sed -n 1p -e '1e touch m' notes.txt",
        "sed -n 1p -i notes.txt",
        "ls\r#; touch m",
        "ls\v#; touch m",
        "[ a ]#; touch m",
        "ls \\ #; touch m",
        "ls\\\t#; touch m",
        "for PATH in ./sub; do ls; done",
        "for a in 'x[$(touch m)]'; do [[ a -eq 1 ]]; done",
        "jq -n env",
        "jq -f f x",
        "date 0101",
        "ps auxe",
        "time cd .git; echo x > config",
        "grep -rf list .",
        "wc --files0-from=l",
    ],
)
def test_command_with_hidden_effects_is_not_allowed_without_a_prompt(line, mode):
    assert became(build_evaluator(), "Bash", mode, command=line) != "allow"


@loop_over_rows(
    "line",
    [
        "sed -i '1e touch m' notes.txt",
        "sed -i -e 's/a/b/' n",
        "sed -i 's/n/id/e' f",
        "sed -i '1w ../out' f",
        "cp -rt.. sub",
        "cp -t.git f",
        "mv -t.claude n",
        "mv sub a2; touch a2/l/foo",
        "cp -r evil/. .",
        "cp -p a b",
        "cp .git/config sub/.git",
        "cp a/.npmrc .",
    ],
)
def test_accept_edits_mode_prompts_for_commands_that_may_write_elsewhere(line):
    assert became(build_evaluator(), "Bash", "acceptEdits", command=line) == "ask"


@loop_over_rows(
    "line",
    [
        "ls\r#; touch m",
        "[ a ]#; touch m",
        "ls \\ #; touch m",
        "coproc ls x\n\\touch m",
        "env -S'touch m'",
        "echo 'touch m' | sh",
        "sh <<< 'touch m'",
        "bash -s x <<E\ntouch m\nE",
        "X='b[$(touch m)]'; [[ X -eq 1 ]]",
        'X="b[\\$(touch m)]"; (( X ))',
        "X=$'b[\\x24(touch m)]'; echo $((X))",
        "unset 'b[`touch m`]'",
        "sed -n '1e touch m' notes.txt",
        "sed -n -e p -e '1e touch m' notes.txt",
        "sed s/a/b/e notes.txt",
        "sed -f script notes.txt",
        "nice sed -n '1e touch m' notes.txt",
        "nice env -S'touch m'",
        "cat <<E\nE # $(touch m)\nE",
        "cat <<E\n$(coproc case x in x) touch m;; esac)\nE",
        "cat <<E\n$(! case x in x) touch m;; esac)\nE",
        "touch m; true || sed '" + "\n" * 40 + "&' x",
        "su " * 150 + "touch m",
    ],
)
def test_denied_command_is_detected_inside_shell_constructs(line):
    assert became(build_evaluator(deny=["Bash(touch:*)"]), "Bash", BYPASS, command=line) == "deny"


@loop_over_rows(
    "line",
    [
        "for i in 1 2; do cat x; cd secret; done",
        "f(){ cat x; }; cd secret; f",
        "trap 'cat x' EXIT; cd secret",
        "env -C secret cat x",
        "env --chdir=secret cat x",
        "$X secret/x",
        "X='b[$(cat < secret/x)]'; [[ X -eq 1 ]]",
    ],
)
def test_denied_file_is_detected_after_a_directory_change_in_a_command(line):
    assert (
        became(build_evaluator(deny=["Read(./secret/**)"]), "Bash", BYPASS, command=line) == "deny"
    )


@loop_over_rows("line", [
    "cp -tsecret notes.txt", "sed -n '1w secret/x' notes.txt", "$X secret/x", "apply_patch <<E\nE", "'applypatch' x",
    "cd secret && apply_patch <<'E'\nE",
])  # fmt: skip
def test_denied_edit_is_detected_in_program_arguments(line):
    assert (
        became(build_evaluator(deny=["Edit(./secret/**)"]), "Bash", BYPASS, command=line) == "deny"
    )


@loop_over_rows(
    "line",
    [
        "sed -n 1,5p notes.txt",
        "sed -e 's/\"a\\/b|c\"/`/g; /x/,$d' -E notes.txt",
        "git commit -m 'use `rm` (see $(notes))'",
        "for i in 1 2; do echo $((i + 1)); done",
        "sh script.sh",
        "awk '{print $(NF)}' notes.txt",
    ],
)
def test_ordinary_command_is_not_blocked_by_unrelated_deny_rules(line):
    assert (
        became(
            build_evaluator(deny=["Bash(touch:*)", "Edit(./secret/**)"]),
            "Bash",
            BYPASS,
            command=line,
        )
        == "allow"
    )


@pytest.mark.parametrize(
    "line", ["git x \\ #; touch m", "for PATH in sub:/usr/bin; do git x; done"]
)
def test_allow_rule_does_not_match_a_command_with_additional_effects(line):
    assert became(build_evaluator(allow=["Bash(git:*)"]), "Bash", command=line) == "ask"


@loop_over_rows(
    ("rule", "tool", "tool_input"),
    [
        ("Edit(\\)", "Write", {"file_path": "/work/z"}),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "http://evil.com\\@example.com"}),
        ("Monitor(ls:*)", "Monitor", {"command": "touch m", "description": "ls -l"}),
        ("Edit", "Bash", {"command": "echo x > /etc/x"}),
        ("Write", "Write", {"file_path": "/work/.claude/settings.json"}),
        ("Edit(./sub/**)", "Bash", {"command": "echo x > sub/.git/config"}),
        ("Edit(./sub/**)", "Write", {"file_path": "/work/sub/.git/config"}),
        ("Read(./sub/**)", "Glob", {"pattern": "/etc/*"}),
    ],
)
def test_allow_rule_does_not_match_an_ambiguous_call(rule, tool, tool_input):
    assert became(build_evaluator(allow=[rule]), tool, **tool_input) == "ask"


@loop_over_rows(
    ("rule", "tool", "tool_input"),
    [
        ("mcp__*", "mcp__srv__x", {}),
        ("mcp__srv__get_*", "mcp__srv__get_a", {}),
        ("*", "Read", {"file_path": "/work/a"}),
        ("Bash", "Monitor", {"command": "x"}),
        ("Bash(touch:*)", "Monitor", {"command": "touch m"}),
        ("Read(./secret/**)", "Glob", {"pattern": "secret/*"}),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "http://example.com./"}),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "http:/example.com"}),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "http://ex%61mple.com"}),
        ("Edit(a[z-a])", "Write", {"file_path": "/work/q"}),
        ("Edit(././secret/**)", "Write", {"file_path": "/work/secret/q"}),
        ("Edit(../out/**)", "Write", {"file_path": "/out/q"}),
        ("Edit(//a//b)", "Write", {"file_path": "/a/b"}),
    ],
)
def test_deny_rule_matches_every_ambiguous_call(rule, tool, tool_input):
    assert became(build_evaluator(deny=[rule]), tool, BYPASS, **tool_input) == "deny"


def resolve_path(path):
    """Resolve a path in a file system with one link: /work/l leads to /out/deep."""
    if path.startswith("/work/l/../"):
        return "/out/" + path[len("/work/l/../") :]
    return path


@pytest.mark.parametrize("line", ["cp hello l/../x", "cat l/../hid", "echo x > l/../x"])
def test_parent_folder_of_a_symlink_is_resolved_to_the_link_target(line):
    workspace = Workspace("/work", "/home/ann", (), resolve_path)
    evaluator = PolicyEvaluator(Policy(workspace=workspace))
    assert evaluator.evaluate_tool_call("Bash", {"command": line}, "acceptEdits").outcome == "ask"
    assert (
        evaluator.evaluate_tool_call(
            "Bash", {"command": line.replace("l/../", "sub/../")}, "acceptEdits"
        ).outcome
        == "allow"
    )
    denies = PolicyEvaluator(
        Policy(workspace=workspace, deny=parse_permission_rules(["Read(//out/**)"]))
    )
    assert denies.evaluate_tool_call("Bash", {"command": line}, BYPASS).outcome == "deny"


def test_copy_into_a_folder_is_checked_against_the_destination_symlink():
    workspace = Workspace(
        "/work", "/home/ann", (), lambda path: "/out/x" if path == "/work/sub/x" else path
    )
    assert (
        PolicyEvaluator(Policy(workspace=workspace))
        .evaluate_tool_call("Bash", {"command": "cp x sub"}, "acceptEdits")
        .outcome
        == "ask"
    )

"""Which tools are listed, allowed, denied and hidden."""

import pytest

from shim.core.claude.policy import Policy, split_rule


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("Read", ("Read", None)),
        ("Bash(rm *)", ("Bash", "rm *")),
        ("Bash()", ("Bash", "")),
        ("Bash(echo (x))", ("Bash", "echo (x)")),
        ("mcp__a__b", ("mcp__a__b", None)),
        ("Bash(rm", ("Bash(rm", None)),
    ],
)
def test_a_rule_is_a_name_and_perhaps_a_specifier(rule, parts):
    assert split_rule(rule) == parts


def test_no_rules_allow_everything():
    policy = Policy()
    assert not policy
    assert policy.listed(["Bash", "Read"]) == ["Bash", "Read"]
    assert policy.verdict("Bash", {"command": "ls"}) == "allow"


def test_a_denied_tool_is_not_listed_and_denied():
    policy = Policy(denied=["Bash"])
    assert policy
    assert policy.listed(["Bash", "Read"]) == ["Read"]
    assert policy.verdict("Bash", {"command": "ls"}) == "deny"
    assert policy.verdict("Read", {"file_path": "/a"}) == "allow"


@pytest.mark.parametrize("rule", ["Bash()", "Bash(*)", "Bash(:*)"])
def test_a_specifier_that_means_everything_denies_the_tool(rule):
    policy = Policy(denied=[rule])
    assert policy.listed(["Bash"]) == []
    assert policy.verdict("Bash", {}) == "deny"


def test_only_the_named_tools_are_left():
    policy = Policy(only=["Read"])
    assert policy.listed(["Bash", "Read"]) == ["Read"]
    assert policy.verdict("Bash", {}) == "deny"
    assert policy.verdict("Read", {}) == "allow"


def test_no_tool_at_all_may_be_left():
    """`--tools ""` takes every tool away; that is not the same as no `--tools`."""
    policy = Policy(only=[])
    assert policy
    assert policy.listed(["Bash"]) == []
    assert policy.verdict("Bash", {}) == "deny"


def test_a_hidden_tool_is_neither_listed_nor_denied():
    policy = Policy(hidden=["Grep"], denied=["Grep"])
    assert policy.listed(["Grep", "Bash"]) == ["Bash"]
    assert policy.verdict("Grep", {}) == "hide"


def test_a_rule_with_a_specifier_leaves_the_tool_on_the_list():
    """Contract F8."""
    policy = Policy(denied=["Bash(rm *)"])
    assert policy
    assert policy.listed(["Bash"]) == ["Bash"]


@pytest.mark.parametrize(
    ("rule", "name", "arguments", "verdict"),
    [
        ("Bash(rm *)", "Bash", {"command": "rm -rf /"}, "deny"),
        ("Bash(rm *)", "Bash", {"command": "ls"}, "allow"),
        ("Bash(rm *)", "Read", {"file_path": "rm x"}, "allow"),
        ("Bash(rm:*)", "Bash", {"command": "rm"}, "deny"),
        ("Bash(rm:*)", "Bash", {"command": "rm -r x"}, "deny"),
        ("Bash(rm:*)", "Bash", {"command": "rmdir x"}, "allow"),
        ("Read(./secret/**)", "Read", {"file_path": "./secret/a"}, "deny"),
        ("Read(./secret/**)", "Read", {"file_path": "/repo/secret/a"}, "deny"),
        ("Read(./secret/**)", "Read", {"file_path": "/repo/open/a"}, "allow"),
        ("Read(~/.ssh/**)", "Read", {"file_path": "/home/u/.ssh/id"}, "deny"),
        ("Read(//etc/**)", "Read", {"file_path": "/etc/passwd"}, "deny"),
        ("Read(/secret/**)", "Read", {"file_path": "/repo/secret/a"}, "deny"),
        ("Read(~/.ssh/**)", "Read", {"file_path": "/home/u/ssh/id"}, "allow"),
        ("Edit(*.lock)", "Edit", {"file_path": "/repo/uv.lock"}, "deny"),
        ("WebFetch(domain:evil.example)", "WebFetch", {"url": "https://evil.example/x"}, "deny"),
        ("WebFetch(domain:evil.example)", "WebFetch", {"url": "https://good.example/"}, "allow"),
        ("Glob(**/.git/**)", "Glob", {"pattern": "a/.git/b"}, "deny"),
        ("Grep(/etc/*)", "Grep", {"pattern": "x", "path": "/etc/passwd"}, "deny"),
        ("NotebookEdit(*.ipynb)", "NotebookEdit", {"notebook_path": "/a.ipynb"}, "deny"),
    ],
)
def test_a_specifier_looks_at_the_argument_that_matters(rule, name, arguments, verdict):
    assert Policy(denied=[rule]).verdict(name, arguments) == verdict


@pytest.mark.parametrize(
    ("rule", "name", "arguments", "permitted"),
    [
        ("Bash", "Bash", {"command": "rm -rf /; ls"}, True),
        ("Bash(git status)", "Bash", {"command": "git status"}, True),
        ("Bash(git status)", "Bash", {"command": "rm -rf /home/git status"}, False),
        ("Bash(git status)", "Bash", {"command": "./evil/git status"}, False),
        ("Bash(git *)", "Bash", {"command": "git log"}, True),
        ("Bash(git *)", "Bash", {"command": "rm -rf /x/git log"}, False),
        ("Bash(git:*)", "Bash", {"command": "git log"}, True),
        ("Bash(git:*)", "Bash", {"command": "gitk"}, False),
        ("Read(/repo/src/**)", "Read", {"file_path": "/repo/src/a"}, True),
        ("Read(./src/**)", "Read", {"file_path": "/other/src/a"}, False),
        ("Read(/repo/src/**)", "Read", {"file_path": "/repo/src/../../etc/passwd"}, False),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example/x"}, True),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example"}, True),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://evil.example/?good.example"}, False),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example.evil.example/"}, False),
        ("WebFetch(domain:good.example)", "WebFetch", {"url": "https://good.example@evil.example/"}, False),
        ("WebFetch(domain:evil.example)", "WebFetch", {"url": "https://good.example?@evil.example/"}, False),
        ("Read", "Read", {}, True),
        ("Read(/repo/**)", "Read", {}, False),
    ],
)
def test_a_call_is_allowed_beforehand_only_by_a_rule_that_says_just_it(rule, name, arguments, permitted):
    assert Policy(allowed=[rule]).permits(name, arguments) is permitted


@pytest.mark.parametrize("arguments", [{}, {"command": None}, {"command": ["rm", "-rf"]}, {"raw": "rm -rf /"}])
def test_a_call_that_cannot_be_read_falls_under_the_rule(arguments):
    """Never wider than asked for: a rule that cannot be checked denies."""
    assert Policy(denied=["Bash(rm *)"]).verdict("Bash", arguments) == "deny"


def test_the_names_of_mcp_tools_are_names_like_others():
    policy = Policy(denied=["mcp__db__drop"])
    assert policy.verdict("mcp__db__drop", {}) == "deny"
    assert policy.verdict("mcp__db__read", {}) == "allow"


@pytest.mark.parametrize(
    "command", ["cd /x && rm -rf y", "  rm\t-rf y", "true\nrm -rf y", "echo $(rm -rf y)", "(rm -rf y)", "ls | rm y"]
)
def test_a_denied_command_is_found_among_others(command):
    for rule in ("Bash(rm *)", "Bash(rm:*)"):
        assert Policy(denied=[rule]).verdict("Bash", {"command": command}) == "deny"
    assert Policy(denied=["Bash(mv:*)"]).verdict("Bash", {"command": command}) == "allow"

"""Flags with paths keep their meaning in another folder."""

import pytest
from sweeps import loop_over_rows

from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.argv.merge import build_conversation_args
from shim.core.claude.argv.paths import resolve_invocation_paths, resolve_rule_paths
from shim.core.policy.paths import matches_restricted_path
from shim.core.policy.policy import Workspace, parse_permission_rule


def build_args(*args, folder="/a", cwd="/b"):
    return build_conversation_args(resolve_invocation_paths(parse_argv(args), folder, cwd))


@pytest.mark.parametrize(
    "flag", ["--settings", "--system-prompt-file", "--shim-config", "--shim-record"]
)
def test_relative_file_flag_is_resolved_against_its_folder(flag):
    assert build_args(flag, "x/y.json") == [flag, "/a/x/y.json"]
    assert build_args(flag, "/x/y.json") == [flag, "/x/y.json"]
    assert build_args(flag, "x/y.json", cwd="/a") == [flag, "x/y.json"]


def test_folder_server_and_plugin_flags_are_resolved():
    assert build_args("--add-dir", "x", "../y", "~/z", "/w") == [
        f"--add-dir={at}" for at in ("/a/x", "/a/../y", "~/z", "/w")
    ]
    assert build_args("--mcp-config", "{}", "s.json") == [
        "--mcp-config={}",
        "--mcp-config=/a/s.json",
    ]
    assert build_args("--plugin-dir", "p", "--agent", "p") == [
        "--plugin-dir",
        "/a/p",
        "--agent",
        "p",
    ]


def test_only_file_rules_are_resolved():
    rules = [
        "Read(./s/t)",
        "Edit(/u)",
        "Write(v/**)",
        "Read(.env)",
        "Read(../w/x)",
        "Bash(./run x)",
        "Read",
        "Read(//z)",
    ]
    rules += ["Read(~/y)", "mcp__a__b"]
    args = [*build_args("--disallowedTools", *rules), *build_args("--allowedTools", "Edit(./c/**)")]
    assert [arg.partition("=")[2] for arg in args] == [
        *(
            "Read(//a/s/t)",
            "Edit(//a/u)",
            "Write(//a/**/v/**)",
            "Read(//a/**/.env)",
            "Read(//w/x)",
            "Bash(./run x)",
        ),
        *("Read", "Read(//z)", "Read(~/y)", "mcp__a__b", "Edit(//a/**/c/**)"),
    ]


@pytest.mark.parametrize("name", ["--settings", "--managed-settings"])
def test_settings_rules_and_folders_are_resolved_and_the_rest_unchanged(name):
    assert build_args(
        name, '{"permissions": {"deny": ["Read(s/t)", 1], "additionalDirectories": ["d"]}, "a": 1}'
    )[1] == ('{"permissions":{"deny":["Read(//a/s/t)",1],"additionalDirectories":["/a/d"]},"a":1}')
    for settings_json in (
        '{"permissions": {"deny": ["Bash"]}}',
        '{"permissions": []}',
        "[]",
        '{ "model":"m"}',
    ):
        assert build_args(name, settings_json) == [name, settings_json]


INSIDE = ("x", "x/y", "./x", "./x/y", "x/**", "./x/y/**", "*.env", "**", "/x", "/x/**")
OUTSIDE = ("../x", "../../x/*", "../x/**")
FOLDER_PATTERNS = [
    (folder, pattern) for folder in ("/a", "/a/b c", "/") for pattern in (*INSIDE, *OUTSIDE)
]


@loop_over_rows(
    ("folder", "pattern"), [*FOLDER_PATTERNS, *(("/a/[b]*", pattern) for pattern in INSIDE)]
)
def test_resolved_rule_matches_the_same_files_from_any_folder(folder, pattern):
    rule = parse_permission_rule(f"Read({pattern})", source="--disallowedTools")
    (moved,) = resolve_rule_paths((rule,), folder, "/elsewhere")
    reparsed_rule = parse_permission_rule(str(moved))
    for relative_path in (
        "x",
        "x/y",
        "x/y/z",
        "d/x",
        "d/x/y",
        "k.env",
        "d/k.env",
        "../x",
        "../x/y",
        "../../x/y",
        "../o",
    ):
        path = Workspace(folder).make_path_absolute(relative_path)
        assert matches_restricted_path(rule, path, Workspace(folder)) == matches_restricted_path(
            reparsed_rule, path, Workspace("/elsewhere")
        ), (
            relative_path,
            str(moved),
        )


def test_rule_from_a_settings_file_is_not_resolved():
    rules = (parse_permission_rule("Read(./x)", source="/b/.claude/settings.json"),)
    assert resolve_rule_paths(rules, "/a", "/b") == rules

"""The expansion of Claude's command files: which shell code runs, and which files are read."""

from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from shim.conversation import command_expansion
from shim.conversation.command_expansion import (
    CommandRefusedError,
    expand_command,
    list_ignored_fields,
)
from shim.core.claude.command_files import CommandCall, CommandFile
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.core.policy.settings import ClaudeSettings

PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def expand(tmp_path):
    """Return a function that expands a command in a session with certain permissions."""

    def run(
        body, arguments="", *, source="project", mode="default", settings=None, prefix=(), **options
    ):
        rules = {
            kind: parse_permission_rules(options.pop(kind, ()), source="a test")
            for kind in ("allow", "deny", "ask")
        }
        policy = Policy(
            workspace=Workspace(str(tmp_path), "/nowhere", (), str),
            only_tools=options.pop("only_tools", None),
            **rules,
        )
        state = SimpleNamespace(
            options=SimpleNamespace(session_id="S"),
            mode=mode,
            claude_settings=settings or ClaudeSettings(),
        )
        launcher = SimpleNamespace(
            session_state=state,
            policy=policy,
            program=SimpleNamespace(command_prefix=prefix),
            adapter=SimpleNamespace(display_name="vendor"),
            child_environment={"PATH": PATH},
            context=SimpleNamespace(cwd=str(tmp_path)),
        )
        file = CommandFile("deploy", source, body, **options)
        return anyio.run(expand_command, CommandCall(file, arguments), launcher)

    return run


def made(tmp_path: Path) -> bool:
    return (tmp_path / "made").exists()


TOUCH = "x !`touch made` y"
ALLOWED = {"allowed_tools": ("Bash(touch:*)",)}


def test_output_replaces_shell_code(expand):
    assert expand("a !`echo out; echo err >&2` b", mode="bypassPermissions") == "a out\nerr b"
    assert expand("a !`echo '  '` b") == "a (Bash completed with no output) b"
    assert (
        expand("a\n```!\necho one\necho two\n```\nb", mode="bypassPermissions") == "a\none\ntwo\nb"
    )


def test_shell_code_that_only_reads_runs_without_a_prompt(expand, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert expand("!`ls`") == "notes.txt"
    assert expand("!`pwd`") == str(tmp_path)


@pytest.mark.parametrize(
    ("permissions", "reason"),
    [
        ({}, "needs a permission prompt, which a command cannot show (the permission mode default)"),
        ({"mode": "plan"}, "is denied by the permission mode plan"),
        ({"mode": "dontAsk"}, "is denied by the permission mode dontAsk"),
        ({"deny": ["Bash"], "mode": "bypassPermissions"}, "is denied by the rule Bash"),
        ({"ask": ["Bash(touch:*)"], "mode": "bypassPermissions"}, "(the rule Bash(touch:*))"),
        ({"only_tools": frozenset({"Read"}), "mode": "bypassPermissions"}, "is denied by the rule --tools"),
        (ALLOWED, "(the permission mode default)"),  # a file of the project allows nothing
        (ALLOWED | {"source": "user", "deny": ["Bash(touch:*)"]}, "the rule Bash(touch:*)"),
    ],
)  # fmt: skip
def test_shell_code_that_is_not_allowed_refuses_the_command(expand, tmp_path, permissions, reason):
    with pytest.raises(CommandRefusedError) as caught:
        expand(f"!`ls` {TOUCH}", **permissions)
    assert str(caught.value).startswith("/deploy was not sent: its shell command `")
    assert reason in str(caught.value)
    assert not made(tmp_path)


@pytest.mark.parametrize(
    "permissions",
    [
        {"mode": "bypassPermissions"},
        {"allow": ["Bash(touch:*)"]},
        ALLOWED | {"source": "user"},
    ],
)
def test_allowed_shell_code_runs(expand, tmp_path, permissions):
    expand(TOUCH, **permissions)
    assert made(tmp_path)


def test_arguments_in_shell_code_are_checked(expand, tmp_path):
    for arguments in ("$(touch made)", "; touch made", "`touch made`", "\ntouch made"):
        with pytest.raises(CommandRefusedError):
            expand("!`echo $ARGUMENTS`", arguments, source="user", allowed_tools=("Bash(echo:*)",))
    assert not made(tmp_path)


def test_failing_shell_code_refuses_the_command(expand):
    with pytest.raises(CommandRefusedError, match=r"`cat missing` failed: cat: .*missing"):
        expand("!`cat missing`")


def test_shell_code_has_a_time_limit(expand, monkeypatch):
    monkeypatch.setattr(command_expansion, "SHELL_TIMEOUT_S", 0.2)
    with pytest.raises(CommandRefusedError, match="failed: timed out"):
        expand("!`sleep 30`", mode="bypassPermissions")


def test_number_of_shell_codes_is_limited(expand, monkeypatch):
    monkeypatch.setattr(command_expansion, "MAX_SHELL_PIECES", 2)
    with pytest.raises(CommandRefusedError, match="more than 2 shell commands"):
        expand("!`pwd` !`pwd` !`pwd`")


def test_settings_can_forbid_shell_code(expand, tmp_path):
    settings = ClaudeSettings(forbids_command_shell=True)
    text = expand(TOUCH, mode="bypassPermissions", settings=settings)
    assert text == "x [shell command execution disabled by policy] y"
    assert not made(tmp_path)


def test_shell_code_does_not_run_if_the_vendor_runs_elsewhere(expand):
    with pytest.raises(CommandRefusedError, match="because docker starts it"):
        expand("!`pwd`", prefix=("docker", "run"))


def test_referenced_files_follow_the_text(expand, tmp_path):
    (tmp_path / "notes.txt").write_text("NOTES\n")
    (tmp_path / "a b.txt").write_text("SPACE")
    (tmp_path / "binary").write_bytes(b"\0\1")
    body = 'see @notes.txt and @"a b.txt" @missing @binary @notes.txt x@notes.txt'
    expected = f"{body}\n\nContent of notes.txt:\nNOTES\n\n\nContent of a b.txt:\nSPACE"
    assert expand(body) == expected
    assert expand("see $0", "@notes.txt").endswith("Content of notes.txt:\nNOTES\n")


def test_file_that_the_model_could_not_read_without_a_prompt_is_left_out(expand, tmp_path):
    (tmp_path / "notes.txt").write_text("NOTES\n")
    assert expand("@/etc/passwd") == "@/etc/passwd"
    assert expand("@notes.txt", deny=["Read(notes.txt)"]) == "@notes.txt"


def test_size_of_referenced_files_is_limited(expand, tmp_path, monkeypatch):
    monkeypatch.setattr(command_expansion, "MAX_REFERENCED_BYTES", 5)
    for name, text in (("a", "12345"), ("b", "6")):
        (tmp_path / name).write_text(text)
    assert expand("@a @b") == "@a @b\n\nContent of a:\n12345"


def test_command_for_the_model_alone_is_refused(expand):
    with pytest.raises(CommandRefusedError, match="user-invocable: false"):
        expand("x", can_be_invoked=False)


def test_fields_without_an_effect_are_listed():
    file = CommandFile("deploy", "project", "", allowed_tools=("Read", "Edit"), model="haiku")
    rules = list_ignored_fields(CommandCall(file, ""))
    assert [(rule.what, rule.source) for rule in rules] == [
        ("allowed-tools: Read, Edit", "/deploy"),
        ("model: haiku", "/deploy"),
    ]
    assert list_ignored_fields(CommandCall(CommandFile("x", "user", ""), "")) == ()

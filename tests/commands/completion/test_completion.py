"""A shell completes commands, options and their values, for `shim` and for the drop-in."""

import os
import shlex
import subprocess
import sys

import pytest
from box import TIMEOUT_S

from shim.adapters import VENDORS
from shim.commands.claude.completion import FORMATTERS, complete_claude_args
from shim.commands.completion.command import SHELLS
from shim.commands.completion.values import complete_vendor
from shim.state.store import StoredSession, store_session
from shim.story.export.command import FORMATS

MODES = "acceptEdits auto bypassPermissions default dontAsk plan"


@pytest.fixture
def complete_shim(shim, monkeypatch):
    def complete(line):
        args = shlex.split(line)
        monkeypatch.setenv("_SHIM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(args) - (not line.endswith(" "))))
        status, stdout, complaint = shim()
        assert (status, complaint) == (0, "")
        return stdout.decode().split()

    return complete


@pytest.mark.parametrize(
    "line, values",
    [
        ("shim run -v ki", "kilo kimi kimi-code"),
        ("shim install --vendor qwen,p", "qwen,pi"),
        ("shim doctor vib", "vibe"),
        ("shim translate vib", "vibe"),
        ("shim vendor check vib", "vibe"),
        ("shim run --permission-mode ", MODES),
        ("shim export x.cast --to ", " ".join(FORMATS)),
        ("shim replay --as ", "vendor claude"),
        ("shim translate pi x --dialect ", "claude yume"),
        ("shim bridge answer 1f0c ", "allow deny"),
        ("shim completion ", " ".join(SHELLS)),
        ("shim help secu", "security"),
    ],
)
def test_shim_completes_values(complete_shim, line, values):
    assert sorted(complete_shim(line)) == sorted(values.split())


def test_shim_completes_recordings_of_the_folder_and_then_of_the_setting(
    complete_shim, local_box, monkeypatch
):
    monkeypatch.chdir(local_box.cwd)
    folder = local_box.path / "recordings"
    folder.mkdir()
    (folder / "kept.cast").touch()
    monkeypatch.setenv("SHIM_RECORD", str(folder))
    assert complete_shim("shim show ") == [str(folder / "kept.cast")]
    (local_box.cwd / "one.cast").touch()
    (local_box.cwd / "notes.txt").touch()
    assert complete_shim("shim show ") == ["one.cast"]
    assert complete_shim("shim cast list n") == []
    assert complete_shim(f"shim export {folder}/k") == [f"{folder}/kept.cast"]


def test_broken_settings_do_not_break_a_completion(complete_shim, local_box):
    local_box.config.parent.mkdir(parents=True, exist_ok=True)
    local_box.config.write_text("not toml")
    assert complete_shim("shim run -v vib") == ["vibe"]
    assert complete_shim("shim show ") == []


@pytest.mark.parametrize(
    "args, values",
    [
        (["--permission-mode", ""], f"{MODES} manual"),
        (["-p", "hello", "--output-format", ""], "text json stream-json"),
        (["--shim-vendor", "ki"], "kilo kimi kimi-code"),
        (["--effort", "m"], "medium max"),
        (["--resum"], "--resume --resume-session-at --resume-drops-turn"),
        (["--resume", "--fo"], "--fork-session --forward-subagent-text"),
        (["att"], "attach"),
        (["auth", ""], "status login logout"),
        (["--add-dir", ""], ""),
        (["-p", "a"], ""),
    ],
)
def test_claude_completes_flags_values_and_subcommands(args, values):
    completed = [value for value, _ in complete_claude_args(args)]
    assert sorted(completed) == sorted(values.split())


def test_sessions_are_completed(desk, monkeypatch):
    record = desk.start_session()
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)
    for args in (["attach", ""], ["logs", record.short_id[:3]]):
        assert [value for value, _ in complete_claude_args(args)] == [record.short_id]
    store_session(record.session_id, StoredSession("demo", "", "/work"), desk.environment)
    ((value, description),) = complete_claude_args(["--resume", ""])
    assert value == record.session_id
    assert description.startswith("demo  ") and description.endswith("  /work")


def test_vendor_is_completed_once_in_a_list():
    assert [value for value, _ in complete_vendor("pi,q")] == sorted(
        f"pi,{name}" for name in VENDORS if name != "pi"
    )


def test_completions_are_formatted_for_each_shell():
    assert [FORMATTERS[shell]("a:b", "text: more") for shell in SHELLS] == [
        "a:b",
        "a\\:b:text: more",
        "a:b\ttext: more",
    ]


def test_completion_of_claude_does_not_import_typer():
    code = "import sys, shim.commands.claude.completion; sys.exit('typer' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize("shell", SHELLS)
def test_script_completes_both_programs(shim, shell):
    status, script, complaint = shim("completion", shell)
    assert (status, complaint) == (0, "")
    assert b"_SHIM_COMPLETE=complete_" in script
    assert f"shim.commands.claude.completion {shell} ".encode() in script


def test_script_works_in_bash(shim, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_bytes(shim("completion", "bash")[1])
    commands = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=(claude --permission-mode p) COMP_CWORD=2
        _claude_shim_completion claude
        printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p claude shim
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", commands],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.splitlines() == [
        "plan",
        "complete -o default -F _claude_shim_completion claude",
        "complete -o default -F _shim_completion shim",
    ]


def test_unknown_shell_is_a_usage_error(shim, monkeypatch):
    status, stdout, complaint = shim("completion", "tcsh")
    assert (status, stdout) == (2, b"") and "the choices are bash, zsh, fish" in complaint
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert shim("completion") == shim("completion", "zsh")

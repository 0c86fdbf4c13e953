"""`shim install --into`: the drop-in in place of a package's claude, the original file, and the
state after an update.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from box import ANSWER, ASK, START, TIMEOUT_S, build_text_event, format_ndjson

from shim.commands.doctor.claude_files import (
    build_backup_path,
    find_embedded_claude_binaries,
    find_original_path,
)
from shim.commands.install.replacement import (
    build_dropin_script,
    replace_file_with_dropin,
    restore_replaced_file,
)
from shim.core.errors import FrontendError
from shim.process.find_program import is_drop_in_script
from shim.process.install import read_drop_in_settings

DEMO = {"vendor": "demo"}
NODE = shutil.which("node")


@pytest.fixture
def bundled_claude(tmp_path: Path) -> Path:
    """Write the claude of a Python package."""
    return write_program(
        tmp_path / "site-packages" / "claude_agent_sdk" / "_bundled" / "claude", "echo theirs\n"
    )


@pytest.fixture
def cli(tmp_path: Path) -> Path:
    """Write the claude of an npm package whose files are modules."""
    package = tmp_path / "node_modules" / "@anthropic-ai" / "claude-code"
    file = write_program(package / "cli.js", "console.log('theirs')\n")
    (package / "package.json").write_text('{"type": "module"}')
    return file


def write_program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if file.suffix == ".js" else f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return file


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_uninstall_restores_the_replaced_file(bundled_claude):
    theirs = bundled_claude.read_bytes()
    placed = replace_file_with_dropin(str(bundled_claude), DEMO)
    assert (placed.path, placed.backup, placed.old_backup) == (
        str(bundled_claude),
        f"{bundled_claude}.before-shim",
        None,
    )
    assert is_drop_in_script(str(bundled_claude)) and os.access(bundled_claude, os.X_OK)
    done = restore_replaced_file(str(bundled_claude))
    assert done.restored and done.old_backups == []
    assert bundled_claude.read_bytes() == theirs and names(bundled_claude.parent) == ["claude"]


def test_second_install_only_changes_the_settings(bundled_claude):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    placed = replace_file_with_dropin(str(bundled_claude), {"vendor": "qwen"})
    assert placed.old_backup is None and b"theirs" in Path(str(placed.backup)).read_bytes()
    assert read_drop_in_settings(str(bundled_claude))[1] == {
        "vendor": "qwen",
        "replaced": str(placed.backup),
    }
    assert names(bundled_claude.parent) == ["claude", "claude.before-shim"]


def test_second_uninstall_leaves_the_restored_file(bundled_claude):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    restore_replaced_file(str(bundled_claude))
    second_result = restore_replaced_file(str(bundled_claude))
    assert not second_result.was_ours and not second_result.restored
    assert b"theirs" in bundled_claude.read_bytes()


def test_uninstall_restores_the_updated_file_and_preserves_the_older_backup(bundled_claude):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    bundled_claude.unlink()  # as pip and npm do
    write_program(bundled_claude, "echo newer\n")
    untouched = restore_replaced_file(str(bundled_claude))
    assert not untouched.was_ours and b"newer" in bundled_claude.read_bytes()
    assert untouched.old_backups == [f"{bundled_claude}.before-shim"]
    placed = replace_file_with_dropin(str(bundled_claude), DEMO)
    assert placed.old_backup == f"{bundled_claude}.before-shim.1"
    done = restore_replaced_file(str(bundled_claude))
    assert (
        b"newer" in bundled_claude.read_bytes()
        and b"theirs" in Path(placed.old_backup).read_bytes()
    )
    assert done.restored and done.old_backups == [placed.old_backup]


def test_backup_is_restored_if_the_drop_in_was_removed(bundled_claude):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    bundled_claude.unlink()
    assert restore_replaced_file(str(bundled_claude)).restored
    assert b"theirs" in bundled_claude.read_bytes()


def test_drop_in_is_removed_if_its_backup_is_missing(bundled_claude):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    Path(build_backup_path(str(bundled_claude))).unlink()
    assert replace_file_with_dropin(str(bundled_claude), DEMO).backup is None
    done = restore_replaced_file(str(bundled_claude))
    assert done.was_ours and not done.restored and names(bundled_claude.parent) == []


def test_original_file_is_preserved_if_the_drop_in_cannot_be_written(bundled_claude, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shim.commands.install.replacement.write_all", full)
    with pytest.raises(FrontendError, match=r"cannot replace .*: No space left"):
        replace_file_with_dropin(str(bundled_claude), DEMO)
    assert names(bundled_claude.parent) == ["claude"] and b"theirs" in bundled_claude.read_bytes()


def test_older_backup_is_preserved_if_the_drop_in_cannot_be_written(bundled_claude, monkeypatch):
    replace_file_with_dropin(str(bundled_claude), DEMO)
    bundled_claude.unlink()
    write_program(bundled_claude, "echo newer\n")
    monkeypatch.setattr("shim.commands.install.replacement._write_dropin", raise_frontend_error)
    with pytest.raises(FrontendError, match="no room"):
        replace_file_with_dropin(str(bundled_claude), DEMO)
    assert b"newer" in bundled_claude.read_bytes()
    assert b"theirs" in Path(build_backup_path(str(bundled_claude))).read_bytes()
    assert len(names(bundled_claude.parent)) == 2


def test_failed_restore_prints_the_mv_command(bundled_claude, monkeypatch):
    moves = iter([os.rename, raise_permission_error])
    monkeypatch.setattr("shim.commands.install.replacement._write_dropin", raise_frontend_error)
    monkeypatch.setattr(
        "shim.commands.install.replacement.os.rename", lambda old, new: next(moves)(old, new)
    )
    with pytest.raises(
        FrontendError, match="no room; restoring the file failed too: Permission denied"
    ) as refused:
        replace_file_with_dropin(str(bundled_claude), DEMO)
    assert (
        refused.value.hint
        == f"restore the file manually: mv {bundled_claude}.before-shim {bundled_claude}"
    )


def raise_frontend_error(*_: object) -> None:
    raise FrontendError("no room")


def raise_permission_error(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_install_does_not_change_a_hard_linked_store_file(bundled_claude, tmp_path):
    """uv and pnpm hard-link the files of a package to those of a store."""
    store = tmp_path / "store"
    os.link(bundled_claude, store)
    replace_file_with_dropin(str(bundled_claude), DEMO)
    assert b"theirs" in store.read_bytes()


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda file: None, "does not exist", "--project"),
        (lambda file: write_program(file / "cli.js", "").rename(file / "x"), "is a folder", "--to"),
        (lambda file: file.symlink_to("/bin/sh"), "is a symbolic link", "--into /"),
        (os.mkfifo, "is not one", ""),
    ],
)
def test_target_that_is_not_a_regular_file_is_refused(tmp_path, make, message, hint):
    file = tmp_path / "claude"
    make(file)
    with pytest.raises(FrontendError, match=message) as refused:
        replace_file_with_dropin(str(file), DEMO)
    assert hint in refused.value.hint and not os.path.lexists(build_backup_path(str(file)))


def test_folder_target_suggests_the_claude_files_inside(bundled_claude):
    with pytest.raises(FrontendError, match="is a folder") as refused:
        replace_file_with_dropin(str(bundled_claude.parent.parent), DEMO)
    assert str(bundled_claude) in refused.value.hint


def test_js_target_becomes_a_node_script_with_readable_settings(cli):
    placed = replace_file_with_dropin(
        str(cli), {"vendor": "demo", "record": '/tmp/it\'s "here" ${HOME}'}
    )
    assert placed.backup == str(cli.with_name("cli.before-shim.js")), (
        "node knows a file by its suffix"
    )
    assert cli.read_text().startswith("#!/usr/bin/env node\n")
    python, baked = read_drop_in_settings(str(cli))
    assert os.access(python, os.X_OK)
    assert baked == {
        "vendor": "demo",
        "record": '/tmp/it\'s "here" ${HOME}',
        "replaced": placed.backup,
    }


@pytest.mark.parametrize("name", ["claude", "cli.js", "a.b.mjs", "claude.exe"])
def test_original_path_is_derived_from_the_backup_path(name):
    assert find_original_path(build_backup_path(f"/x/{name}")) == f"/x/{name}"
    assert find_original_path(f"/x/{name}") is None


def test_search_returns_every_bundled_claude_file_and_nothing_else(tmp_path):
    expected = [
        "venv/lib/python3.12/site-packages/claude_agent_sdk/_bundled/claude",
        "ui/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude",
        "ui/node_modules/.pnpm/x/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64-musl/claude",
        "acp/node_modules/@anthropic-ai/claude-agent-sdk/cli.js",
        "old/node_modules/@anthropic-ai/claude-code/cli.js",
        "new/node_modules/@anthropic-ai/claude-code/bin/claude.exe",
        "new/node_modules/@anthropic-ai/claude-code-linux-x64/claude",
    ]
    for path in (
        *expected,
        "ui/node_modules/claude/cli.js",
        "x/claude",
        ".git/claude_agent_sdk/_bundled/claude",
    ):
        write_program(tmp_path / path, "")
    write_program(tmp_path / "tool" / "own-claude.before-shim", "")
    result = find_embedded_claude_binaries(str(tmp_path))
    assert result.is_complete
    assert result.files == sorted(str(tmp_path / path) for path in (*expected, "tool/own-claude"))


def test_search_stops_at_max_folders(tmp_path, monkeypatch):
    monkeypatch.setattr("shim.commands.doctor.claude_files.MAX_FOLDERS", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    assert not find_embedded_claude_binaries(str(tmp_path)).is_complete


def run(command, box, **variables):
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=box.build_environment(**{"SHIM_BIN": None, **variables}),
        cwd=box.cwd,
        timeout=TIMEOUT_S * 2,
        check=False,
    )


def test_vendor_claude_runs_the_replaced_file(box, bundled_claude):
    write_program(
        bundled_claude, """echo '{"type":"result","subtype":"success","result":"theirs"}'\n"""
    )
    replace_file_with_dropin(str(bundled_claude), {"vendor": "claude"})
    assert b"theirs" in run([str(bundled_claude), *ASK], box).stdout


def test_configured_program_overrides_the_replaced_file(box, bundled_claude):
    replace_file_with_dropin(str(bundled_claude), {"vendor": "claude"})
    mine = box.write_program(
        "mine", """echo '{"type":"result","subtype":"success","result":"mine"}'\n"""
    )
    box.write_settings(f'[vendors.claude]\nbin = "{mine}"\n')
    assert b"mine" in run([str(bundled_claude), *ASK], box).stdout


@pytest.mark.skipif(NODE is None, reason="there is no node")
@pytest.mark.parametrize("kind", ["module", "commonjs"])
def test_js_drop_in_runs_as_module_and_as_commonjs(box, cli, kind):
    cli.with_name("package.json").write_text(json.dumps({"type": kind}))
    replace_file_with_dropin(str(cli), DEMO)
    environment = {
        "DEMO": "x",
        "SHIM_BIN": box.create_fake(["out", ANSWER]),
        "PATH": os.environ["PATH"],
    }
    done = run([NODE, str(cli), *ASK], box, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.splitlines()[0])["shim"]["vendor"] == "demo"
    failed_run = run([str(cli), "-p", "--output-format", "no such"], box, **environment)
    assert failed_run.returncode == 1 and b"output-format" in failed_run.stderr


@pytest.mark.skipif(NODE is None, reason="there is no node")
@pytest.mark.parametrize("without", ["", "delete process.execve;"])
def test_sigterm_to_node_ends_the_turn_with_a_result(box, cli, without):
    replace_file_with_dropin(str(cli), DEMO)
    cli.write_text(re.sub(r"(?m)^if \(typeof", f"{without}if (typeof", cli.read_text()))
    vendor = box.create_fake(["out", format_ndjson(START, build_text_event("Hello."))], ["hang"])
    environment = box.build_environment(SHIM_BIN=vendor, PATH=os.environ["PATH"])
    with subprocess.Popen(
        [str(NODE), str(cli), *ASK],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=box.cwd,
    ) as process:
        assert process.stdout is not None
        assert b'"init"' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (143, -signal.SIGTERM)
    assert json.loads(stdout.splitlines()[-2])["type"] == "result"


def test_shell_and_js_drop_ins_start_the_same_script(tmp_path):
    shell, javascript = (
        build_dropin_script(str(tmp_path / "claude"), DEMO),
        build_dropin_script(str(tmp_path / "cli.js"), DEMO),
    )
    assert json.loads(re.findall(rb"(?m)^const script = (.*);$", javascript)[0]) == shell.decode()

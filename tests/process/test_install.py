"""`shim install`: the file that replaces `claude`, and the previous file. Symlinks are not
followed.
"""

import os
import stat
import subprocess
import sys

import pytest
from box import ANSWER, ASK, TIMEOUT_S, Running

from shim.core.errors import FrontendError
from shim.process.find_program import is_drop_in_script
from shim.process.install import (
    DropInUninstallResult,
    build_drop_in_script,
    compile_bytecode,
    find_first_program_on_path,
    install_drop_in_script,
    list_uncompiled_modules,
    uninstall_drop_in_script,
)
from shim.process.installation import build_install_hint


def put(box, **options):
    params = {
        "directory": str(box.bin),
        "name": "claude",
        "installed": {"vendor": "demo"},
        "force": False,
    } | options
    return install_drop_in_script(
        params["directory"], params["name"], params["installed"], force=params["force"]
    )


def test_drop_in_is_a_short_shell_script_with_a_marker(box):
    path, backup = put(box)
    lines = (box.bin / "claude").read_text(encoding="utf-8").splitlines()
    assert (path, backup) == (str(box.bin / "claude"), None)
    assert lines[0] == "#!/bin/sh"
    assert "claude-shim drop-in" in lines[1]
    (started,) = (line for line in lines if line.startswith("exec "))
    assert " -I " in started and lines[-1].endswith('claude "$@"')
    assert len(lines) == 12
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    assert is_drop_in_script(path)
    assert os.listdir(box.bin) == ["claude"]


def test_installed_drop_in_runs_the_configured_vendor(box):
    path, _ = put(box)
    done = subprocess.run(
        [path, *ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=box.build_environment(SHIM_BIN=box.create_fake(["out", ANSWER])),
        cwd=box.cwd,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b'"vendor":"demo"' in done.stdout


MISLEADING = ["PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__", "PYTHONHOME", "PYTHONPATH"]


@pytest.mark.parametrize(
    "misleading",
    [MISLEADING, *(pytest.param([name], marks=pytest.mark.full) for name in MISLEADING)],
    ids=len,
)
def test_misleading_python_variables_are_passed_only_to_the_vendor(box, misleading):
    path, _ = put(box, installed={"vendor": "qwen"})
    noted = box.path / "noted"
    environment = box.build_environment(
        SHIM_BIN=box.write_program("vendor", f"env > {noted}\n"), PYTHONPATH=None
    )
    for overrides in (dict.fromkeys(misleading, "/elsewhere"), {}):
        subprocess.run(
            [path, *ASK], env=environment | overrides, cwd=box.cwd, timeout=TIMEOUT_S, check=False
        )
        lines = noted.read_text(encoding="utf-8").splitlines()
        assert [name for name in misleading if f"{name}=/elsewhere" in lines] == list(overrides)
        noted.unlink()


def test_bundled_vendor_program_ignores_pythonexecutable(box):
    path, _ = put(box)
    environment = box.build_environment(PYTHONEXECUTABLE="/elsewhere")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([path, *ASK], env=environment, cwd=box.cwd, **pipes) as process:
        try:
            Running(process).read_until(b'"type":"assistant"')  # the complete turn takes seconds
        finally:
            process.terminate()
        assert process.stderr.read() == b""


def run_version(path, box, **extra):
    environment = box.build_environment(PYTHONPATH=None, **extra)
    return subprocess.run(
        [path, "--version"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=box.cwd,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_missing_python_is_reported_with_a_hint(box, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(box.path / "it's gone" / "python"))
    path, _ = put(box)
    done = run_version(path, box)
    assert (done.returncode, done.stdout) == (1, "")
    message = "the Python that claude-shim was installed for, no longer exists"
    assert done.stderr == (
        f"{path}: {sys.executable}, {message}\nhint: {build_install_hint()} and then "
        "`shim install`, or remove this file (`command -v claude` finds it)\n"
    )


def test_missing_package_is_reported_with_a_hint(box, monkeypatch):
    bare = box.path / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60
    )
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    path, _ = put(box)
    done = run_version(path, box)
    assert (done.returncode, done.stdout) == (1, "")
    message = (
        "claude-shim, which this file starts, is damaged: "
        f"No module named 'shim'\nhint: {build_install_hint()} and then `shim install`"
    )
    assert done.stderr.startswith(message)


def test_missing_directory_is_created(box):
    path, _ = put(box, directory=str(box.path / "a" / "b"))
    assert is_drop_in_script(path)


def test_special_characters_in_paths_are_quoted(box):
    folder = box.path / 'it\'s a "folder" $HOME'
    path, _ = put(
        box, directory=str(folder), installed={"vendor": "demo", "record": "/c's $(touch x)"}
    )
    done = subprocess.run(
        [path, "--version"],
        capture_output=True,
        text=True,
        cwd=box.cwd,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == "2.1.332 (Claude Code)\n"
    assert os.listdir(box.cwd) == []


def test_existing_drop_in_is_replaced_without_a_backup(box):
    put(box)
    assert put(box, installed={"vendor": "qwen"})[1] is None
    assert b"vendor=qwen" in (box.bin / "claude").read_bytes()


def test_foreign_program_is_not_replaced_without_force(box):
    box.write_program("claude", "echo real\n")
    with pytest.raises(FrontendError, match="was not created by claude-shim") as refused:
        put(box)
    assert "--to" in refused.value.hint
    assert "echo real" in (box.bin / "claude").read_text(encoding="utf-8")


def test_forced_install_backs_up_and_uninstall_restores_the_program(box):
    box.write_program("claude", "echo real\n")
    path, backup = put(box, force=True)
    assert backup == f"{path}.before-shim"
    assert "echo real" in (box.bin / "claude.before-shim").read_text(encoding="utf-8")
    assert uninstall_drop_in_script(str(box.bin), "claude") == DropInUninstallResult(
        path, was_drop_in=True, has_restored=True
    )
    assert os.listdir(box.bin) == ["claude"]
    assert "echo real" in (box.bin / "claude").read_text(encoding="utf-8")


def test_second_forced_install_preserves_the_original_backup(box):
    box.write_program("claude", "echo real\n")
    put(box, force=True)
    assert put(box, force=True)[1] is None
    assert "echo real" in (box.bin / "claude.before-shim").read_text(encoding="utf-8")


def test_existing_backup_is_never_overwritten(box):
    box.write_program("claude", "echo second\n")
    box.write_program("claude.before-shim", "echo first\n")
    with pytest.raises(FrontendError, match="exists already"):
        put(box, force=True)
    assert "first" in (box.bin / "claude.before-shim").read_text(encoding="utf-8")
    assert "second" in (box.bin / "claude").read_text(encoding="utf-8")


@pytest.mark.parametrize("dangling", [True, False])
def test_symlink_target_is_never_overwritten(box, dangling):
    target = box.path / "target"
    if not dangling:
        target.write_text("precious", encoding="utf-8")
    (box.bin / "claude").symlink_to(target)
    with pytest.raises(FrontendError, match="was not created by claude-shim"):
        put(box)
    put(box, force=True)
    assert target.exists() is not dangling
    assert dangling or target.read_text(encoding="utf-8") == "precious"
    assert not (box.bin / "claude").is_symlink()
    assert (box.bin / "claude.before-shim").is_symlink()


def test_symlink_to_a_drop_in_is_not_treated_as_a_drop_in(box):
    put(box, directory=str(box.path / "real"))
    (box.bin / "claude").symlink_to(box.path / "real" / "claude")
    with pytest.raises(FrontendError):
        put(box)
    assert not uninstall_drop_in_script(str(box.bin), "claude").was_drop_in
    assert (box.bin / "claude").is_symlink()


def test_symlink_at_the_temporary_path_is_not_followed(box):
    victim = box.path / "victim"
    victim.write_text("precious", encoding="utf-8")
    (box.bin / f"claude.{os.getpid()}.tmp").symlink_to(victim)
    put(box)
    assert victim.read_text(encoding="utf-8") == "precious"
    assert (box.bin / "claude").is_file() and not (box.bin / "claude").is_symlink()


@pytest.mark.parametrize("existing_file", ["nothing", "another program"])
def test_uninstall_removes_only_a_drop_in(box, existing_file):
    if existing_file != "nothing":
        box.write_program("claude", "echo real\n")
    path = str(box.bin / "claude")
    assert uninstall_drop_in_script(str(box.bin), "claude") == DropInUninstallResult(
        path, was_drop_in=False
    )
    assert os.path.exists(path) is (existing_file != "nothing")


def test_uninstall_without_a_backup_restores_nothing(box):
    path, _ = put(box)
    assert uninstall_drop_in_script(str(box.bin), "claude") == DropInUninstallResult(
        path, was_drop_in=True
    )
    assert os.listdir(box.bin) == []


@pytest.mark.parametrize("name", ["claude.js", "../claude", "", "ls"])
def test_unsupported_drop_in_name_is_refused(box, name):
    with pytest.raises(FrontendError, match="invalid value for --as: "):
        put(box, name=name)


def test_drop_in_can_be_named_yume_cli(box):
    path, _ = put(box, name="yume-cli")
    assert is_drop_in_script(path) and path.endswith("/yume-cli")


def test_find_first_on_path_returns_the_first_match(box):
    first, second = box.path / "first", box.bin
    box.write_program("claude", "", folder=first)
    box.write_program("claude", "", folder=second)
    (box.path / "empty").mkdir()
    assert find_first_program_on_path("claude", f"{box.path}/empty:{first}:{second}") == str(
        first / "claude"
    )
    assert find_first_program_on_path("claude", str(box.path / "empty")) is None


def test_drop_in_script_without_settings_has_no_installed_flag():
    assert b"--installed" not in build_drop_in_script({})


# -- bytecode --------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """Create a small package without bytecode."""
    for name in ("__init__.py", "one.py", "room/two.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"NAME = {name!r}\n", encoding="utf-8")
    return tmp_path


def test_missing_bytecode_is_detected_and_compiled(package):
    assert sorted(list_uncompiled_modules(str(package))) == ["__init__.py", "one.py", "room/two.py"]
    assert compile_bytecode(str(package))
    assert list_uncompiled_modules(str(package)) == []


def test_bytecode_of_an_older_source_is_stale(package):
    compile_bytecode(str(package))
    (package / "one.py").write_text("NAME = 'another, of another size'\n", encoding="utf-8")
    assert list_uncompiled_modules(str(package)) == ["one.py"]


def test_bytecode_of_another_python_is_stale(package):
    compile_bytecode(str(package))
    (compiled,) = (package / "room" / "__pycache__").iterdir()
    compiled.write_bytes(b"\0" + compiled.read_bytes()[1:])
    assert list_uncompiled_modules(str(package)) == ["room/two.py"]


def test_stale_bytecode_detection_matches_python(package):
    def read_import_log():
        code = "import sys; sys.path.insert(0, sys.argv[1]); import one"
        command = [sys.executable, "-v", "-I", "-B", "-c", code, str(package)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stderr

    compile_bytecode(str(package))
    assert (
        "bytecode is stale for 'one'" not in read_import_log()
        and list_uncompiled_modules(str(package)) == []
    )
    os.utime(package / "one.py", (1, 1))
    assert "bytecode is stale for 'one'" in read_import_log() and list_uncompiled_modules(
        str(package)
    ) == ["one.py"]


def test_install_command_compiles_bytecode(local_box, shim, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        "shim.commands.install.dropin.compile_bytecode", lambda: compiled.append(True)
    )
    assert shim("install", "--to", str(local_box.path / "bin"))[0] == 0
    assert compiled == [True]

"""The output of `shim install --into`, `shim uninstall --into` and `shim doctor --project`."""

import json

import pytest


@pytest.fixture
def theirs(local_box):
    """Create a project whose Python package contains a claude."""
    file = local_box.path / "project" / "venv" / "claude_agent_sdk" / "_bundled" / "claude"
    file.parent.mkdir(parents=True)
    file.write_text("theirs")
    return file


@pytest.fixture
def project(shim, theirs):
    """Return the doctor's findings for the project's files, as (level, text, fix)."""

    def look():
        entries = json.loads(shim("doctor", "--project", str(theirs.parents[3]), "--json")[1])[
            "machine"
        ]
        return [
            (entry["level"], entry["text"], entry["fix"])
            for entry in entries
            if str(theirs.parent) in entry["text"]
        ]

    return look


def test_install_prints_the_backup_path_and_uninstall_restores_the_file(shim, theirs):
    status, stdout, _ = shim("install", "--vendor", "pi", "--into", str(theirs))
    lines = stdout.decode().splitlines()
    assert status == 0 and lines[0] == f"wrote {theirs}"
    assert (
        lines[1]
        == f"saved the previous file as {theirs}.before-shim; `shim uninstall --into {theirs}` restores it"
    )
    assert (
        "run this command again after each update" in lines[2]
        and "pi asks for permission in conversations" in stdout.decode()
    )
    status, stdout, _ = shim("uninstall", "--into", str(theirs))
    assert (status, stdout.decode()) == (0, f"restored {theirs}\n")


def test_uninstall_of_a_foreign_file_succeeds_without_changes(shim, theirs):
    status, stdout, _ = shim("uninstall", "--into", str(theirs))
    assert (status, stdout.decode()) == (
        0,
        f"{theirs} was not written by `shim install`, so it is not removed\n",
    )
    assert theirs.read_text() == "theirs"


def test_install_and_uninstall_report_a_package_update(shim, theirs):
    shim("install", "--vendor", "demo", "--into", str(theirs))
    theirs.write_text("newer")
    output = shim("uninstall", "--into", str(theirs))[1].decode()
    assert "was not written by" in output and f"{theirs}.before-shim" in output
    output = shim("install", "--vendor", "demo", "--into", str(theirs))[1].decode()
    assert (
        f"the package was updated since the last install; the previously saved file is now {theirs}"
        in output
    )
    output = shim("uninstall", "--into", str(theirs))[1].decode()
    assert theirs.read_text() == "newer" and "no longer needed" in output


def test_missing_backup_is_reported(shim, theirs):
    shim("install", "--vendor", "demo", "--into", str(theirs))
    theirs.with_name("claude.before-shim").unlink()
    assert (
        "has nothing to restore"
        in shim("install", "--vendor", "demo", "--into", str(theirs))[1].decode()
    )
    assert (
        "reinstall the package that contained it"
        in shim("uninstall", "--into", str(theirs))[1].decode()
    )


@pytest.mark.parametrize("other", [["--to", "/tmp"], ["--as", "yume-cli"], ["--force"]])
def test_install_into_rejects_other_target_flags(shim, theirs, other):
    status, _, complaint = shim("install", "--into", str(theirs), *other)
    assert status == 2 and "cannot be combined with" in complaint
    assert theirs.read_text() == "theirs"


def test_doctor_reports_the_state_of_the_project_file(shim, theirs, project):
    ((level, text, fix),) = project()
    assert (level, "the package's bundled claude" in text) == (
        "note",
        True,
    ) and f"--into {theirs}" in fix
    shim("install", "--vendor", "demo", "--into", str(theirs))
    ((level, text, fix),) = project()
    assert (level, text, fix) == ("ok", f"{theirs} is claude-shim's drop-in (vendor demo)", "")
    theirs.write_text("newer")
    ((level, text, fix),) = project()
    assert level == "warning" and "was updated or reinstalled" in text and "shim install" in fix
    theirs.unlink()
    ((level, text, fix),) = project()
    assert level == "note" and "a file that no longer exists" in text and "uninstall --into" in fix


def test_doctor_reports_a_wrapper_with_a_missing_interpreter(shim, theirs, project):
    shim("install", "--vendor", "demo", "--into", str(theirs))
    theirs.write_bytes(theirs.read_bytes().replace(b"exec ", b"exec /nowhere", 1))
    ((level, text, fix),) = project()
    assert level == "problem" and "does not exist" in text and "again" in fix


def test_doctor_reports_a_project_without_a_bundled_claude(shim, local_box):
    output = shim("doctor", "--project", str(local_box.cwd))[1].decode()
    assert "bundles its own claude; programs there start the claude on PATH" in output


def test_doctor_rejects_a_project_that_is_not_a_folder(shim, local_box):
    status, _, complaint = shim("doctor", "--project", str(local_box.cwd / "x"))
    assert status == 2 and "--project expects a folder" in complaint

"""Small files in a private folder."""

import os
import stat
import time

import pytest

from shim.state import spill, store
from shim.state.files import (
    ensure_private_dir,
    open_regular_file,
    read_newest_state_files,
    read_state_file,
    replace_file,
    write_all,
    write_new_file,
    write_state_file,
)
from shim.state.spill import LargeTextFolder


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "state" / "kind")


def test_private_directory_is_created_with_mode_0700(folder):
    assert ensure_private_dir(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o750, 0o701])
def test_directory_open_to_other_users_is_refused(folder, mode):
    os.makedirs(folder)
    os.chmod(folder, mode)
    assert not ensure_private_dir(folder)
    assert not write_state_file(folder, "x", b"data")
    assert read_state_file(folder, "x", 10) is None
    assert os.listdir(folder) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_directory_of_another_user_is_refused(folder):
    os.makedirs(folder, mode=0o700)
    os.chown(folder, 65534, 65534)
    assert not ensure_private_dir(folder)


def test_symlinked_directory_is_refused(folder, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    os.makedirs(os.path.dirname(folder))
    os.symlink(target, folder)
    assert not ensure_private_dir(folder)
    assert not write_state_file(folder, "x", b"data")
    assert list(target.iterdir()) == []


def test_file_instead_of_a_directory_is_refused(folder):
    os.makedirs(os.path.dirname(folder))
    with open(folder, "wb"):
        pass
    assert not ensure_private_dir(folder)


def test_written_file_can_be_read_and_replaced(folder):
    assert write_state_file(folder, "x", b"one")
    assert write_state_file(folder, "x", b"two")
    assert read_state_file(folder, "x", 10) == b"two"
    assert read_state_file(folder, "x", 2) == b"tw"
    assert os.listdir(folder) == ["x"]
    assert stat.S_IMODE(os.stat(os.path.join(folder, "x")).st_mode) == 0o600


def test_missing_file_reads_as_none(folder):
    assert read_state_file(folder, "x", 10) is None


def test_symlink_at_a_file_path_is_not_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    ensure_private_dir(folder)
    os.symlink(victim, os.path.join(folder, "x"))
    assert read_state_file(folder, "x", 10) is None
    assert write_state_file(folder, "x", b"data")
    assert victim.read_text(encoding="utf-8") == "precious"
    assert read_state_file(folder, "x", 10) == b"data"


def test_symlink_at_the_temporary_path_is_not_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    ensure_private_dir(folder)
    os.symlink(victim, os.path.join(folder, f"x.{os.getpid()}.tmp"))
    assert write_state_file(folder, "x", b"data")
    assert victim.read_text(encoding="utf-8") == "precious"
    assert os.listdir(folder) == ["x"]


def test_leftover_temporary_file_does_not_block_a_write(folder):
    """The name has a process id, and a later process may get the same id."""
    ensure_private_dir(folder)
    with open(os.path.join(folder, f"x.{os.getpid()}.tmp"), "wb") as file:
        file.write(b"half of a long rec")
    assert write_state_file(folder, "x", b"data")
    assert read_state_file(folder, "x", 10) == b"data"
    assert os.listdir(folder) == ["x"]


def test_named_pipe_at_a_file_path_reads_as_none(folder):
    ensure_private_dir(folder)
    os.mkfifo(os.path.join(folder, "x"))
    assert read_state_file(folder, "x", 10) is None


def test_directory_at_a_file_path_is_neither_read_nor_written(folder):
    os.makedirs(os.path.join(folder, "x"))
    os.chmod(folder, 0o700)
    assert read_state_file(folder, "x", 10) is None
    assert not write_state_file(folder, "x", b"data")
    assert os.listdir(folder) == ["x"]


# -- files outside the state directory -------------------------------------------------------------


def write_and_fail(descriptor):
    write_all(descriptor, b"the begin")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("write", [write_new_file, replace_file])
def test_failed_write_leaves_no_file(tmp_path, write):
    with pytest.raises(OSError, match="No space left"):
        write(str(tmp_path / "x"), write_and_fail)
    assert list(tmp_path.iterdir()) == []


def test_failed_replace_preserves_the_old_file(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        replace_file(str(tmp_path / "x"), write_and_fail)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_new_file_does_not_overwrite_a_file_or_follow_a_symlink(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("x", "link"):
        with pytest.raises(FileExistsError):
            write_new_file(str(tmp_path / name), lambda file: write_all(file, b"new"))
    assert (tmp_path / "x").read_bytes() == b"old" and not (tmp_path / "nowhere").exists()


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "x").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "pipe")
    for name in ("x", "link"):
        os.close(open_regular_file(str(tmp_path / name)))
    for name, follow in (("link", False), ("pipe", True), (".", True)):
        with pytest.raises(OSError):
            open_regular_file(str(tmp_path / name), follow_links=follow)


def written_at(folder, name, data, age):
    assert write_state_file(folder, name, data)
    os.utime(os.path.join(folder, name), ns=(age, age))


def test_newest_files_are_listed_first_with_their_content(folder):
    written_at(folder, "a.x", b"one", 10)
    written_at(folder, "b.x", b"three", 30)
    written_at(folder, "c.x", b"two", 20)
    written_at(folder, "d.y", b"another kind", 40)
    assert list(read_newest_state_files(folder, ".x", 9, 100)) == [
        ("b.x", b"three"),
        ("c.x", b"two"),
        ("a.x", b"one"),
    ]
    assert list(read_newest_state_files(folder, ".x", 2, 3)) == [("b.x", b"thr"), ("c.x", b"two")]


def test_non_regular_files_are_not_listed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    ensure_private_dir(folder)
    os.symlink(victim, os.path.join(folder, "link.x"))
    os.mkdir(os.path.join(folder, "folder.x"))
    os.mkfifo(os.path.join(folder, "pipe.x"))
    assert list(read_newest_state_files(folder, ".x", 9, 100)) == []


def test_directory_open_to_other_users_is_not_listed(folder):
    written_at(folder, "a.x", b"one", 10)
    os.chmod(folder, 0o755)
    assert list(read_newest_state_files(folder, ".x", 9, 100)) == []


# -- removed files ---------------------------------------------------------------------------------


def aged(path, seconds):
    path.write_text("x" * 100, encoding="utf-8")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_stale_temporary_files_are_removed(tmp_path):
    (tmp_path / "a folder.json").mkdir()
    old, new = aged(tmp_path / "x.json.7.tmp", 7200), aged(tmp_path / "x.json.8.tmp", 60)
    other_file = aged(tmp_path / "x.json", 10**6)
    store.remove_old_sessions(str(tmp_path))
    assert (old.exists(), new.exists(), other_file.exists()) == (False, True, True)


def test_old_spilled_results_are_removed_without_following_symlinks(tmp_path, monkeypatch):
    """A symlink in the spill folder is not followed. Neither a symlink nor a file there causes an
    error.
    """
    environment = {"SHIM_STATE": str(tmp_path / "state")}
    root = tmp_path / "state" / "spill"
    ensure_private_dir(str(root))
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    aged(precious / "precious", 10**7)
    (root / "link").symlink_to(precious)
    (root / "a file").write_text("", encoding="utf-8")
    for name, age in (("old", 8 * 24 * 3600), ("newer", 3600), ("newest", 60)):
        (root / name).mkdir(mode=0o700)
        aged(root / name / "1-aaaaaaaa.txt", age)
        os.utime(root / name, (time.time() - age,) * 2)
    assert LargeTextFolder(environment, "own").store_text("text")
    assert sorted(os.listdir(root)) == ["a file", "link", "newer", "newest", "own"]
    monkeypatch.setattr(spill, "MAX_TOTAL_BYTES", 250)
    assert LargeTextFolder(environment, "own").store_text("y" * 100)
    assert sorted(os.listdir(root)) == ["a file", "link", "newest", "own"]
    assert (precious / "precious").exists()
    assert LargeTextFolder(environment, "own").store_text("y" * 251) is None

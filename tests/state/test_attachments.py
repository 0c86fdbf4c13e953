"""Files of a message for a vendor that takes paths: private, limited in size, and removed after the
turn.
"""

import base64
import os
import stat

from shim.state import attachments
from shim.state.attachments import FILE_PREFIX, MAX_AGE_S, AttachmentStore

DATA = base64.b64encode(b"picture").decode()
PLACES = (("OWN", "tmp"), ("HOME", ".own/tmp"))


def test_stored_file_is_private_and_removed_by_clear(tmp_path):
    files = AttachmentStore(PLACES, {"HOME": str(tmp_path)})
    path = files.store_file(DATA, "png")
    assert os.path.dirname(path) == str(tmp_path / ".own" / "tmp") and path.endswith(".png")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path, "rb") as file:
        assert file.read() == b"picture"
    files.clear()
    assert not os.path.exists(path)


def test_first_variable_that_is_set_selects_the_directory(tmp_path):
    files = AttachmentStore(PLACES, {"HOME": "/nowhere", "OWN": str(tmp_path)})
    assert os.path.dirname(files.store_file(DATA, "png")) == str(tmp_path / "tmp")
    assert AttachmentStore(PLACES, {"OWN": "relative"}).store_file(DATA, "png") is None
    assert AttachmentStore(PLACES, {}).store_file(DATA, "png") is None


def test_files_beyond_the_byte_limit_are_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(attachments, "MAX_TOTAL_BYTES", 10)
    files = AttachmentStore(PLACES, {"HOME": str(tmp_path)})
    assert files.store_file(DATA, "png") and files.store_file(DATA, "png") is None
    files.clear()
    assert files.store_file(DATA, "png")


def test_store_file_returns_none_if_the_directory_is_unusable(tmp_path):
    (tmp_path / ".own").write_text("a file in the place of a folder")
    assert AttachmentStore(PLACES, {"HOME": str(tmp_path)}).store_file(DATA, "png") is None


def test_only_stale_files_of_a_killed_process_are_removed(tmp_path):
    folder = tmp_path / ".own" / "tmp"
    folder.mkdir(parents=True)
    old, theirs, fresh = (
        folder / f"{FILE_PREFIX}old.png",
        folder / "theirs.png",
        folder / f"{FILE_PREFIX}fresh.png",
    )
    for file in (old, theirs, fresh):
        file.write_text("x")
    for file in (old, theirs):
        os.utime(file, (1, 1))
    path = AttachmentStore(PLACES, {"HOME": str(tmp_path)}).store_file(DATA, "png")
    assert MAX_AGE_S and {str(each) for each in folder.iterdir()} == {
        path,
        str(theirs),
        str(fresh),
    }

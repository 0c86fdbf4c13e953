"""Files of a message for a vendor that is given paths: ours alone, bounded, and gone when its turn
is over.
"""

import base64
import os
import stat

from shim.state import attachments
from shim.state.attachments import KEPT_SECONDS, PREFIX, Attachments

DATA = base64.b64encode(b"picture").decode()
PLACES = (("OWN", "tmp"), ("HOME", ".own/tmp"))


def test_a_file_is_ours_alone_and_is_removed(tmp_path):
    files = Attachments(PLACES, {"HOME": str(tmp_path)})
    path = files.keep(DATA, "png")
    assert os.path.dirname(path) == str(tmp_path / ".own" / "tmp") and path.endswith(".png")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path, "rb") as file:
        assert file.read() == b"picture"
    files.clear()
    assert not os.path.exists(path)


def test_the_first_variable_that_is_set_says_where(tmp_path):
    files = Attachments(PLACES, {"HOME": "/nowhere", "OWN": str(tmp_path)})
    assert os.path.dirname(files.keep(DATA, "png")) == str(tmp_path / "tmp")
    assert Attachments(PLACES, {"OWN": "relative"}).keep(DATA, "png") is None
    assert Attachments(PLACES, {}).keep(DATA, "png") is None


def test_a_turn_has_no_more_than_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(attachments, "MOST_BYTES", 10)
    files = Attachments(PLACES, {"HOME": str(tmp_path)})
    assert files.keep(DATA, "png") and files.keep(DATA, "png") is None
    files.clear()
    assert files.keep(DATA, "png")


def test_what_cannot_be_written_is_not_given(tmp_path):
    (tmp_path / ".own").write_text("a file in the place of a folder")
    assert Attachments(PLACES, {"HOME": str(tmp_path)}).keep(DATA, "png") is None


def test_what_a_killed_process_left_behind_is_removed_and_nothing_else(tmp_path):
    folder = tmp_path / ".own" / "tmp"
    folder.mkdir(parents=True)
    old, theirs, fresh = (
        folder / f"{PREFIX}old.png",
        folder / "theirs.png",
        folder / f"{PREFIX}fresh.png",
    )
    for file in (old, theirs, fresh):
        file.write_text("x")
    for file in (old, theirs):
        os.utime(file, (1, 1))
    path = Attachments(PLACES, {"HOME": str(tmp_path)}).keep(DATA, "png")
    assert KEPT_SECONDS and {str(each) for each in folder.iterdir()} == {
        path,
        str(theirs),
        str(fresh),
    }

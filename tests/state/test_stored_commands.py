"""The commands that vendors offered in their last sessions."""

import os

import pytest

from shim.core.claude.offered_commands import OfferedCommand
from shim.state import stored_commands, vendor_file
from shim.state.config import get_state_dir
from shim.state.stored_commands import load_offered_commands, store_offered_commands

COMMANDS = (OfferedCommand("init", "Write a file", "[name]"), OfferedCommand("review"))


@pytest.fixture
def environment(tmp_path):
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def test_commands_are_stored_by_vendor_and_folder(environment):
    assert load_offered_commands("pi", environment, "/a") == ()
    store_offered_commands("pi", COMMANDS, environment, "/a")
    assert load_offered_commands("pi", environment, "/a") == COMMANDS
    assert load_offered_commands("pi", environment, "/b") == ()
    assert load_offered_commands("qwen", environment, "/a") == ()


def test_unchanged_list_is_not_rewritten(environment, monkeypatch):
    store_offered_commands("pi", COMMANDS, environment, "/a")
    monkeypatch.setattr(vendor_file, "write_state_file", lambda *args: pytest.fail("written"))
    store_offered_commands("pi", COMMANDS, environment, "/a")


def test_number_of_folders_is_limited(environment, monkeypatch):
    monkeypatch.setattr(stored_commands, "MAX_FOLDERS", 2)
    for folder in ("/a", "/b", "/a", "/c"):
        commands = (OfferedCommand(folder), OfferedCommand(str(os.urandom(4))))
        store_offered_commands("pi", commands, environment, folder)
    stored = [
        bool(load_offered_commands("pi", environment, folder)) for folder in ("/a", "/b", "/c")
    ]
    assert stored == [True, False, True]


def test_damaged_file_counts_as_empty(environment):
    store_offered_commands("pi", COMMANDS, environment, "/a")
    path = os.path.join(get_state_dir(environment), stored_commands.COMMANDS_FOLDER, "pi.json")
    for text in ("{", "[]", '{"/a": 7}'):
        with open(path, "w") as file:
            file.write(text)
        assert load_offered_commands("pi", environment, "/a") == ()

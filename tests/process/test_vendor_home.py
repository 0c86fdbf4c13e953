"""The folder in which a vendor keeps its own records: read within bounds, and never out of it."""

import os

import pytest

from shim.process import vendor_data_dir
from shim.process.vendor_data_dir import VendorDataDir


@pytest.fixture
def home_folder(tmp_path):
    folder = tmp_path / "person" / ".codex" / "sessions"
    folder.mkdir(parents=True)
    (folder / "one-1.jsonl").write_bytes(b"first\nsecond\n")
    (tmp_path / "person" / "secret").write_bytes(b"not yours")
    return tmp_path / "person"


def open_data_dir(home_folder, **environment):
    return VendorDataDir("CODEX_HOME", ".codex", {"HOME": str(home_folder), **environment})


def test_a_record_is_found_by_the_end_of_its_name_and_read(home_folder):
    records = open_data_dir(home_folder)
    assert records.find_file("sessions", "-1.jsonl") == "sessions/one-1.jsonl"
    assert records.read_tail("sessions/one-1.jsonl") == (0, b"first\nsecond\n")
    assert (
        records.find_file("sessions", "-2.jsonl") is None
        and records.find_file("elsewhere", "") is None
    )


def test_the_vendors_variable_names_another_folder(home_folder, tmp_path):
    (tmp_path / "other" / "sessions").mkdir(parents=True)
    (tmp_path / "other" / "sessions" / "two-1.jsonl").write_bytes(b"x")
    assert (
        open_data_dir(home_folder, CODEX_HOME=str(tmp_path / "other")).find_file(
            "sessions", ".jsonl"
        )
        == "sessions/two-1.jsonl"
    )
    for unfit in ("", "other"):
        assert (
            open_data_dir(home_folder, CODEX_HOME=unfit).find_file("sessions", ".jsonl")
            == "sessions/one-1.jsonl"
        )


def test_only_the_end_of_a_long_record_is_read(home_folder, monkeypatch):
    monkeypatch.setattr(vendor_data_dir, "TAIL_BYTES", 7)
    assert open_data_dir(home_folder).read_tail("sessions/one-1.jsonl") == (6, b"second\n")


@pytest.mark.parametrize(
    ("start", "expected"), [(0, b"first\nsecond\n"), (6, b"second\n"), (13, b""), (99, b"")]
)
def test_what_was_read_before_is_not_read_again(home_folder, start, expected):
    assert open_data_dir(home_folder).read_tail("sessions/one-1.jsonl", start) == (start, expected)


def test_only_so_many_names_are_looked_at(home_folder, monkeypatch):
    monkeypatch.setattr(vendor_data_dir, "MAX_ENTRIES", 0)
    assert open_data_dir(home_folder).find_file("sessions", ".jsonl") is None


@pytest.mark.parametrize(
    "path", ["../secret", "sessions/../../secret", "/etc/passwd", "sessions", "none", "a\0b", ""]
)
def test_nothing_but_a_file_of_the_folder_is_read(home_folder, path):
    """Threats: vendor output, session ids that become file names."""
    assert open_data_dir(home_folder).read_tail(path) == (0, b"")


def test_a_link_out_of_the_folder_is_not_followed(home_folder):
    """Threats: symlinks."""
    os.symlink(home_folder / "secret", home_folder / ".codex" / "sessions" / "two-1.jsonl")
    os.symlink(home_folder, home_folder / ".codex" / "out")
    records = open_data_dir(home_folder)
    assert records.read_tail("sessions/two-1.jsonl") == (0, b"")
    assert (
        records.read_tail("out/secret") == (0, b"") and records.find_file("out", "secret") is None
    )


def test_nobody_waits_at_a_pipe(home_folder):
    os.mkfifo(home_folder / ".codex" / "sessions" / "pipe")
    assert open_data_dir(home_folder).read_tail("sessions/pipe") == (0, b"")

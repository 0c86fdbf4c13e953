"""The folder of a vendor's own records: reads are limited in size and never leave the folder."""

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


def test_record_is_located_by_its_suffix_and_read(home_folder):
    records = open_data_dir(home_folder)
    assert records.find_file("sessions", "-1.jsonl") == "sessions/one-1.jsonl"
    assert records.read_tail("sessions/one-1.jsonl") == (0, b"first\nsecond\n")
    assert (
        records.find_file("sessions", "-2.jsonl") is None
        and records.find_file("elsewhere", "") is None
    )


def test_environment_variable_overrides_the_data_folder(home_folder, tmp_path):
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


def test_read_tail_returns_only_the_end_of_a_long_file(home_folder, monkeypatch):
    monkeypatch.setattr(vendor_data_dir, "TAIL_BYTES", 7)
    assert open_data_dir(home_folder).read_tail("sessions/one-1.jsonl") == (6, b"second\n")


@pytest.mark.parametrize(
    ("start", "expected"), [(0, b"first\nsecond\n"), (6, b"second\n"), (13, b""), (99, b"")]
)
def test_read_tail_starts_at_an_offset(home_folder, start, expected):
    assert open_data_dir(home_folder).read_tail("sessions/one-1.jsonl", start) == (start, expected)


def test_number_of_searched_entries_is_limited(home_folder, monkeypatch):
    monkeypatch.setattr(vendor_data_dir, "MAX_ENTRIES", 0)
    assert open_data_dir(home_folder).find_file("sessions", ".jsonl") is None


@pytest.mark.parametrize(
    "path", ["../secret", "sessions/../../secret", "/etc/passwd", "sessions", "none", "a\0b", ""]
)
def test_read_tail_returns_nothing_for_invalid_paths(home_folder, path):
    """Threat: session ids from the vendor's output that become file names."""
    assert open_data_dir(home_folder).read_tail(path) == (0, b"")


def test_symlinks_out_of_the_folder_are_not_followed(home_folder):
    """Threat: a symlink leads to a file outside the folder."""
    os.symlink(home_folder / "secret", home_folder / ".codex" / "sessions" / "two-1.jsonl")
    os.symlink(home_folder, home_folder / ".codex" / "out")
    records = open_data_dir(home_folder)
    assert records.read_tail("sessions/two-1.jsonl") == (0, b"")
    assert (
        records.read_tail("out/secret") == (0, b"") and records.find_file("out", "secret") is None
    )


def test_named_pipe_is_not_read(home_folder):
    os.mkfifo(home_folder / ".codex" / "sessions" / "pipe")
    assert open_data_dir(home_folder).read_tail("sessions/pipe") == (0, b"")

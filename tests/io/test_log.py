"""The log file of a run."""

import gc
import os
from pathlib import Path

from shim.io.stderr import open_log


def list_open_files() -> set[str]:
    paths = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            paths.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return paths


def test_log_file_is_closed_when_the_log_is_no_longer_used(tmp_path: Path):
    path = tmp_path / "shim.log"
    log = open_log(f"debug:{path}")
    log("first event", level="debug", token="x")
    assert str(path) in list_open_files()

    del log
    gc.collect()
    assert str(path) not in list_open_files()
    assert '"first event"' in path.read_text()


def test_two_logs_write_to_separate_files(tmp_path: Path):
    first = open_log(f"info:{tmp_path / 'first.log'}")
    second = open_log(f"info:{tmp_path / 'second.log'}")
    first("one")
    second("two")
    first("three")
    first("hidden", level="debug")
    assert (tmp_path / "first.log").read_text().count("\n") == 2
    assert (tmp_path / "second.log").read_text().count("\n") == 1

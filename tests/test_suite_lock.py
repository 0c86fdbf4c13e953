"""Two complete test runs of one user must not run at the same time."""

import os

import pytest
from suite_lock import SuiteBusyError, take_suite_lock


def test_second_run_waits_and_reports_the_running_process(tmp_path):
    lock, reports = tmp_path / "cache" / "tests.lock", []
    with take_suite_lock(lock, reports.append):
        assert reports == []
        with pytest.raises(SuiteBusyError, match=f"process {os.getpid()} in .* has held"):
            take_suite_lock(lock, reports.append, max_wait_s=0.05, poll_s=0.01)
    assert len(reports) == 1 and f"process {os.getpid()}" in reports[0]
    take_suite_lock(lock, reports.append).close()
    assert len(reports) == 1


def test_suite_lock_is_taken_only_with_the_alone_option(pytestconfig):
    alone = pytestconfig.getoption("alone")
    assert hasattr(pytestconfig, "suite_lock") is (
        alone and not hasattr(pytestconfig, "workerinput")
    )

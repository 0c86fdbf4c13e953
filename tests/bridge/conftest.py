"""Hosts for the tests of the bridge."""

from collections.abc import Iterator

import pytest
from hosting import Hosting


@pytest.fixture
def hosts(tmp_path, box) -> Iterator[Hosting]:
    """Hosts of the vendor demo, which does not pause, and are ended with the test."""
    made = Hosting(tmp_path / "hosts", SHIM_BIN=box.demo())
    yield made
    made.close()

"""Hosts for the tests of the bridge."""

from collections.abc import Iterator

import pytest
from hosting import Hosting


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosting]:
    """Hosts of the vendor demo, which are ended with the test."""
    made = Hosting(tmp_path / "hosts")
    yield made
    made.close()

"""Hosts for the tests of the bridge."""

from collections.abc import Iterator

import pytest
from box import format_ndjson
from session_hosts import Hosting

from shim.commands.turn.demo_child import generate_demo_events


@pytest.fixture
def hosts(tmp_path, box) -> Iterator[Hosting]:
    """Yield hosts of the vendor demo, whose program prints its session at once. They end with the
    test.
    """
    output = format_ndjson(*generate_demo_events("hi", "/repo", "demo-session"))
    made = Hosting(
        tmp_path / "hosts", SHIM_BIN=box.create_fake(["read"], ["out", output], name="demo-child")
    )
    yield made
    made.stop_hosts()

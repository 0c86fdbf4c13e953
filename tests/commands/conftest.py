"""Fixtures for the command tests: background sessions, and the drop-in beside them."""

from collections.abc import Iterator

import pytest
from box import END, START, Box, Done, build_text_event, format_ndjson, run_shim
from session_hosts import Hosting

ANSWER = format_ndjson({**START, "session": "one"}, build_text_event("Hello."), END)


class Desk(Hosting):
    """A person's machine: `claude`, `shim` and the sessions in its state folder."""

    def __init__(self, box: Box, **variables: str) -> None:
        super().__init__(box.path / "desk", **variables)
        self.box = box

    def run_claude(self, *args: str, stdin: bytes = b"", **variables: str) -> Done:
        """Run `claude ARGS` to its end."""
        return self.run_shim("claude", *args, stdin=stdin, **variables)

    def run_shim(self, *args: str, stdin: bytes = b"", **variables: str) -> Done:
        """Run `shim ARGS` to its end."""
        return run_shim(args, stdin=stdin, env=self.environment | variables, cwd=self.cwd)


@pytest.fixture
def desk(box) -> Iterator[Desk]:
    """Yield a desk with the demo vendor, whose program answers at once."""
    (box.path / "desk").mkdir()
    made = Desk(box, SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]))
    yield made
    made.stop_hosts()

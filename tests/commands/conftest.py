"""What the tests of the commands may ask for: sessions that live on their own, and the drop-in
beside them.
"""

from collections.abc import Iterator

import pytest
from box import END, START, Box, Done, build_text_event, format_ndjson, run_shim
from session_hosts import Hosting

ANSWER = format_ndjson({**START, "session": "one"}, build_text_event("Hello."), END)


class Desk(Hosting):
    """A person's machine: `claude` and `shim` beside the sessions in its state folder."""

    def __init__(self, box: Box, **variables: str) -> None:
        super().__init__(box.path / "desk", **variables)
        self.box = box

    def run_claude(self, *args: str, stdin: bytes = b"", **variables: str) -> Done:
        """`claude WORDS`, to its end."""
        return self.run_shim("claude", *args, stdin=stdin, **variables)

    def run_shim(self, *args: str, stdin: bytes = b"", **variables: str) -> Done:
        """`shim WORDS`, to its end."""
        return run_shim(args, stdin=stdin, env=self.environment | variables, cwd=self.cwd)


@pytest.fixture
def desk(box) -> Iterator[Desk]:
    """A desk whose vendor is demo with a program that answers at once."""
    (box.path / "desk").mkdir()
    made = Desk(box, SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]))
    yield made
    made.stop_hosts()

"""Background sessions, and terminals that are attached to them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from box import SHIM, TIMEOUT_S, Box
from session_hosts import Hosting
from terminal import on_terminal

from shim.bridge.registry import SessionRecord


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosting]:
    """Yield hosts that end with the test."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    made = Hosting(folder)
    yield made
    made.stop_hosts()


@pytest.fixture
def start_session(hosts: Hosting, box: Box) -> Callable[..., SessionRecord]:
    """Return a function that starts a session of a stand-in for qwen. It performs the steps after
    `initialize`.
    """

    def start(*steps: object, prompt: str | None = "go", **spec_fields: object) -> SessionRecord:
        child = box.create_fake(["hear", '"initialize"'], *steps, ["hear", "never"])
        hosts.environment |= {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
        return hosts.start_session(prompt, **spec_fields)

    return start


@pytest.fixture
def attach_terminal(hosts: Hosting) -> Callable[..., AbstractContextManager[Any]]:
    """Return a function that attaches a new `Terminal` to a session."""

    def attach_session(
        record: SessionRecord, *args: str, columns: int = 100, **environment: str
    ) -> AbstractContextManager[Any]:
        command = [*SHIM, *(args or ("claude", "attach")), record.short_id]
        env = hosts.environment | environment
        return on_terminal(
            command, env=env, cwd=str(hosts.cwd), columns=columns, timeout_s=2 * TIMEOUT_S
        )

    return attach_session

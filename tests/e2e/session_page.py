"""Helpers for browser tests of the page of background sessions: log in, open a session, inspect the
page.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from browser import DESKTOP, Browser
from gateway_harness import StandIn
from sandbox import find_free_port

from shim.bridge.gateway.tokens import GatewayTokenFile

SECONDS = 30.0  # for the start or the end of a server
SMALL = (390, 844)
ENTER, TAB, ESCAPE, SHIFT_ENTER = "\ue007", "\ue004", "\ue00c", "\ue008\ue007\ue000"

LOOKS = Path(__file__).with_name("page_looks.js").read_text(encoding="utf-8")


# What the browser prints if a server does not answer.
NETWORK_ERRORS = (
    "Failed to load resource",
    "network - An unknown error occurred when fetching the script.",
)


class Served:
    """`shim bridge serve` as a process that can be killed and started again at the same port."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.port = find_free_port()
        self.tokens = GatewayTokenFile(environment)
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        argv = [
            sys.executable,
            "-m",
            "shim",
            "bridge",
            "serve",
            "--http",
            f"127.0.0.1:{self.port}",
        ]
        self._process = subprocess.Popen(
            argv,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert str(self.port) in self._process.stdout.readline()

    def kill(self) -> None:
        """Kill the server."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Page:
    """The page in a browser, at a gateway: a `Web` with stand-ins for hosts, or a `Served`."""

    def __init__(self, browser: Browser, web: Any) -> None:
        self.browser = browser
        self.web = web
        self.base = f"http://127.0.0.1:{web.port}/"

    def open_page(
        self, role: str = "drive", *, size: tuple[int, int] = DESKTOP, dark: bool = False
    ) -> None:
        """Open the address that `shim bridge serve` prints."""
        token = getattr(self.web.tokens.load_tokens(), role)
        self.browser.open_url(f"{self.base}#token={token}", size=size, dark=dark)
        self.browser.wait_until(lambda: self.read_view() == "none")

    def read_view(self) -> str:
        return str(self.browser.run_script("return document.body.dataset.view"))

    def is_ready(self) -> bool:
        """Return whether the requested view is completely drawn."""
        script = """
        if (document.body.dataset.view !== 'session') return document.body.dataset.view !== 'wait';
        if (!currentSession.synced || document.querySelector('#asked.moved')) return false;
        return getGroup(currentSession.facts) !== 'asks' || questions.size > 0;
        """
        return bool(self.browser.run_script(script))

    def open_session(self, host: StandIn) -> None:
        """Open a session, and wait until it is complete."""
        self.browser.run_script("location.hash = arguments[0]", f"s/{host.metadata['id']}")
        self.wait_until_synced(host)

    def wait_until_synced(self, host: StandIn) -> None:
        """Wait until the page has all lines."""
        ready = "return currentSession.id === arguments[0] && currentSession.synced"
        self.browser.wait_until(lambda: self.browser.run_script(ready, host.metadata["id"]))

    def wait_for_questions(self, number: int = 1) -> None:
        """Wait until this number of permission prompts is shown and can be answered."""
        self.browser.wait_until(
            lambda: len(self.browser.find_elements("#asked:not(.moved) .asking-card")) == number
        )

    def send_line(self, host: StandIn, **line: Any) -> None:
        """Add a complete line to the session."""
        self.web.call_in_thread(host.add_line, **line)

    def send_partial_event(self, host: StandIn, **event: Any) -> None:
        """Send a partial line of the session."""
        self.web.call_in_thread(host.send_partial, **event)

    def send_frame(self, host: StandIn, raw: bytes) -> None:
        """Send a frame of the session."""
        self.web.call_in_thread(host.broadcast_frame, raw)

    def list_steps(self) -> list[str]:
        """Return the texts of the drawn steps."""
        return [
            str(text)
            for text in self.browser.run_script(
                "return [...document.querySelectorAll('#steps .step')].map(n => n.innerText)"
            )
        ]

    def measure_contrasts(self) -> list[tuple[float, str, str]]:
        """Return each visible text: its contrast, its element, and its start."""
        return [(*row,) for row in self.browser.run_script(f"{LOOKS}; return contrasts()")]

    def measure_targets(self) -> list[tuple[int, int, str, str]]:
        """Return the touch targets: width, height, element, and text."""
        return [(*row,) for row in self.browser.run_script(f"{LOOKS}; return targets()")]

    def find_overlaps(self) -> list[tuple[str, str, int, int]]:
        """Return the names and controls that overlap, and by how much."""
        return [(*row,) for row in self.browser.run_script(f"{LOOKS}; return overlaps()")]

    def list_errors(self) -> list[str]:
        """Return the errors in the page since it was loaded: errors of its scripts, and violations
        of its security policy.

        A server that is not running, or refuses a request, is not an error of the page. Some tests
        stop the server while the browser fetches the page's service worker.
        """
        return [
            message
            for message in self.browser.list_console_messages()
            if not any(text in message for text in NETWORK_ERRORS)
        ]

    def read_text(self, selector: str) -> str:
        """Return the text of the only element of a selector, or ""."""
        texts = self.browser.retry_when_stale(
            lambda: [element.text for element in self.browser.find_elements(selector)[:1]]
        )
        return str(texts[0]) if texts else ""

    def wait_for_text(self, expected: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        self.browser.wait_until(lambda: expected in self.read_text(selector))

    def describe_focus(self) -> str:
        """Return the element with the focus: its id, its class or its tag."""
        return str(
            self.browser.run_script(
                "const n = document.activeElement; return n.id || n.className || n.tagName"
            )
        )

    def type_text(self, text: str) -> None:
        """Type into the field for the next message."""
        self.browser.click("#text")
        self.browser.press_keys(text)


def build_text_message(text: str) -> dict[str, Any]:
    """Build a complete reply of the model."""
    return {
        "type": "assistant",
        "message": {"id": "m", "role": "assistant", "content": [{"type": "text", "text": text}]},
    }

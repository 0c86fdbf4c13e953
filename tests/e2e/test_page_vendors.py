"""The page with real vendors: a permission request is answered in the browser while a terminal
watches. Then the turn continues.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from browser import DESKTOP, Browser
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL, ScriptedServer
from sandbox import TURN_SECONDS, wait_until
from session_page import ENTER, SMALL, Page, Served
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e
TESTED_VENDORS = [
    QWEN,
    *(
        pytest.param(each, marks=pytest.mark.full)
        for each in (PI, CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF)
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser("127.0.0.1")
    browser.wait_timeout_s = TURN_SECONDS
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, frontend: DropInFrontend) -> Iterator[Page]:
    served = Served(frontend.environment)
    page = Page(browser, served)
    yield page
    assert page.list_errors() == []
    browser.driver.get("about:blank")
    browser.driver.delete_all_cookies()
    served.kill()
    subprocess.run(
        [str(frontend.claude), "daemon", "stop", "--any"],
        env=frontend.environment,
        capture_output=True,
        check=False,
    )
    assert frontend.list_remaining_processes() == {}


class Watcher:
    """`shim bridge watch ID` on a terminal, and its output."""

    def __init__(self, frontend: DropInFrontend, session: str) -> None:
        main, other = pty.openpty()
        command = [sys.executable, "-I", "-m", "shim", "bridge", "watch", session]
        environment = {
            **frontend.environment,
            "TERM": "xterm-256color",
            "COLUMNS": "120",
            "LINES": "40",
        }
        self._process = subprocess.Popen(
            command,
            cwd=frontend.folder,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self._main = main
        self.output = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._main, 65_536):
                self.output += data.decode("utf-8", "replace")
        except OSError:
            pass  # it has ended

    def shows(self, text: str) -> bool:
        return wait_until(lambda: text in self.output, TURN_SECONDS)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TURN_SECONDS)
        self._thread.join(TURN_SECONDS)
        os.close(self._main)


@pytest.mark.parametrize("vendor", TESTED_VENDORS, ids=str, indirect=True)
def test_prompt_is_answered_on_the_page_while_a_terminal_watches(
    page: Page, browser: Browser, frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer
) -> None:
    command = [str(frontend.claude), "--bg", "[[shell]] touch made", *frontend.extra_args]
    result = subprocess.run(
        command,
        cwd=frontend.folder,
        env=frontend.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    session = result.stdout.split(" · ")[1][:8]
    page.open_page(size=DESKTOP)
    page.wait_for_text("[[shell]] touch made", "#list")
    watcher = Watcher(frontend, session)
    try:
        browser.retry_when_stale(lambda: browser.find_elements("#list a")[0].click())
        page.wait_for_questions()
        assert "touch made" in page.read_text(".asking-card .input")
        assert not (frontend.folder / "made").exists()
        assert watcher.shows("touch made")
        browser.click(".choose .strong")
        page.wait_for_text("allowed by you", "#settled")
        assert watcher.shows("web")  # the client that resolved it
        page.wait_for_text(REPLY_AFTER_TOOL, "#steps")
        assert (frontend.folder / "made").exists()
        assert watcher.shows(REPLY_AFTER_TOOL)
        page.wait_for_text("Idle", "#chip")

        browser.set_appearance(SMALL)
        page.type_text("[[text]]")
        browser.click("#send")
        browser.wait_until(lambda: len(browser.find_elements("#steps .result")) == 2)
        assert model.list_requests("text")

        page.type_text("[[slow]]")
        browser.click("#send")
        browser.wait_until(lambda: browser.find_element("#interrupt").is_displayed())
        assert wait_until(lambda: bool(model.list_requests("slow")), TURN_SECONDS)
        browser.click("#interrupt")
        browser.wait_until(lambda: len(browser.find_elements("#steps .result")) == 3)
        listed = subprocess.run(
            [str(frontend.claude), "agents", "--json"],
            env=frontend.environment,
            capture_output=True,
            check=True,
        )
        (agent,) = json.loads(listed.stdout)
        assert agent["id"] == session and agent["status"] == "idle"
    finally:
        watcher.close()


@pytest.mark.parametrize("vendor", TESTED_VENDORS[:1], ids=str, indirect=True)
def test_session_started_on_the_page_can_be_denied_with_a_message(
    page: Page, browser: Browser, frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer
) -> None:
    page.open_page(size=SMALL)
    browser.click("#new")
    browser.wait_until(lambda: page.describe_focus() == "prompt")
    browser.press_keys("[[shell]] touch made")
    browser.run_script(
        "find('vendor').value = arguments[0]; find('cwd').value = arguments[1]",
        vendor.name,
        str(frontend.folder),
    )
    browser.press_keys("\ue009" + ENTER)  # Control and Enter
    page.wait_for_questions()
    browser.click(".choose .plain")
    browser.press_keys("make no files here")
    browser.click(".denial .bad")
    page.wait_for_text("denied by you", "#settled")
    browser.wait_until(lambda: browser.find_elements("#steps .result"))
    assert browser.find_elements("#steps .call.denied") and not (frontend.folder / "made").exists()


CHOOSERS = [pytest.param(each, marks=pytest.mark.full) for each in (CLAUDE_ITSELF, QWEN)]


@pytest.mark.parametrize("vendor", CHOOSERS, ids=str, indirect=True)
def test_ask_user_question_is_answered_on_the_page(
    page: Page, browser: Browser, frontend: DropInFrontend, vendor: Vendor, model: ScriptedServer
) -> None:
    command = [str(frontend.claude), "--bg", "[[ask]] Which colour?", *frontend.extra_args]
    subprocess.run(
        command, cwd=frontend.folder, env=frontend.environment, capture_output=True, check=True
    )
    page.open_page(size=SMALL)
    page.wait_for_text("Which colour?", "#list")
    browser.retry_when_stale(lambda: browser.find_elements("#list a")[0].click())
    page.wait_for_questions()
    assert [option.text.split("\n")[0] for option in browser.find_elements(".option")] == [
        "red",
        "blue",
    ]
    browser.find_elements(".option")[1].click()
    browser.click(".choose .strong")
    browser.wait_until(lambda: browser.find_elements("#steps .result"))
    assert "blue" in (model.list_requests("ask")[-1].tool_result or "")

"""claude-code-ui in a real browser. The page uses the TypeScript SDK, whose `cli.js` the drop-in
replaces.

The test asserts what a person sees, so the real claude of its package is tested with the same
assertions.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from clis import Cli, build_isolated_environment
from model_scripts import ERROR_MESSAGE, REPLY, REPLY_AFTER_TOOL, ScriptedServer
from programs import find_node, install_npm_package, install_program
from sandbox import EXIT_SECONDS, TURN_SECONDS, Sandbox, find_free_port, wait_until
from sdk_clients import PROGRAMS, put_into
from vendor_setups import CLAUDE_ITSELF, CODEX, PI, QWEN
from wrappers import Quiet, copy_folder, is_listening, write_settings

pytestmark = [pytest.mark.e2e, pytest.mark.full]

PACKAGE = "@siteboon/claude-code-ui"
CLIS = (Cli(CLAUDE_ITSELF, bare=True), Cli(QWEN), Cli(PI), Cli(CODEX))
NAME, PASSWORD = "someone", "secret-of-nobody"

PRESS = """
    const found = [...document.querySelectorAll("button")]
        .find((one) => one.offsetParent && one.innerText.includes(arguments[0]));
    found?.click();
    return Boolean(found);
"""


class Page:
    """The page, used as a person does."""

    def __init__(self, address: str, folder: Path) -> None:
        self._browser = Browser("127.0.0.1")
        self._address, self._folder = address, folder

    def close(self) -> None:
        self._browser.close()

    def sign_up(self) -> None:
        """Create the first account, and a project for the working directory."""
        self._browser.driver.get(self._address)
        for name, value in (
            ("username", NAME),
            ("password", PASSWORD),
            ("confirmPassword", PASSWORD),
        ):
            self._browser.wait_until(lambda name=name: self._browser.find_elements(f"#{name}"))[
                0
            ].send_keys(value)
        self._browser.click("button[type=submit]")
        token = self._browser.wait_until(
            lambda: self._browser.run_script("return localStorage.getItem('auth-token')")
        )
        body = json.dumps({"path": str(self._folder)}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self._address}/api/projects/create", body, headers)
        urllib.request.urlopen(request, timeout=TURN_SECONDS).close()
        self.load()
        self.press_button("New Session")

    def load(self) -> None:
        """Reload the page and open the project."""
        self._browser.driver.get(self._address)
        self.press_button(self._folder.name)

    def press_button(self, label: str) -> None:
        """Press the first visible button with this label. It is found and pressed in one step,
        because the page redraws itself.
        """
        self._browser.wait_until(lambda: self._browser.run_script(PRESS, label))

    def say(self, text: str) -> None:
        """Type a prompt and send it. The menu that the page opens for a `/` is closed first."""
        field = self._browser.wait_until(lambda: self._type_text(text))
        field.send_keys("\ue00c")  # Escape
        field.send_keys("\ue007")  # Enter

    def _type_text(self, text: str) -> Any:
        """Type the text. Return the field once the page is ready for input."""
        from selenium.common.exceptions import WebDriverException

        try:
            field = next(
                element
                for element in self._browser.find_elements("textarea")
                if element.is_displayed() and element.is_enabled()
            )
            field.clear()
            field.send_keys(text)
            return field if field.get_attribute("value") == text else None
        except (StopIteration, WebDriverException):
            return None

    def sees(self, text: str, times: int = 1) -> bool:
        """Return whether the page shows the text `times` times in time, with any line breaks."""
        expected = " ".join(text.split())
        return wait_until(lambda: self.text.count(expected) >= times, TURN_SECONDS)

    @property
    def text(self) -> str:
        return " ".join(str(self._browser.run_script("return document.body.innerText")).split())


@pytest.fixture
def page(cli: Cli, service: ScriptedServer, hello_file: Path, tmp_path: Path) -> Iterator[Page]:
    """Start the server in the working directory. Yield its page."""
    program = install_program(cli.vendor.package)
    environment = build_isolated_environment(cli.vendor, program, service.url, tmp_path)
    sandbox = Sandbox(program.executable, hello_file.parent, environment)
    packages = copy_folder(install_npm_package(PACKAGE), sandbox)
    if not cli.bare:
        sandbox.environment = write_settings(cli.vendor, program.executable, environment)
        put_into(
            packages / "node_modules" / "@anthropic-ai" / "claude-agent-sdk" / "cli.js",
            sandbox,
            cli.vendor.name,
        )
    port = find_free_port()
    variables = {"PORT": str(port), "DATABASE_PATH": str(tmp_path / "accounts.db")}
    script = packages / "node_modules" / PACKAGE / "server" / "index.js"
    argv = [str(find_node(24)), "--require", str(PROGRAMS / "on_loopback.cjs"), str(script)]
    server = Quiet(argv, sandbox.folder, {**sandbox.environment, **variables})
    sandbox.started.append(server)
    assert wait_until(lambda: is_listening(port), TURN_SECONDS), server.describe_failure(
        "does not listen"
    )
    ui_page = Page(f"http://127.0.0.1:{port}", sandbox.folder)
    yield ui_page
    ui_page.close()
    server.close()
    remaining = sandbox.list_remaining_processes()
    sandbox.close()
    assert remaining == {}


@pytest.mark.parametrize("client", ["claude-code-ui-1.12.0"])
@pytest.mark.parametrize("cli", CLIS, ids=str)
@pytest.mark.scenario("a conversation, stop, the session's list, error")
def test_page_shows_replies_stop_session_list_and_errors(
    client: str, cli: Cli, page: Page, service: ScriptedServer, hello_file: Path
) -> None:
    page.sign_up()
    page.say("[[text]] the first words")
    assert page.sees(REPLY)
    page.say(f"[[read]] {cli.vendor.format_file_argument(hello_file)}")
    assert page.sees(REPLY_AFTER_TOOL)
    page.say("[[text]] the last words")
    assert page.sees(REPLY, 2)
    assert "the first words" in json.dumps(service.list_requests("text")[-1].messages)
    page.say("[[slow]] hi")
    assert wait_until(lambda: service.list_requests("slow"), TURN_SECONDS)
    page.press_button("Stop")
    assert page.sees("Session interrupted by user.")
    assert service.list_requests("slow")[0].client_left.wait(EXIT_SECONDS)
    page.load()
    assert page.sees("Just now") or page.sees("min")
    page.press_button("New Session")
    page.say("[[error]] 401")
    assert page.sees(ERROR_MESSAGE)

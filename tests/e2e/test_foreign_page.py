"""A foreign page in the same Chromium while the user is logged in: it can read nothing and change
nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import page_scenes as scenes
import pytest
from browser import Browser
from foreign_page import ForeignPage
from gateway_harness import StandIn, StandIns, Web, ask_at
from session_page import Page

from shim.bridge.gateway.server import GatewayEndpoint
from shim.bridge.gateway.tokens import GatewayTokenFile

pytestmark = pytest.mark.e2e

EVIL = "evil.test"


@pytest.fixture
def host() -> StandIn:
    return scenes.build_asking_host()


@pytest.fixture
def page(host: StandIn, tmp_path: Path) -> Iterator[Page]:
    """Open the gateway's own page and log in."""
    web = Web(
        StandIns(host),
        GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")}),
        GatewayEndpoint(port=0),
    )
    browser = Browser("127.0.0.1", names=(EVIL,), profile=tmp_path / "profile")
    try:
        yield Page(browser, web)
    finally:
        browser.close()
        web.close()


def full(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.full)


@pytest.mark.parametrize("name", ["127.0.0.1", full(EVIL)])
def test_foreign_page_cannot_read_sessions_or_send_messages(
    page: Page, host: StandIn, name: str
) -> None:
    """The foreign page is on another port of the same host, to which the browser also sends the
    cookie, and on another host.
    """
    page.open_page()
    foreign = ForeignPage(page.base.rstrip("/"), host.metadata["id"])
    try:
        host.received.clear()
        page.browser.open_url(f"http://{name}:{foreign.port}/")
        outcomes = page.browser.wait_until(lambda: page.browser.run_script("return window.done"))
    finally:
        foreign.close()
    readable = {
        attempt: value
        for attempt, value in outcomes.items()
        if value not in ("refused", "unseen", "sent")
    }
    # A frame also reports that it has loaded if the browser has put its own error page into it.
    assert readable == {}, outcomes
    assert host.received == [] and host.clients == []
    if name == "127.0.0.1":
        (cookie,) = {value for value in foreign.cookies if value}
        stolen = ask_at(page.web.port, "GET", "/sessions", None, {"Cookie": cookie})
        assert "shim-" in cookie and stolen.status == 401


@pytest.mark.full
def test_gateway_refuses_a_foreign_host_name(page: Page, host: StandIn) -> None:
    """DNS rebinding: the foreign page's host name resolves to the gateway's address, so the browser
    takes both for the same origin.
    """
    page.open_page()
    page.browser.driver.get(f"http://{EVIL}:{page.web.port}/")
    assert "unknown host name" in page.browser.run_script("return document.body.innerText")
    read = "fetch('/sessions').then((one) => one.text()).then(arguments[0], (error) => arguments[0](String(error)))"
    text = page.browser.driver.execute_async_script(read)
    assert host.metadata["id"] not in text and "error" in text.lower()


def test_drive_token_is_not_stored_in_browser_files(page: Page, tmp_path: Path) -> None:
    """The files include the history, which stores each opened address, the cookies, the storage and
    the cache.
    """
    tokens = page.web.tokens.load_tokens()
    way_in = tokens.create_login_code("drive", time.time())
    page.browser.open_url(f"{page.base}#token={way_in}")
    page.browser.wait_until(lambda: page.read_view() == "none")
    page.browser.close()
    database = sqlite3.connect(tmp_path / "profile" / "Default" / "History")
    urls = [url for (url,) in database.execute("select url from urls")]
    database.close()
    assert any(way_in in url for url in urls), "a browser kept it: it lets nobody in after a while"
    files = [path for path in (tmp_path / "profile").rglob("*") if path.is_file()]
    assert [path for path in files if tokens.drive.encode() in path.read_bytes()] == []

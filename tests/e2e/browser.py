"""A headless Chromium without a network, driven by Selenium.

Both programs come from the distribution: they match each other, and nothing is downloaded from
another place. If they are missing and this process is root on a machine with apt-get, they are
installed once. Otherwise the tests are skipped with a message.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from system_packages import install_system_packages

PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "chromedriver": ("chromedriver",),
}
PACKAGES = ("chromium", "chromium-driver")
# The wait for anything that a page does. It takes milliseconds, and a turn of a session some seconds.
WAIT_SECONDS = 60.0
PHONE = (360, 740)
DESKTOP = (1100, 900)


def require_programs() -> tuple[str, str]:
    """Return the browser and its driver. Skip the test if they are not available."""
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("selenium is not installed: `make e2e` does it, or `pip install -e '.[e2e]'`")
    failure = install_system_packages(PACKAGES, lambda: all(_find_programs()))
    paths = _find_programs()
    if not all(paths):
        pytest.skip(
            "no chromium with chromedriver on PATH: `apt-get install chromium chromium-driver`; "
            f"{failure}"
        )
    return str(paths[0]), str(paths[1])


def _find_programs() -> list[str | None]:
    return [next(filter(None, map(shutil.which, names)), None) for names in PROGRAMS.values()]


class Browser:
    """One browser for many pages.

    `host` is the only address that it may reach; `names` are resolved to it. `profile` is the
    folder of its history. Without a `profile` the history is temporary.
    """

    def __init__(
        self, host: str = "", *, names: Sequence[str] = (), profile: Path | None = None
    ) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self.wait_timeout_s = WAIT_SECONDS
        chromium, driver = require_programs()
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        flags = [
            "--headless=new",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--force-device-scale-factor=1",
        ]
        # The sandbox is not available for root and in most containers. The pages are trusted, and there
        # is no network.
        hosts = "".join(f"MAP {name} {host}, " for name in names) + "MAP * ~NOTFOUND"
        hosts += f", EXCLUDE {host}" if host else ""
        flags += [
            "--no-sandbox",
            f"--host-resolver-rules={hosts}",
            "--disable-background-networking",
        ]
        flags += [f"--user-data-dir={profile}"] if profile is not None else []
        for flag in flags:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(WAIT_SECONDS)
        self.driver.set_script_timeout(WAIT_SECONDS)

    def close(self) -> None:
        """Close the browser and its driver."""
        self.driver.quit()

    def open_file(
        self, page: Path, address: str = "", *, size: tuple[int, int] = DESKTOP, dark: bool = False
    ) -> None:
        """Load a page from a file, and wait until it has drawn itself."""
        self.open_url(f"{page.as_uri()}{address}", size=size, dark=dark)

    def open_url(
        self, address: str, *, size: tuple[int, int] = DESKTOP, dark: bool = False
    ) -> None:
        """Load a page from an address, and wait until it has drawn itself."""
        self.set_appearance(size, dark=dark)
        self.driver.get("about:blank")
        self.clear_logs()
        self.driver.get(address)
        self.wait_until(
            lambda: self.run_script("return document.documentElement.dataset.ready === 'yes'")
        )

    def set_appearance(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Set the window's size and its color scheme, for the open page too."""
        self.call_devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ])  # fmt: skip
        self.call_devtools(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=size[0] < 400,
        )

    def set_offline(self, is_: bool) -> None:
        """Switch the browser's network on or off."""
        self.call_devtools("Network.enable")
        unbounded = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.call_devtools("Network.emulateNetworkConditions", offline=is_, **unbounded)

    def call_devtools(self, name: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def run_script(self, script: str, *args: Any) -> Any:
        """Run the body of a function in the page."""
        return self.driver.execute_script(script, *args)

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition is true, and return its value. Fail after the timeout."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, self.wait_timeout_s, poll_frequency=0.05).until(
            lambda _: self.retry_when_stale(condition)
        )

    def retry_when_stale(self, look: Callable[[], Any]) -> Any:
        """Run a function on elements. Repeat it if the page has drawn them again meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + self.wait_timeout_s
        while True:
            try:
                return look()
            except StaleElementReferenceException:
                if time.monotonic() > deadline:
                    raise

    def find_element(self, selector: str) -> Any:
        """Return the only element of a selector."""
        elements = self.find_elements(selector)
        assert len(elements) == 1, f"{selector}: {len(elements)}"
        return elements[0]

    def find_elements(self, selector: str) -> list[Any]:
        """Return the elements of a selector."""
        return list(self.driver.find_elements("css selector", selector))

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        self.retry_when_stale(lambda: self.find_element(selector).click())

    def set_slider(self, selector: str, value: float) -> None:
        """Move a slider, as a person does."""
        element = self.find_element(selector)
        self.run_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            element,
            value,
        )

    def press_keys(self, *keys: str) -> None:
        """Send keys to the element with the focus."""
        self.retry_when_stale(lambda: self.driver.switch_to.active_element.send_keys(*keys))

    def take_picture(self) -> Any:
        """Return the visible page as a PIL image."""
        from PIL import Image

        return Image.open(io.BytesIO(self.take_screenshot())).convert("RGB")

    def take_screenshot(self, **options: Any) -> bytes:
        """Return the visible page as PNG. The options are those of `Page.captureScreenshot`."""
        return base64.b64decode(
            self.call_devtools("Page.captureScreenshot", format="png", **options)["data"]
        )

    def clear_logs(self) -> None:
        """Ignore everything that was logged before."""
        for log in ("browser", "performance"):
            self.driver.get_log(log)

    def list_console_messages(self) -> list[str]:
        """Return the console messages since the page was opened: errors, and violations of the
        page's policy.
        """
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def list_requested_urls(self) -> list[str]:
        """Return the requests since the page was opened, except that for the page."""
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if message["params"].get("type") != "Document" or not url.startswith("file:"):
                    urls.append(url)
        return [url for url in urls if url != "data:,"]

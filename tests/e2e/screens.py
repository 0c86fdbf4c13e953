"""`make screens`: takes pictures of what a person sees: commands in a terminal, exported pages, the
page of the gateway.

A command runs in a real pseudo-terminal of 60, 80 and 120 columns. Its output goes through a
terminal emulator and is drawn by the Chromium of the browser tests, like the pages: for a phone and
a desktop, light and dark. Names on the command line select screens.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import io
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyte
import pytest
from browser import Browser

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import page_scenes as scenes  # noqa: E402 - after its folder is known
from gateway_harness import StandIn, StandIns, Web  # noqa: E402
from session_builder import build_full_session, build_long_session  # noqa: E402
from session_page import Page  # noqa: E402
from story_builder import build_delta, build_message_start  # noqa: E402
from terminal_session import Sitting  # noqa: E402

from shim.bridge.gateway.server import GatewayEndpoint  # noqa: E402
from shim.bridge.gateway.tokens import GatewayTokenFile  # noqa: E402
from shim.core.bridge.frames import parse_frame  # noqa: E402

COLUMNS = (60, 80, 120)
LINES = 40
HISTORY = 2_000  # lines per picture
SECONDS = 180.0  # for one command
README = ROOT / "shim" / "manual" / "bridge.png"
README_POINTS, README_COLOURS = (1120, 820), 128
SIZES = {"390": (390, 844), "1280": (1280, 900)}
TALLEST = 3_000  # the maximum height of a page's picture in pixels
SHIM = str(ROOT / ".venv" / "bin" / "shim")
# The cache of vendor programs of the e2e tests.
CACHE = Path.home() / ".cache" / "claude-shim" / "e2e"
COLOURS = {
    "default": "#d7d8d3", "black": "#4a4c50", "red": "#f2777a", "green": "#8fc98f", "brown": "#e6c07b",
    "blue": "#7aa6f0", "magenta": "#c79bd8", "cyan": "#6fc7c9", "white": "#e8e8e4", "brightblack": "#8a8c90",
}  # fmt: skip


def build_commands(casts: Path) -> dict[str, list[str]]:
    """Return the commands by the name of their picture."""
    return {
        "make-run": ["make", "--no-print-directory", "run"],
        "help": [SHIM, "--help"],
        "run": [SHIM, "run", "-v", "demo", "make greet.py nicer"],
        "run-fails": [SHIM, "run", "-v", "qwen", "what is here?"],
        "show": [SHIM, "show", str(casts / "everything.cast")],
        "show-long": [SHIM, "show", str(casts / "long.cast")],
        "list": [SHIM, "cast", "list", str(casts)],
        "stats": [SHIM, "cast", "stats", str(casts)],
        "sessions": [SHIM, "sessions"],
        "vendors": [SHIM, "vendors"],
        "doctor": [SHIM, "doctor"],
    }


def build_environment(home_folder: Path) -> dict[str, str]:
    """Build an environment with an empty home. The installed vendor programs of the tests are on
    PATH.
    """
    programs = [str(path) for path in sorted(CACHE.glob("*/node_modules/.bin"))]
    node = [str(path) for path in sorted(CACHE.glob("node-*/bin"))]
    path = os.pathsep.join([*programs, *node, os.environ["PATH"]])
    return {
        "HOME": str(home_folder),
        "PATH": path,
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PAGER": "cat",
    }


class Terminal:
    """The screen of a command: all its lines, including those that were scrolled away."""

    def __init__(self, columns: int) -> None:
        self.screen = pyte.HistoryScreen(columns, LINES, history=HISTORY, ratio=1.0)
        self._stream = pyte.ByteStream(self.screen)

    def feed(self, written: str) -> None:
        """Add output to the terminal."""
        self._stream.feed(written.replace("\n", "\r\n").encode())

    def run_command(self, command: list[str], around: Mapping[str, str], folder: Path) -> None:
        """Run a command to its end."""
        main, other = pty.openpty()
        fcntl.ioctl(
            other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, self.screen.columns, 0, 0)
        )
        process = subprocess.Popen(
            command,
            env=around,
            cwd=folder,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        deadline = time.monotonic() + SECONDS
        try:
            while time.monotonic() < deadline and (output := _read_output(main)):
                self._stream.feed(output)
        finally:
            os.close(main)
            if process.poll() is None and time.monotonic() >= deadline:
                process.kill()
            process.wait()

    def render_lines(self) -> Iterator[str]:
        """Return each line as HTML."""
        rows = [*self.screen.history.top, *(self.screen.buffer[row] for row in range(LINES))]
        drawn = [
            "".join(_render_cell(row[column]) for column in range(self.screen.columns)).rstrip()
            for row in rows
        ]
        while drawn and not drawn[-1]:
            drawn.pop()
        yield from drawn

    def render_page(self, title: str) -> str:
        """Return a page with the lines."""
        style = (
            "body { margin: 0; padding: 12px; background: #1b1c1f; color: #d7d8d3; width: max-content }"
            f"pre {{ font: 14px/1.35 'DejaVu Sans Mono', monospace; margin: 0; width: {self.screen.columns}ch;"
            " outline: 1px solid #333 }"
        )
        text = "\n".join(self.render_lines())
        return f"<!doctype html><html data-ready=yes><title>{title}</title><style>{style}</style><pre>{text}</pre>"


def _read_output(file: int) -> bytes:
    try:
        return os.read(file, 65_536)
    except OSError:  # the command has exited and no other process has the terminal open
        return b""


def _render_cell(cell: Any) -> str:
    text = html.escape(cell.data)
    ink, paper = (COLOURS.get(name, f"#{name}") for name in (cell.fg, cell.bg))
    if cell.reverse:
        ink, paper = paper, ink
    style = f"color:{ink};" if ink != COLOURS["default"] else ""
    if paper != COLOURS["default"]:
        style += f"background:{paper};"
    style += "font-weight:bold;" if cell.bold else ""
    return f'<span style="{style}">{text}</span>' if style else text


def capture_terminals(browser: Browser, casts: Path, folder: Path, chosen: list[str]) -> None:
    """Take a picture of each command at each width."""
    home_folder = casts.parent / "home"
    home_folder.mkdir()
    for name, command in build_commands(casts).items():
        for columns in COLUMNS if _is_chosen(name, chosen) else ():
            terminal = Terminal(columns)
            where = ROOT if command[0] == "make" else casts.parent
            terminal.run_command(command, build_environment(home_folder), where)
            page = casts.parent / f"{name}-{columns}.html"
            page.write_text(terminal.render_page(name), encoding="utf-8")
            browser.open_file(page, size=(200, 200))
            _save_screenshot(browser, folder / f"terminal-{name}-{columns}.png")


def capture_attached_terminals(
    browser: Browser, temporary: Path, folder: Path, chosen: list[str]
) -> None:
    """Take a picture of `claude attach` at each width, with the same hosts as for the page."""
    hosts = {
        "question": scenes.build_asking_host(),
        "choice": scenes.build_choosing_host(),
        "edit": scenes.build_editing_host(),
    }
    hosts["live"] = scenes.build_working_host()
    for name, host in hosts.items():
        for columns in COLUMNS if _is_chosen(f"attach-{name}", chosen) else ():
            sitting = _build_sitting(host, columns)
            if name == "live":
                sitting.receive_line(build_message_start())
                sitting.receive_line(
                    build_delta(
                        "The tests pass.\n\nI write down what changed, so that a reader sees"
                    )
                )
                sitting.press_keys("and update the docs", "\r", "then look at the others")
            terminal = Terminal(columns)
            terminal.feed(sitting.written)
            page = temporary / f"attach-{name}-{columns}.html"
            page.write_text(terminal.render_page(name), encoding="utf-8")
            browser.open_file(page, size=(200, 200))
            _save_screenshot(browser, folder / f"terminal-attach-{name}-{columns}.png")


def _build_sitting(host: StandIn, columns: int) -> Sitting:
    """Build a terminal at a host, shortly after its permission prompt was opened."""
    sitting, metadata = Sitting(columns, LINES, "truecolor"), host.metadata
    sitting.now = scenes.NOW / 1000
    lines = [
        {"kind": "line", "number": number, "generation": 1, "at": at, "line": json.loads(line)}
        for number, (at, line) in enumerate(host.lines, 1)
    ]
    about = {key: metadata[key] for key in ("id", "name", "vendor", "cwd")}
    sitting.start_session(*lines, state={"status": metadata["status"]}, **about)
    sitting.receive_frames(*(parse_frame(host.build_prompt_frame(name)) for name in host.questions))
    sitting.advance_time(1.0)
    return sitting


def capture_pages(browser: Browser, casts: Path, folder: Path, chosen: list[str]) -> None:
    """Take a picture of each page for a phone and a desktop, light and dark."""
    for page in sorted(casts.glob("*.html")):
        for size, points in SIZES.items() if _is_chosen(page.stem, chosen) else ():
            for dark in (False, True):
                browser.open_file(page, size=points, dark=dark)
                _save_screenshot(
                    browser, folder / f"page-{page.stem}-{size}-{'dark' if dark else 'light'}.png"
                )


def capture_session_views(
    browser: Browser, temporary: Path, folder: Path, chosen: list[str]
) -> None:
    """Take a picture of each view of the page of background sessions, with stand-ins for hosts."""
    hosts = {
        "live": scenes.build_working_host(),
        "question": scenes.build_asking_host(),
        "choice": scenes.build_choosing_host(),
        "edit": scenes.build_editing_host(),
    }
    webs = {"all": start_web(temporary / "all", [*hosts.values(), *scenes.build_other_hosts()])}
    webs["none"] = start_web(temporary / "none", [])
    addresses = {"list": "", "new": "#new", "error": "#s/ffffffff"}
    addresses |= {name: f"#s/{host.metadata['id']}" for name, host in hosts.items()}
    try:
        for name, address in {"login": "", **addresses, "empty": ""}.items():
            if not _is_chosen(f"bridge-{name}", chosen):
                continue
            page = Page(browser, webs["none" if name == "empty" else "all"])
            if name == "login":
                browser.driver.delete_all_cookies()
            else:
                page.open_page()
            for size, points in SIZES.items():
                for dark in (False, True):
                    browser.open_url(f"{page.base}{address}", size=points, dark=dark)
                    browser.wait_until(page.is_ready)
                    path = folder / f"bridge-{name}-{size}-{'dark' if dark else 'light'}.png"
                    path.write_bytes(browser.take_screenshot())
                    sys.stdout.write(f"{path}\n")
    finally:
        for web in webs.values():
            web.close()


def capture_readme(browser: Browser, temporary: Path) -> None:
    """Take the README's picture of the page, with few colors, so that the file is small."""
    from PIL import Image

    asking = scenes.build_asking_host()
    web = start_web(
        temporary / "readme", [asking, scenes.build_working_host(), *scenes.build_other_hosts()]
    )
    try:
        page = Page(browser, web)
        page.open_page(size=README_POINTS)
        page.open_session(asking)
        browser.wait_until(page.is_ready)
        picture = Image.open(io.BytesIO(browser.take_screenshot())).convert("RGB")
        picture.quantize(README_COLOURS, dither=Image.Dither.NONE).save(README, optimize=True)
        sys.stdout.write(f"{README}: {README.stat().st_size} bytes\n")
    finally:
        web.close()


def start_web(state: Path, hosts: list[StandIn]) -> Web:
    """Start a gateway with these hosts."""
    return Web(
        StandIns(*hosts), GatewayTokenFile({"SHIM_STATE": str(state)}), GatewayEndpoint(port=0)
    )


def _save_screenshot(browser: Browser, path: Path) -> None:
    """Save a picture of the complete open page, up to the maximum height."""
    box = browser.run_script(
        "const e = document.documentElement; return [e.scrollWidth, Math.max(e.scrollHeight, 200)]"
    )
    clip = {"x": 0, "y": 0, "width": box[0], "height": min(box[1], TALLEST), "scale": 1}
    path.write_bytes(browser.take_screenshot(clip=clip, captureBeyondViewport=True))
    sys.stdout.write(f"{path}\n")


def _is_chosen(name: str, chosen: list[str]) -> bool:
    return not chosen or name in chosen


def write_recordings(folder: Path) -> None:
    """Write recordings and their pages: one with every kind of step, sessions of 2,000 and of
    20,000 events, and the statistics of them all.
    """
    folder.mkdir()
    for name, script in {
        "everything": build_full_session(),
        "long": build_long_session(500),
        "huge": build_long_session(5000),
    }.items():
        (folder / f"{name}.cast").write_bytes(script.build_recording())
        export = [
            "export",
            str(folder / f"{name}.cast"),
            "--to",
            "html",
            "-o",
            str(folder / f"{name}.html"),
        ]
        subprocess.run([SHIM, *export], check=True, timeout=SECONDS)
    with (folder / "stats.html").open("wb") as page:
        subprocess.run(
            [SHIM, "cast", "stats", "--to", "html", str(folder)],
            check=True,
            timeout=SECONDS,
            stdout=page,
        )


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--to", type=Path, default=ROOT / "build" / "screens", help="the folder of the pictures"
    )
    parser.add_argument("names", nargs="*", help="the screens to draw; all of them by default")
    parser.add_argument(
        "--readme", action="store_true", help="only draw the README's picture of the page again"
    )
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    try:
        browser = Browser("127.0.0.1")
    except pytest.skip.Exception as reason:
        sys.exit(str(reason))
    try:
        with tempfile.TemporaryDirectory(prefix="screens-") as temporary:
            if options.readme:
                capture_readme(browser, Path(temporary))
                return
            capture_session_views(browser, Path(temporary), options.to, options.names)
            capture_attached_terminals(browser, Path(temporary), options.to, options.names)
            casts = Path(temporary) / "casts"
            write_recordings(casts)
            capture_terminals(browser, casts, options.to, options.names)
            capture_pages(browser, casts, options.to, options.names)
    finally:
        browser.close()


if __name__ == "__main__":
    main()

"""A page of somebody else's, which tries in a browser whatever a page can try against the gateway."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("foreign_page.js").read_text(encoding="utf-8")


class ForeignPage:
    """A server on a port of its own; `cookies` are those that browsers brought."""

    def __init__(self, target: str, session: str) -> None:
        constants = f"const target = {json.dumps(target)}, id = {json.dumps(session)};"
        page = f"<!doctype html><title>evil</title><body><script>{constants}{SCRIPT}</script>"
        self.cookies: list[str] = []
        cookies = self.cookies

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.port: int = self.server.server_address[1]
        self._thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

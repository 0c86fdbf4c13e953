"""A foreign page that attacks the gateway from a browser in every way that a page can."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("foreign_page.js").read_text(encoding="utf-8")


class ForeignPage:
    """A server on its own port. `cookies` are the cookies that browsers sent to it."""

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
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.port: int = self.server.server_address[1]
        self._thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

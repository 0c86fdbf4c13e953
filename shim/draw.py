"""A turn drawn for a person: text as it streams, tools with their arguments and outcome, totals at the end.

Everything a vendor or a model said goes through `printable` and is never parsed as markup (threats: terminal).
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from shim.account import printable

ARGUMENT_CHARACTERS = 160
OUTPUT_LINES = 8
OUTPUT_CHARACTERS = 1200

_SHOWN = ("command", "file_path", "pattern", "path", "url", "query", "description", "prompt")


class Drawing:
    """Draws the events of one stream, partial messages on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("waiting for the agent", spinner="dots") if console.is_terminal else None
        self._kind = ""
        self._calls: dict[str, str] = {}
        self._wait("waiting for the agent")

    def event(self, event: Mapping[str, Any]) -> None:
        """Draw one line of the stream."""
        kind = event.get("type")
        if kind == "system" and event.get("subtype") == "init":
            self._init(event)
        elif kind == "system":
            self._beside(event)
        elif kind == "stream_event":
            self._stream(event["event"])
        elif kind == "assistant":
            self._assistant(event)
        elif kind == "user":
            self._results(event["message"]["content"])
        elif kind == "result":
            self._result(event)

    def close(self) -> None:
        """No more events."""
        self._rest()

    def _init(self, event: Mapping[str, Any]) -> None:
        shim = event.get("shim") or {}
        parts = [str(shim.get("vendor") or "claude"), str(event.get("model")), str(event.get("cwd"))]
        self._line(Text(" · ".join(map(printable, parts)), style="dim"))
        if shim.get("unattended"):
            self._line(Text("this agent runs its tools without asking anybody", style="yellow"))
        self._wait("thinking")

    def _beside(self, event: Mapping[str, Any]) -> None:
        if event.get("subtype") == "api_retry":
            self._line(Text(f"the model is asked again ({event.get('attempt')})", style="yellow"))
        elif event.get("subtype") == "compact_boundary":
            self._line(Text("the context was shortened", style="yellow"))

    def _stream(self, event: Mapping[str, Any]) -> None:
        if event.get("type") == "content_block_delta":
            delta = event["delta"]
            if "text" in delta:
                self._fragment("text", delta["text"])
            elif "thinking" in delta:
                self._fragment("thinking", delta["thinking"])
        elif event.get("type") == "content_block_stop":
            self._end_block()

    def _fragment(self, kind: str, fragment: str) -> None:
        self._rest()
        if self._kind != kind:
            self._end_block()
            self._kind = kind
        style = "italic dim" if kind == "thinking" else ""
        self._console.print(Text(printable(fragment), style=style), end="", soft_wrap=True)

    def _end_block(self) -> None:
        if self._kind:
            self._kind = ""
            self._console.print()

    def _assistant(self, event: Mapping[str, Any]) -> None:
        for block in event["message"]["content"]:
            if block.get("type") == "tool_use":
                self._end_block()
                self._calls[block["id"]] = block["name"]
                line = Text("● ", style="cyan").append(printable(block["name"]), style="bold")
                self._line(line.append(f"  {shown(block['input'])}", style=""))
                self._wait(f"{printable(block['name'])} is running")
            elif event["message"].get("model") == "<synthetic>" and block.get("type") == "text":
                self._line(Text(printable(block["text"]), style="red"))

    def _results(self, content: object) -> None:
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                failed = bool(block.get("is_error"))
                mark = Text("  ✗ " if failed else "  ✓ ", style="red" if failed else "green")
                lines = text_of(block.get("content")).splitlines() or ["(no output)"]
                self._line(mark.append(lines[0], style="dim"))
                for line in lines[1:OUTPUT_LINES]:
                    self._line(Text("    " + line, style="dim"))
                if len(lines) > OUTPUT_LINES:
                    self._line(Text(f"    … {len(lines) - OUTPUT_LINES} more lines", style="dim"))
            elif block.get("type") == "text":
                self._line(Text(printable(block["text"]), style="yellow"))
        self._wait("thinking")

    def _result(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage") or {}
        failed = bool(event.get("is_error"))
        cause = (event.get("shim") or {}).get("cause") or event.get("subtype")
        if failed:
            errors = event.get("errors") or []
            self._line(Text(printable("\n".join(map(str, errors)) or cause), style="red"))
        tokens = sum(usage.get(name, 0) for name in usage if isinstance(usage.get(name), int))
        facts = [
            "failed: " + printable(cause) if failed else "done",
            f"{event.get('num_turns')} turns",
            f"{event.get('duration_ms', 0) / 1000:.1f} s",
            f"{tokens} tokens",
            f"${event.get('total_cost_usd') or 0:.4f}",
        ]
        self._line(Text(" · ".join(facts), style="red" if failed else "green"))

    def _line(self, text: Text) -> None:
        self._rest()
        self._end_block()
        self._console.print(text, soft_wrap=True)

    def _wait(self, what: str) -> None:
        if self._status is not None:
            self._status.update(Text(what))
            self._status.start()

    def _rest(self) -> None:
        if self._status is not None:
            self._status.stop()


def shown(arguments: Mapping[str, Any]) -> str:
    """A call's arguments in one line: the one that says most, or all of them."""
    for name in _SHOWN:
        if isinstance(arguments.get(name), str):
            text = str(arguments[name])
            break
    else:
        text = ", ".join(f"{name}={value}" for name, value in arguments.items())
    text = printable(text).replace("\n", " ⏎ ")
    return text if len(text) <= ARGUMENT_CHARACTERS else text[:ARGUMENT_CHARACTERS] + "…"


def text_of(content: object) -> str:
    """A result's content as text for a terminal, cut to a screen."""
    if isinstance(content, list):
        content = "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in content)
    return printable(str("" if content is None else content)[:OUTPUT_CHARACTERS])

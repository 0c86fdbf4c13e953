"""One line of 200 MB through the drop-in: skipped by default, complete with a higher
`max_inbound_bytes`.

`python tests/bench/bench_inbound_limit.py [MEGABYTES]` prints the peak memory of the drop-in, the
seconds, and whether the line was written.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import LAUNCHER, SHIM
from bench_streams import MEGABYTE, STREAMS, read_case_lines

TEXT = b"one line of two hundred megabyte" * (MEGABYTE // 32)
SESSION = "11111111-1111-4111-8111-111111111111"


def encode_line(value: object) -> bytes:
    """Return a line as JSON. The large text is inserted later, because it is too large to be
    dumped.
    """
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def fill_line(line: object, size: int) -> Iterator[bytes]:
    """Yield a line with the large text in place of its `@`."""
    before, after = encode_line(line).split(b"@")
    yield before
    for _ in range(size):
        yield TEXT
    yield after


def build_pi_delta(size: int) -> Iterator[bytes]:
    """Yield one text delta, and the end of its reply, which repeats the text."""
    yield encode_line({"type": "session", "version": 3, "id": SESSION, "cwd": "/w"})
    update = {"type": "text_delta", "contentIndex": 0, "delta": "@"}
    yield from fill_line({"type": "message_update", "assistantMessageEvent": update}, size)
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "@"}],
        "stopReason": "stop",
    }
    yield from fill_line({"type": "message_end", "message": message}, size)
    yield encode_line({"type": "agent_end", "messages": []})


def build_qwen_result(size: int) -> Iterator[bytes]:
    """Yield one tool result."""
    lines = [line + b"\n" for line in read_case_lines("qwen", "0.24.4-shell")]
    for line in lines:
        event = json.loads(line)
        if event["type"] == "user" and not isinstance(event["message"]["content"], str):
            event["message"]["content"][0]["content"] = "@"
            yield from fill_line(event, size)
        else:
            yield line


def build_qwen_text(size: int) -> Iterator[bytes]:
    """Yield one full text."""
    for line in read_case_lines("qwen", STREAMS["qwen"].text_case):
        event = json.loads(line)
        if event["type"] == "assistant":
            event["message"]["content"] = [{"type": "text", "text": "@"}]
            yield from fill_line(event, size)
        else:
            yield line + b"\n"


LINES = {"pi": build_pi_delta, "qwen": build_qwen_text, "qwen-tool": build_qwen_result}


def measure_line(name: str, size: int, folder: str, inbound: int, partial: bool) -> None:
    """Print one row."""
    stream, out, errors = (os.path.join(folder, each) for each in ("stream", "out", "err"))
    config, fake = os.path.join(folder, "config.toml"), os.path.join(folder, "fake")
    with open(stream, "wb") as file:
        file.writelines(LINES[name](size))
    Path(fake).write_text(f"#!/bin/sh\nexec cat {stream}\n", encoding="utf-8")
    Path(fake).chmod(0o700)
    Path(config).write_text(f"max_inbound_bytes = {inbound}\n" if inbound else "", encoding="utf-8")
    env = {"PATH": os.environ["PATH"], "HOME": folder, "SHIM_STATE": os.path.join(folder, "state")}
    env |= {"SHIM_VENDOR": name.partition("-")[0], "SHIM_BIN": fake, "SHIM_CONFIG": config}
    args = ["-p", "hi", "--output-format", "stream-json", "--verbose"]
    args += ["--include-partial-messages"] if partial else []
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, out, errors, *SHIM, "claude", *args]
    start = time.monotonic()
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    seconds = time.monotonic() - start
    cpu, kilobytes, _ = json.loads(done.stdout)
    longest, result = 0, b""
    with open(out, "rb") as file:
        for line in file:
            longest = max(longest, len(line))
            result = line if b'"type":"result"' in line else result
    last = json.loads(result)
    output_summary = f"{os.path.getsize(out) / MEGABYTE:.0f} MB written, longest line {longest:,}"
    kind = "raised" if inbound else "default"
    sys.stdout.write(
        f"{name:<10} {'partial' if partial else 'whole':<8} {kind:<8} {kilobytes / 1024:7.0f} MB {seconds:6.2f} s "
        f"({cpu:.2f} s CPU)  {last['subtype']} {last['shim']['repairs']} {output_summary}\n"
    )
    sys.stdout.flush()


def main() -> int:
    """Print all rows."""
    size = int(sys.argv[1]) if sys.argv[1:] else 200
    with tempfile.TemporaryDirectory(prefix="shim-bench-") as folder:
        for name in LINES:
            for inbound in (0, 2 * size * MEGABYTE):
                for partial in (False, True):
                    measure_line(name, size, folder, inbound, partial)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure `shim show` on a recording of 100 MB: the time of its first line, its memory, and its
full duration.

Each mix represents one kind of recording: many small fragments, long outputs, long Markdown texts,
edits.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from cast_builder import HEADER
from story_builder import (
    INIT,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
)

from shim.core.cast.encoder import RecordingEncoder

CAST_BYTES = 100_000_000
GOAL_SECONDS, GOAL_BYTES = 1.0, 150_000_000
# Markdown in a terminal takes minutes. The measured values are the first line and the memory.
LAST_SECONDS = 20.0
SHIM = [sys.executable, "-m", "shim"]

Events = Iterator[dict[str, object]]


def build_fragments(number: int) -> Events:
    deltas = [f"word{number % 97} " for _ in range(200)]
    yield build_message_start(str(number))
    yield from map(build_delta, deltas)
    yield build_assistant_line(build_text_block("".join(deltas)), message_id=str(number))


def build_outputs(number: int) -> Events:
    yield build_assistant_line(
        build_tool_use(str(number), command=f"cat {number}"), message_id=str(number)
    )
    yield build_tool_result_line(str(number), f"line of output {number}\n" * 3000)


def build_texts(number: int) -> Events:
    yield build_assistant_line(
        build_text_block(f"# Part {number}\n\nSome **bold** words, `code`.\n\n- one\n- two\n" * 40),
        message_id=str(number),
    )


def build_edits(number: int) -> Events:
    old = "".join(f"line {row}\n" for row in range(60))
    edit = {
        "file_path": f"/repo/{number}.py",
        "old_string": old,
        "new_string": old.replace("7", "x"),
    }
    yield build_assistant_line(build_tool_use(str(number), "Edit", **edit), message_id=str(number))
    yield build_tool_result_line(str(number), "updated")


def build_turns(number: int) -> Events:
    yield from build_fragments(number)
    yield from build_outputs(number)
    yield from build_edits(number)
    yield build_result_line(0.01 * number)


MIXES: dict[str, Callable[[int], Events]] = {
    "fragments": build_fragments,
    "outputs": build_outputs,
    "texts": build_texts,
    "edits": build_edits,
    "turns": build_turns,
}


def write_recording(path: str, mix: Callable[[int], Events]) -> None:
    """Write a recording of at least CAST_BYTES."""
    encoder, at, number = RecordingEncoder(), 0.0, 0
    with open(path, "wb") as file:
        argv = [
            "-p",
            "--output-format",
            "stream-json",
            "--verbose",
            "--include-partial-messages",
            "hello",
        ]
        file.write(encoder.encode_header({**HEADER, "argv": argv}))
        file.write(encoder.encode_stream_chunk("O", at, json.dumps(INIT).encode() + b"\n"))
        while file.tell() < CAST_BYTES:
            number += 1
            for event in mix(number):
                at += 0.01
                file.write(encoder.encode_stream_chunk("O", at, json.dumps(event).encode() + b"\n"))
        file.write(encoder.encode_recording_end(at))


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used, or 0 if they are unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_command(command: list[str], *, terminal: bool) -> tuple[float, float, float, float]:
    """Return the seconds to the first line, the CPU seconds until then, the seconds to the end, and
    the peak memory in bytes.
    """
    if terminal:
        import pty

        reads, writes = pty.openpty()
    else:
        reads, writes = os.pipe()
    started_at = time.monotonic()
    process = subprocess.Popen(
        command, stdout=writes, env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    )
    os.close(writes)
    first, spent = [0.0], [0.0]

    def read_output() -> None:
        try:
            while os.read(reads, 1 << 20):
                if not first[0]:
                    first[0], spent[0] = (
                        time.monotonic() - started_at,
                        read_cpu_seconds(process.pid),
                    )
        except OSError:
            pass  # how the output of a terminal ends

    reader = threading.Thread(target=read_output)
    reader.start()
    reader.join(LAST_SECONDS)
    lasted = time.monotonic() - started_at
    cut = reader.is_alive()
    if cut:
        process.terminate()
    reader.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    os.close(reads)
    assert cut or process.returncode == 0, process.returncode
    return first[0], spent[0], lasted, usage.ru_maxrss * 1024


def main() -> None:
    """Print a row for each mix. Rows over a goal are marked."""
    goal = f"goals {GOAL_SECONDS} s, {GOAL_BYTES // 10**6} MB"
    sys.stdout.write(
        f"{'shim show, ' + goal:44} {'first line':>10} {'of CPU':>8} {'all':>9} {'memory':>9}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "long.cast")
        for name, mix in MIXES.items():
            write_recording(path, mix)
            for flags, terminal in (([], False), ([], True), (["--raw"], False)):
                first, spent, lasted, memory = measure_command(
                    [*SHIM, "show", path, *flags], terminal=terminal
                )
                what = f"{name}, {'terminal' if terminal else 'pipe'} {' '.join(flags)}"
                duration_text = (
                    f"{lasted:.1f}" if lasted < LAST_SECONDS else f"> {LAST_SECONDS:.0f}"
                )
                marker = "" if first <= GOAL_SECONDS and memory <= GOAL_BYTES else "  SHORT"
                sys.stdout.write(
                    f"{what:44} {first:8.2f} s {spent:6.2f} s {duration_text:>7} s {memory / 1e6:6.0f} MB{marker}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Measure the drop-in's memory for any input: `make bench`, or `python tests/bench/bench_memory.py
--quick`.

The parts:

    a  1 GB of each vendor's text, in one-shot mode and in a conversation; 1 GB as `json`,
       `json --verbose` and `text`
    b  a frontend that reads 1 MB/s: memory, the child's lead, and whether everything arrives
    c  a frontend that never reads: memory, and the end by SIGTERM
    d  1 GB on the child's stderr
    e  a line of 200 MB; a tool result of 20 MB, truncated in the stream and complete in its file

The installed `claude` runs with a stand-in for the vendor, on pipes. Memory is the drop-in's own
peak from the kernel. The goals are printed beside the numbers, but no number fails the run. The
exit status is 1 only if something could not be run.
"""

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from bench import SHIM, NotRunError, Table
from bench_streams import BLOCK, MEGABYTE, STREAMS, BenchStream, build_long_turn

MEMORY_GOAL = 60  # MB
RATE = MEGABYTE  # bytes per second of a slow frontend
# MB that a child may be ahead of a slow frontend: two pipes, the shim's chunks and a few lines.
AHEAD_GOAL = 4
END_GOAL = 2.5  # seconds from SIGTERM to the end of all processes
STILL_SECONDS = 2.0  # without progress: the child waits for the shim
TIMEOUT_S = 600.0
PIECE = 50_000  # characters of a numbered text
CLAUDE = BenchStream(
    "claude",
    ("2.1.327-text", "2.1.327-tool-bash", "2.1.327-tool-read", "2.1.327-tool-edit"),
    None,
    None,
)
BENCH_STREAMS = STREAMS | {"claude": CLAUDE}
SINGLE_MESSAGE = ("-p", "hi", "--output-format", "stream-json", "--verbose")
TALK = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
USER = b'{"type":"user","message":{"role":"user","content":"hi"},"session_id":"","parent_tool_use_id":null}\n'

MARK = "%HERE%"
RESULT = b'{"type":"result"'

# The peak memory of a child is never below the size of the process that started it, so this process
# is small.
LAUNCHER = """
import json, os, sys
report, *argv = sys.argv[1:]
def write(name, value):
    with open(report + ".new", "w") as file: json.dump(value, file)
    os.rename(report + ".new", report + name)
pid = os.posix_spawnp(argv[0], argv, os.environ)
write(".pid", pid)
_, status, used = os.wait4(pid, 0)
write(".end", [used.ru_maxrss, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status)])
"""


# ---- the stand-in


def build_numbered_text(count: int) -> str:
    """Return a text that is unique for its number."""
    return f"{count:010d}" * (PIECE // 10)


def build_text_turn(vendor: str, texts: Iterator[str]) -> Iterator[bytes]:
    """Yield a turn of a vendor with these texts, each in a separate block."""
    import torture

    if vendor == "pi":
        yield torture.PI_HEAD
        for text in texts:
            yield torture.build_pi_message_end(text)
        yield torture.PI_TAIL
    else:
        yield torture.encode_line(torture.INIT)
        for text in texts:
            yield torture.encode_line(torture.build_assistant_line(text))
        yield torture.encode_line(torture.DONE)


def build_call_turn(vendor: str, result: str) -> Iterator[bytes]:
    """Yield a turn of a vendor with one call."""
    import torture

    if vendor == "pi":
        call = torture.build_pi_message_end(
            torture.build_pi_call("c1", "bash", {"command": "x"}), reason="toolUse"
        )
        yield torture.build_pi_turn(
            call, torture.build_pi_result("c1", "bash", result), torture.build_pi_text("after")
        )
    else:
        call = torture.build_assistant_line(torture.build_tool_use("c1", "Bash", {"command": "x"}))
        yield torture.build_claude_turn(
            call, torture.build_tool_result("c1", result), torture.build_assistant_line("after")
        )


def generate_long_text(megabytes: int) -> Iterator[str]:
    """Yield about `megabytes` MB of distinct lines, in chunks."""
    for count in range(0, megabytes * 20_000, 1000):
        yield "".join(
            f"line {number:012d} of a long result, é and \\ in it\n"
            for number in range(count, count + 1000)
        )


def fill_placeholder(blocks: Iterator[bytes], texts: Iterator[str]) -> Iterator[bytes]:
    """Yield the blocks with the text in place of their placeholder. A stand-in with the full text
    in memory would be measured too.
    """
    for block in blocks:
        before, placeholder, after = block.partition(MARK.encode())
        yield before
        if placeholder:
            yield from (orjson.dumps(text)[1:-1] for text in texts)
            yield after


def run_stand_in(kind: str, vendor: str, size: int, progress: str) -> None:
    """Run as a vendor's program."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
    import fake_child

    blocks: Iterator[bytes] = iter(())
    if kind == "stream":
        blocks = build_long_turn(BENCH_STREAMS[vendor], size * MEGABYTE)
    elif kind == "numbers":
        blocks = build_text_turn(vendor, map(build_numbered_text, range(size * MEGABYTE // PIECE)))
    elif kind == "line":
        blocks = fill_placeholder(
            build_text_turn(vendor, iter(("before", MARK, "after"))),
            ("x" * MEGABYTE for _ in range(size)),
        )
    elif kind == "result":
        blocks = fill_placeholder(build_call_turn(vendor, MARK), generate_long_text(size))
    elif kind == "stderr":
        noise = b"a line of noise on stderr\n" * (BLOCK // 26)
        for _ in range(size * MEGABYTE // len(noise)):
            os.write(2, noise)
        blocks = build_text_turn(vendor, iter(("text",)))
    fake_child.serve()
    written = 0
    with open(progress, "wb", buffering=0) as file:
        for block in blocks:
            view = memoryview(block)
            while view:
                count = os.write(1, view[:BLOCK])
                view, written = view[count:], written + count
            os.pwrite(file.fileno(), b"%d" % written, 0)


# ---- the drop-in


@dataclass
class InstalledShim:
    """An installed drop-in and its isolated environment."""

    folder: Path
    environment: dict[str, str]
    count: int = 0

    @classmethod
    def create(cls, folder: str) -> "InstalledShim":
        """Install the drop-in."""
        inherited_env = {
            name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ
        }
        environment = inherited_env | {
            "HOME": folder,
            "SHIM_STATE": f"{folder}/state",
            "XDG_CONFIG_HOME": folder,
        }
        command = [*SHIM, "install", "--to", folder, "--vendor", "demo"]
        subprocess.run(
            command,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return cls(Path(folder), environment)

    def start_turn(self, args: Sequence[str], vendor: str, kind: str, size: int) -> "Running":
        """Start the drop-in with a stand-in that writes one kind of output."""
        self.count += 1
        name = str(self.folder / f"run{self.count}")
        stand_in_args = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--be",
            kind,
            vendor,
            str(size),
            f"{name}.progress",
        ]
        program = Path(f"{name}.vendor")
        program.write_text(f'#!/bin/sh\nexec {shlex.join(stand_in_args)} "$@"\n')
        program.chmod(0o700)
        environment = self.environment | {
            "SHIM_VENDOR": BENCH_STREAMS[vendor].vendor,
            "SHIM_BIN": str(program),
        }
        is_conversation = args == TALK
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                LAUNCHER,
                name,
                str(self.folder / "claude"),
                *args,
            ],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.PIPE if is_conversation else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running = Running(name, process)
        if is_conversation:
            assert process.stdin is not None
            process.stdin.write(USER)
            process.stdin.flush()
        return running


class Running:
    """A running drop-in."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None and process.stderr is not None
        self._name = name
        self.process = process
        self.stdout = process.stdout.fileno()
        self.read = 0
        threading.Thread(
            target=self._drain_stderr, args=(process.stderr.fileno(),), daemon=True
        ).start()

    def _drain_stderr(self, descriptor: int) -> None:
        try:
            while os.read(descriptor, BLOCK):
                pass
        except OSError:
            pass

    def read_lines(self, rate: int = 0) -> Iterator[bytes]:
        """Yield the drop-in's lines, read at a rate. A conversation ends after its result."""
        pending_chunks: list[bytes] = []
        while chunk := os.read(self.stdout, BLOCK // 4 if rate else BLOCK):
            self.read += len(chunk)
            if rate:
                time.sleep(len(chunk) / rate)
            lines = chunk.split(b"\n")
            if len(lines) > 1:
                lines[0] = b"".join([*pending_chunks, lines[0]])
                pending_chunks = []
            pending_chunks.append(lines.pop())
            for line in lines:
                if line.startswith(RESULT):
                    self.close_stdin()
                yield line
        if pending_chunks != [b""]:
            yield b"".join(pending_chunks)

    def close_stdin(self) -> None:
        """Close stdin: no further message follows."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def read_progress(self) -> int:
        """Return how many bytes the child has written."""
        try:
            return int(Path(f"{self._name}.progress").read_bytes() or b"0")
        except OSError:
            return 0

    def read_pid(self) -> int:
        """Return the drop-in's process id."""
        return int(Path(f"{self._name}.pid").read_text())

    def read_peak_mb(self) -> float:
        """Return the drop-in's peak memory so far, in MB (Linux)."""
        status = Path(f"/proc/{self.read_pid()}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    def wait_for_end(self) -> tuple[float, float, int]:
        """Wait for the end. Return the peak memory in MB, the CPU seconds, and the exit status."""
        self.process.wait(TIMEOUT_S)
        kilobytes, seconds, status = json.loads(Path(f"{self._name}.end").read_text())
        self.process.stdout.close()  # type: ignore[union-attr]
        return kilobytes / 1024, seconds, status

    def is_stopped(self) -> bool:
        """Return whether the child has made no progress for a while."""
        last, since = -1, time.monotonic()
        started_at = since
        while time.monotonic() - since < STILL_SECONDS or last <= 0:
            if time.monotonic() - started_at > TIMEOUT_S / 10:
                return False
            time.sleep(0.1)
            if (now := self.read_progress()) != last:
                last, since = now, time.monotonic()
        return True


def is_success(lines: list[bytes]) -> bool:
    """Return whether a turn ended successfully."""
    results = [line for line in lines if line.startswith(RESULT)]
    return len(results) == 1 and not orjson.loads(results[0])["is_error"]


def check_condition(good: bool, complaint: str) -> None:
    """Raise NotRunError if the measured process failed."""
    if not good:
        raise NotRunError(complaint)


def print_memory_row(table: Table, name: str, peak: float, more: str, good: bool = True) -> None:
    """Print one row: the peak, beside its goal."""
    table.print_row(
        name, f"{peak:.1f} MB{more}", f"<= {MEMORY_GOAL} MB", peak <= MEMORY_GOAL and good
    )


# ---- the parts


def measure_stream(
    table: Table,
    name: str,
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
) -> None:
    """Measure a long stream, read at full speed."""
    running = installed_shim.start_turn(args, vendor, "stream", size)
    last = b""
    for line in running.read_lines():
        last = line or last
    peak, seconds, status = running.wait_for_end()
    check_condition(status == 0, f"exit {status}: {last[-200:]!r}")
    written = running.read_progress() // MEGABYTE
    print_memory_row(
        table,
        name,
        peak,
        f", {seconds:.1f} s CPU, {written} MB in, {running.read // MEGABYTE} MB out",
    )


def read_slowly(
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
    measurement: dict[str, Any],
) -> None:
    """Run a frontend that reads 1 MB/s. The results are stored in `measurement`."""
    running = installed_shim.start_turn(args, vendor, "numbers", size)
    expected, ahead, started_at, result = 0, 0.0, time.monotonic(), b""
    measurement["lost"] = True
    for line in running.read_lines(RATE):
        ahead = max(ahead, (running.read_progress() - running.read) / MEGABYTE)
        if b'"type":"assistant"' in line[:40]:
            (block,) = orjson.loads(line)["message"]["content"]
            if block["text"] != build_numbered_text(expected):
                return
            expected += 1
        result = line if line.startswith(RESULT) else result
    measurement |= {"ahead": ahead, "seconds": time.monotonic() - started_at}
    measurement["peak"], _, status = running.wait_for_end()
    measurement["lost"] = (
        expected != size * MEGABYTE // PIECE or status != 0 or orjson.loads(result)["is_error"]
    )


def measure_backpressure(table: Table, installed_shim: InstalledShim, size: int) -> None:
    """Run the slow frontends in parallel: they mostly wait."""
    runs = {
        f"{vendor}, {how}": (args, vendor)
        for vendor in ("pi", "qwen", "claude")
        for how, args in (("one message", SINGLE_MESSAGE), ("a conversation", TALK))
    }
    measurements: dict[str, dict[str, Any]] = {name: {} for name in runs}
    threads = [
        threading.Thread(
            target=read_slowly, args=(installed_shim, *runs[name], size, measurements[name])
        )
        for name in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, measurement in measurements.items():
        if "peak" not in measurement:
            table.print_row(name, "a text was lost or changed", "", "not run")
            continue
        completeness = "all of it arrived" if not measurement["lost"] else "NOT ALL ARRIVED"
        print_memory_row(
            table,
            name,
            measurement["peak"],
            f", {measurement['seconds']:.0f} s; {completeness}",
            not measurement["lost"],
        )
        ahead = measurement["ahead"]
        table.print_row(
            "  its child is ahead by at most",
            f"{ahead:.1f} MB",
            f"<= {AHEAD_GOAL} MB",
            ahead <= AHEAD_GOAL,
        )


def measure_stalled_reader(
    table: Table,
    name: str,
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
) -> None:
    """Measure a frontend that does not read at all, and then stops the drop-in."""
    running = installed_shim.start_turn(args, vendor, "numbers", size)
    check_condition(running.is_stopped(), "the child was not slowed down")
    peak, ahead = running.read_peak_mb(), running.read_progress() / MEGABYTE
    started_at = time.monotonic()
    os.kill(running.read_pid(), signal.SIGTERM)
    _, _, status = running.wait_for_end()
    seconds = time.monotonic() - started_at
    check_condition(status == 143, f"exit {status} after SIGTERM")
    print_memory_row(table, name, peak, f", the child stopped after {ahead:.1f} MB")
    table.print_row(
        "  SIGTERM to the end", f"{seconds:.2f} s", f"<= {END_GOAL} s", seconds <= END_GOAL
    )


def measure_stderr_noise(
    table: Table,
    name: str,
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
) -> None:
    """Measure a flood on stderr before the answer."""
    running = installed_shim.start_turn(args, vendor, "stderr", size)
    lines = [line for line in running.read_lines() if line]
    peak, seconds, status = running.wait_for_end()
    check_condition(status == 0 and is_success(lines), f"exit {status}")
    print_memory_row(table, name, peak, f", {seconds:.1f} s CPU")


def measure_long_line(
    table: Table,
    name: str,
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
) -> None:
    """Measure a line beyond the limit, between others."""
    running = installed_shim.start_turn(args, vendor, "line", size)
    lines = [line for line in running.read_lines() if line]
    peak, seconds, _ = running.wait_for_end()
    texts = [
        block["text"] for line in map(orjson.loads, lines) if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]  # fmt: skip
    check_condition(texts == ["before", "after"] and is_success(lines), f"said {texts!r}")
    print_memory_row(
        table, name, peak, f", {seconds:.1f} s CPU; what stands before and behind it arrived"
    )


def measure_large_result(
    table: Table,
    name: str,
    installed_shim: InstalledShim,
    args: Sequence[str],
    vendor: str,
    size: int,
) -> None:
    """Measure a tool result that is longer than the line limit."""
    running = installed_shim.start_turn(args, vendor, "result", size)
    lines = [line for line in running.read_lines() if line]
    peak, _, status = running.wait_for_end()
    check_condition(status == 0, f"exit {status}")
    (content,) = (
        block["content"] for line in map(orjson.loads, lines) if line["type"] == "user"
        for block in line["message"]["content"]
    )  # fmt: skip
    text, longest = "".join(generate_long_text(size)), max(map(len, lines))
    head, _, notice = content.partition("\n[… ")
    path = notice.partition("; the full text is in ")[2].partition(" …]\n")[0]
    is_identical = (
        bool(path)
        and hashlib.sha256(Path(path).read_bytes()).digest()
        == hashlib.sha256(text.encode()).digest()
    )
    ends = bool(head) and text.startswith(head) and text.endswith(content.rpartition(" …]\n")[2])
    measured = f"longest line {longest:,} bytes, its file {'the same' if is_identical else 'DIFFERENT'}; {peak:.0f} MB"
    table.print_row(name, measured, "<= 100,000", longest <= 100_000 and is_identical and ends)


def main() -> int:
    """Measure the requested parts."""
    if sys.argv[1:2] == ["--be"]:
        kind, vendor, size, progress = sys.argv[2:6]
        run_stand_in(kind, vendor, int(size), progress)
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="a,b,c,d,e", help="parts, as in --only a,c")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything: while developing"
    )
    options = parser.parse_args()
    parts = options.only.split(",")
    size, wire = (100, 6) if options.quick else (1000, 64)
    table = Table()
    modes = {"one message": SINGLE_MESSAGE, "a conversation": TALK}
    vendors = ("pi", "qwen", "claude")
    with tempfile.TemporaryDirectory(prefix="shim-bench-") as folder:
        installed_shim = InstalledShim.create(folder)
        if "a" in parts:
            table.print_heading(f"a  peak memory of the drop-in on {size} MB")
            for vendor in vendors:
                for way, args in modes.items():
                    table.print_measurement(
                        f"{vendor}, {way}", measure_stream, installed_shim, args, vendor, size
                    )
                table.print_measurement(
                    f"{vendor}, partial",
                    measure_stream,
                    installed_shim,
                    (*SINGLE_MESSAGE, "--include-partial-messages"),
                    vendor,
                    size,
                )
            for form in (("json",), ("json", "--verbose"), ("text",)):
                args = ("-p", "hi", "--output-format", *form)
                for vendor in vendors:
                    table.print_measurement(
                        f"{vendor}, {' '.join(form)}",
                        measure_stream,
                        installed_shim,
                        args,
                        vendor,
                        size,
                    )
        if "b" in parts:
            table.print_heading(f"b  {wire} MB to a frontend that reads 1 MB/s")
            measure_backpressure(table, installed_shim, wire)
        if "c" in parts:
            table.print_heading("c  a frontend that never reads")
            for vendor in vendors:
                for way, args in modes.items():
                    table.print_measurement(
                        f"{vendor}, {way}",
                        measure_stalled_reader,
                        installed_shim,
                        args,
                        vendor,
                        size,
                    )
        if "d" in parts:
            table.print_heading(f"d  {size} MB on the child's stderr")
            for vendor in vendors:
                for way, args in modes.items():
                    table.print_measurement(
                        f"{vendor}, {way}", measure_stderr_noise, installed_shim, args, vendor, size
                    )
        if "e" in parts:
            table.print_heading("e  what is too long")
            for vendor in vendors:
                for way, args in modes.items():
                    table.print_measurement(
                        f"{vendor}, {way}, a line of 200 MB",
                        measure_long_line,
                        installed_shim,
                        args,
                        vendor,
                        200,
                    )
                    table.print_measurement(
                        f"{vendor}, {way}, 20 MB result",
                        measure_large_result,
                        installed_shim,
                        args,
                        vendor,
                        20,
                    )
    return table.print_summary()


if __name__ == "__main__":
    sys.exit(main())

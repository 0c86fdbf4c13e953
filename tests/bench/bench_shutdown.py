"""Measure what a run leaves behind, and how soon a process tree that ignores signals is gone.

`make bench`, or `python tests/bench/bench_shutdown.py`.

gone   seconds from the end of the shim to the last process of the vendor's tree: a child, a
       grandchild in its group, one in a new session and a daemon without a parent, all of which
       ignore SIGINT, SIGTERM and SIGHUP
left   processes, descriptors, memory and files after many turns: one message per run (two runs in
       parallel), and one conversation, with a child for each message, with a persistent child, and
       with a stand-in for a real claude

The exit status is 1 if something is left, or a tree was not gone in time.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from bench import Table
from box import (
    ANSWER,
    ASK,
    CONVERSE,
    END,
    START,
    Box,
    Lifeline,
    Running,
    build_text_event,
    format_ndjson,
)

from shim.process import descendants, spawn

SESSION = "7f1c2f4e-0000-4000-8000-0000000000aa"
INIT = {"type": "system", "subtype": "init", "session_id": SESSION, "tools": [], "model": "m1"}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "Hello.",
    "session_id": SESSION,
}
USER = {"type": "user", "message": {"role": "user", "content": "go"}}
MAX_EXIT_SECONDS = 2.5
# Growth over a conversation: arenas of the allocator, and at most 10,000 ids.
MEMORY_MEGABYTES = 3.0
ZOMBIES = 2  # that ended after the last turn, and are reaped after the next one
REST_SECONDS = 5.0  # the child of the last turn may still be exiting when its result is read
POLL_SECONDS = 0.02
CONVERSATION_DRIVERS = ("one way", "two way", "relay")


@contextmanager
def open_box() -> Iterator[Box]:
    """Yield a box in a new folder."""
    folder = tempfile.mkdtemp(prefix="shim-ends-")
    box = Box(Path(folder))
    try:
        yield box
    finally:
        box.close()
        shutil.rmtree(folder)


# ---- the time until everything is gone


def build_tree(box: Box, lifeline: Lifeline, how: str, *, reachable: bool) -> dict[str, str]:
    """Start a vendor that ignores signals. Without `reachable` its whole tree is in one group."""
    steps: list[list[Any]] = [
        ["ignore", "SIGINT", "SIGTERM", "SIGHUP"],
        ["spawn", lifeline.path, False],
    ]
    steps += [["spawn", lifeline.path, True], ["daemon", lifeline.path]] if reachable else []
    steps += [["say", lifeline.path, "child"]]
    vendor = {"one message": "demo", "one way": "demo", "two way": "qwen", "relay": "claude"}[how]
    steps += [["hear", "initialize"]] if how == "two way" else []
    steps += [["hear", "go"]] if how in ("two way", "relay") else []
    output = (
        format_ndjson(START, build_text_event("I am ")) if vendor == "demo" else format_ndjson(INIT)
    )
    return {"SHIM_VENDOR": vendor, "SHIM_BIN": box.create_fake(*steps, ["out", output], ["hang"])}


def close_pipes(running: Running) -> None:
    """Close the frontend's ends of the pipes, as the kernel does for a killed frontend."""
    for name in ("stdin", "stdout"):
        pipe = getattr(running.process, name)
        if pipe is not None:
            pipe.close()
            setattr(running.process, name, None)


def measure_exit_seconds(how: str, what: int | None) -> float:
    """Return the seconds until a tree is gone, after a signal to the shim or, without one, after
    the frontend has left.
    """
    with open_box() as box:
        lifeline = box.create_lifeline()
        environment = build_tree(box, lifeline, how, reachable=what != signal.SIGKILL)
        args, stdin = (
            (ASK, subprocess.DEVNULL) if how == "one message" else (CONVERSE, subprocess.PIPE)
        )
        with box.start_claude(*args, stdin=stdin, environment=environment, reuse=False) as running:
            if how != "one message":
                running.send_lines(USER)
            running.read_until(b'"init"')
            lifeline.wait_for("child")
            started_at = time.monotonic()
            close_pipes(running) if what is None else running.send_signal(what)
            if not lifeline.wait_until_closed():
                return float("inf")
            running.process.wait()
            return time.monotonic() - started_at


def measure_shutdown(table: Table, rounds: int) -> None:
    table.print_heading(
        "gone  seconds from what ends us to the last process of a tree that ignores signals"
    )
    ends: list[tuple[str, int | None]] = [
        ("SIGTERM", signal.SIGTERM),
        ("SIGHUP", signal.SIGHUP),
        ("SIGINT", signal.SIGINT),
        ("frontend gone", None),
        ("SIGKILL of us (one group)", signal.SIGKILL),
    ]
    for name, what in ends:
        for how in ("one message", *CONVERSATION_DRIVERS):
            values = [measure_exit_seconds(how, what) for _ in range(rounds)]
            measured = (
                f"median {statistics.median(values):.2f} s, max {max(values):.2f} s of {rounds}"
            )
            table.print_row(
                f"{name}, {how}",
                measured,
                f"<= {MAX_EXIT_SECONDS} s",
                max(values) <= MAX_EXIT_SECONDS,
            )


# ---- leftovers


class Left(NamedTuple):
    """What a process holds: descriptors, kilobytes, children of any kind, zombies among them."""

    descriptors: int
    kilobytes: int
    processes: int
    zombies: int


def read_usage(pid: int) -> Left:
    """Return what a process holds now."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    descendant_pids = descendants.find_descendant_start_times(pid)
    zombies = 0
    for child in descendant_pids:
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
                zombies += file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return Left(len(os.listdir(f"/proc/{pid}/fd")), kilobytes, len(descendant_pids), zombies)


def wait_until_idle(pid: int, early: Left) -> Left:
    """Return what a process holds after the child of its last turn, which exits after the result,
    was reaped. Only a leak remains.
    """
    deadline = time.monotonic() + REST_SECONDS
    while (late := read_usage(pid)).descriptors > early.descriptors and time.monotonic() < deadline:
        time.sleep(REST_SECONDS / 100)
    return late


def list_leftover_files(box: Box) -> set[str]:
    """Return the files in the box that no turn should leave: no state, transcript or recording, and
    no file of the stand-in.
    """
    remembered = (box.state / "sessions", box.state / "probes", box.state / "versions")
    excluded_folders = (
        *remembered,
        box.path / "casts",
        box.home / ".claude" / "projects",
        box.bin,
        box.path / "plans",
    )
    paths = (path for path in box.path.rglob("*") if not path.is_dir())
    return {
        str(path)
        for path in paths
        if not any(folder in path.parents for folder in excluded_folders)
    }


def count_survivors() -> int:
    """Return how many descendants still run after at most REST_SECONDS.

    A process that has lost its parent is a child of this process. On a busy machine, orphans that
    exit by themselves need a moment.
    """
    deadline = time.monotonic() + REST_SECONDS
    while True:
        descendants.reap_orphans(set())
        here = read_usage(os.getpid())
        survivor_count = here.processes - here.zombies
        if not survivor_count or time.monotonic() >= deadline:
            return survivor_count
        time.sleep(POLL_SECONDS)


# Answers every message. Each time it creates an orphan that ends by itself,
# as a tool's shell does.
ORPHAN = "( ( : ) & )\n"


def run_messages(box: Box, turns: int) -> tuple[int, set[str]]:
    """Run one-shot turns, two in parallel. Return the processes and the files that are left."""
    temporary = box.path / "tmp"
    temporary.mkdir()
    answer = box.path / "answer"
    answer.write_text(ANSWER, encoding="utf-8")
    child = box.write_program("vendor", f"{ORPHAN}exec cat {answer}\n")
    before = list_leftover_files(box)
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child, "TMPDIR": str(temporary)}

    def run_message(_: int) -> int:
        done = box.run_claude(*ASK, **environment)
        return done.status or (len(done.stderr) > 0)

    with ThreadPoolExecutor(2) as pool:
        failed = sum(pool.map(run_message, range(turns)))
    assert not failed, f"{failed} turns failed"
    return count_survivors(), list_leftover_files(box) - before


def build_stand_in(box: Box, how: str, turns: int) -> dict[str, str]:
    """Create a vendor that answers this number of messages."""
    if how == "one way":
        answer = box.path / "answer"
        answer.write_text(
            format_ndjson(START | {"session": SESSION}, build_text_event("Hello."), END),
            encoding="utf-8",
        )
        return {
            "SHIM_VENDOR": "demo",
            "SHIM_BIN": box.write_program("vendor", f"{ORPHAN}exec cat {answer}\n"),
        }
    steps: list[list[Any]] = [["hear", "initialize"]] if how == "two way" else []
    for _ in range(turns):
        steps += [["hear", "go"], ["orphan"], ["out", format_ndjson(INIT, RESULT)]]
    return {
        "SHIM_VENDOR": "qwen" if how == "two way" else "claude",
        "SHIM_BIN": box.create_fake(*steps, ["hear", "never"]),
    }


def wait_for_results(running: Running, count: int) -> None:
    """Wait for this number of results. The output is discarded."""
    while count:
        output = running.read_on()
        count -= output.count(b'"type":"result"') + output.count(b'"type": "result"')


def run_conversation(box: Box, how: str, turns: int) -> tuple[Left, Left, int, set[str]]:
    """Run one conversation. Return what it holds after a tenth of its turns and after all, and the
    processes and files that it left behind.
    """
    temporary = box.path / "tmp"
    temporary.mkdir()
    environment = build_stand_in(box, how, turns) | {"TMPDIR": str(temporary)}
    before = list_leftover_files(box)
    with box.start_claude(
        *CONVERSE, stdin=subprocess.PIPE, environment=environment, reuse=False
    ) as running:
        early = read_usage(running.process.pid)
        for number in range(turns):
            running.send_lines(USER)
            wait_for_results(running, 1)
            if number == turns // 10:
                early = read_usage(running.process.pid)
        late = wait_until_idle(running.process.pid, early)
        assert running.end_input().status == 0
    return early, late, count_survivors(), list_leftover_files(box) - before


def measure_leaks(table: Table, turns: int) -> None:
    table.print_heading(f"left  after {turns} turns")
    with open_box() as box:
        started_at = time.monotonic()
        processes, new_files = run_messages(box, turns)
        seconds = time.monotonic() - started_at
        measured = f"{processes} processes, {len(new_files)} files; {seconds:.0f} s"
        table.print_row("one message a run", measured, "0, 0", not processes and not new_files)
    for how in CONVERSATION_DRIVERS:
        with open_box() as box:
            started_at = time.monotonic()
            early, late, after, new_files = run_conversation(box, how, turns)
            seconds = time.monotonic() - started_at
        grown = (late.kilobytes - early.kilobytes) / 1024
        measured = (
            f"{after} processes, {len(new_files)} files, descriptors {early.descriptors} -> {late.descriptors}, "
            f"zombies {late.zombies}, memory {late.kilobytes / 1024:.1f} MB ({grown:+.1f}); {seconds:.0f} s"
        )
        clean = (
            not after
            and not new_files
            and late.zombies <= ZOMBIES
            and late.descriptors <= early.descriptors
        )
        table.print_row(
            f"a conversation, {how}", measured, "0, 0, same", clean and grown <= MEMORY_MEGABYTES
        )


def main() -> int:
    """Measure the requested parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="gone,left", help="parts, as in --only left")
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table()
    spawn.become_subreaper()
    # they are ignored with nohup and in the background
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    parts = options.only.split(",")
    if "gone" in parts:
        measure_shutdown(table, options.rounds)
    if "left" in parts:
        measure_leaks(table, options.turns)
    return int(table.print_summary() != 0 or table.counts["short"] > 0)


if __name__ == "__main__":
    sys.exit(main())

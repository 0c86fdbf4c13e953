"""`shim show` of a folder and in a pager, and the progress that long commands print."""

import os
import pty
import sys
import threading
from pathlib import Path

import pytest
from box import start_shim
from cast_builder import build_case_recording
from fixture_cases import find_case
from recording_renderer import build_conversation_recording
from sweeps import loop_over_rows

from shim.story.terminal import progress as progress_module
from shim.story.terminal.pager import find_pager_command
from shim.story.terminal.progress import show_progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for age, (name, cast) in enumerate(
        [
            ("new", build_conversation_recording()),
            ("old", build_case_recording(find_case("pi/1.5.2-bash"))),
        ]
    ):
        (tmp_path / f"{name}.cast").write_bytes(cast)
        os.utime(tmp_path / f"{name}.cast", (1e9 - age, 1e9 - age))
    return tmp_path


def test_show_and_export_use_the_newest_recording_of_a_folder(shim, folder):
    assert shim("show", str(folder)) == shim("show", str(folder / "new.cast"))
    assert shim("export", str(folder), "--to", "ndjson") == shim(
        "export", str(folder / "new.cast"), "--to", "ndjson"
    )


def test_show_without_a_path_uses_the_record_folder(shim, folder, monkeypatch):
    assert "no recording was named" in shim("show")[2]
    monkeypatch.setenv("SHIM_RECORD", f"{folder}/")
    assert shim("show") == shim("show", str(folder / "new.cast"))


@pytest.mark.parametrize(
    "args",
    [("show",), ("cast", "list"), ("cast", "stats"), ("cast", "verify"), ("replay", "--check")],
)
def test_missing_folder_is_an_error(shim, local_box, args):
    status, output, complaint = shim(*args, str(local_box.path / "nowhere"))
    assert (status, output) == (1, b"")
    assert "nowhere" in complaint and ("does not exist" in complaint or "No such file" in complaint)


@loop_over_rows(
    ("pager_setting", "expected"),
    [
        ("", []),
        ("cat", []),
        ("no-such-program", []),
        ("'", []),
        (f"{sys.executable} -u", [sys.executable, "-u"]),
    ],
)
def test_pager_variable_selects_an_executable_program(pager_setting, expected):
    assert find_pager_command({"PAGER": pager_setting}) == expected


def on_a_terminal(args: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Run `shim ARGS` on a terminal. Return its exit status and its output."""
    main, other = pty.openpty()
    with start_shim(
        args, stdin=other, stdout=other, stderr=other, env={**os.environ, **variables}
    ) as process:
        os.close(other)
        output = b""
        try:
            while chunk := os.read(main, 65_536):
                output += chunk
        except OSError:  # the last program on the terminal has ended
            pass
    os.close(main)
    return process.returncode, output.decode()


PAGER = "import sys; said = sys.stdin.read(); print('PAGED', len(said.splitlines()) > 20, '\\x1b[' in said)"
LEAVES = "import sys; sys.stdin.buffer.read(1); print('LEFT')"


@pytest.mark.parametrize(("args", "paged"), [((), True), (("--no-pager",), False)])
def test_show_uses_the_pager_on_a_terminal(folder, args, paged):
    variables = {"PAGER": f'{sys.executable} -c "{PAGER}"', "TERM": "xterm-256color"}
    status, output = on_a_terminal(["show", str(folder), *args], variables)
    assert status == 0
    assert ("PAGED True True" in output) is paged


def test_closing_the_pager_early_is_not_an_error(tmp_path):
    (tmp_path / "long.cast").write_bytes(build_conversation_recording())
    variables = {"PAGER": f'{sys.executable} -c "{LEAVES}"', "TERM": "xterm-256color"}
    status, output = on_a_terminal(["show", "--full", "--raw", str(tmp_path)], variables)
    assert (status, "LEFT" in output, "Traceback" in output) == (0, True, False)


def test_long_command_prints_progress_on_a_terminal(monkeypatch):
    """Runs in this process, so that the work can last until the line is printed. With another
    process, its duration would be a guess.
    """
    start_event = threading.Event()

    class Terminal(progress_module.Console):  # type: ignore[misc]
        is_terminal = True

        def print(self, *args, **options):
            start_event.set()
            super().print(*args, **options)

    monkeypatch.setattr(progress_module, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "Console", Terminal)
    with show_progress("reading recordings", 3) as advance:
        advance()
        assert start_event.wait(30)


def test_progress_is_not_printed_to_a_pipe(shim, folder):
    assert shim("cast", "list", str(folder))[2] == ""

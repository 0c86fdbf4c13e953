"""`shim export`: the formats, the destinations, and the files after a failure."""

import importlib
import os
import pty
import stat
import subprocess
import sys

import pytest
from box import TIMEOUT_S, start_shim
from fake_secrets import BARE
from session_builder import build_full_session

from shim.story.export.command import FORMATS

SECRET = BARE["api-key"][0]


@pytest.fixture
def cast(box):
    """Write a recording into the working directory and return its name."""
    path = box.cwd / "run.cast"
    path.write_bytes(build_full_session().add_prompt(f"and {SECRET}").build_recording())
    return path.name


def test_export_modules_are_imported_lazily():
    for name, module in FORMATS.items():
        assert callable(importlib.import_module(module).write_recording_export), name
    heavy = {*FORMATS.values(), "jinja2", "markdown_it"}
    code = f"import sys, shim.commands.cli; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_html_export_without_jinja2_reports_the_missing_library(box, cast):
    code = "import sys; sys.modules['jinja2'] = None; from shim.__main__ import main; main()"
    command = [sys.executable, "-c", code, "export", cast, "--to", "html"]
    done = subprocess.run(
        command, cwd=box.cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 1 and "--to html needs jinja2, which is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("to", "prefix"), [("html", b"<!doctype html>"), ("markdown", b"# Make the list")]
)
def test_export_is_written_to_a_pipe(box, cast, to, prefix):
    done = box.run_shim("export", cast, "--to", to, "-o", "-")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(prefix)
    assert sorted(os.listdir(box.cwd)) == [cast]


def test_markdown_is_written_to_stdout_by_default(box, cast):
    assert box.run_shim("export", cast, "--to", "markdown").stdout.startswith(b"# Make the list")
    assert sorted(os.listdir(box.cwd)) == [cast]


@pytest.mark.parametrize("to", ["html", "asciicast"])
def test_pages_are_written_beside_their_recordings(box, cast, to):
    other = box.cwd / "folder" / "other.cast"
    other.parent.mkdir()
    other.write_bytes((box.cwd / cast).read_bytes())
    done = box.run_shim("export", cast, "folder", "--to", to)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.decode() == f"wrote run.{to}\nwrote folder/other.{to}\n"
    assert (box.cwd / f"run.{to}").read_bytes() == (other.parent / f"other.{to}").read_bytes()
    done = box.run_shim("export", cast, "--to", to)
    assert done.status == 1 and f"run.{to} already exists" in done.stderr
    assert box.run_shim("export", cast, "--to", to, "--force").status == 0


@pytest.mark.parametrize("args", [("--to", "markdown"), ("--to", "html", "-o", "x.html")])
def test_several_recordings_are_not_written_to_one_file(box, cast, args):
    done = box.run_shim("export", cast, cast, *args)
    assert done.status == 2 and "one by one" in done.stderr
    assert sorted(os.listdir(box.cwd)) == [cast]


@pytest.mark.parametrize("to", ["html", "markdown"])
def test_secrets_are_redacted_by_default(box, cast, to):
    to_stdout = ("export", cast, "--to", to, "-o", "-")
    assert SECRET.encode() not in box.run_shim(*to_stdout).stdout
    assert SECRET.encode() in box.run_shim(*to_stdout, "--redact", "none").stdout


def test_existing_output_file_is_replaced_only_with_force(box, cast):
    assert box.run_shim("export", cast, "--to", "markdown", "-o", "run.md").status == 0
    path = box.cwd / "run.md"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.write_text("mine")
    done = box.run_shim("export", cast, "--to", "markdown", "-o", "run.md")
    assert (done.status, path.read_text()) == (1, "mine")
    assert "run.md already exists" in done.stderr and "--force" in done.stderr
    assert box.run_shim("export", cast, "--to", "markdown", "-o", "run.md", "--force").status == 0
    assert path.read_text().startswith("# Make")
    assert sorted(os.listdir(box.cwd)) == ["run.cast", "run.md"]


def test_export_does_not_write_through_a_symlink(box, cast):
    (box.cwd / "run.md").symlink_to("elsewhere")
    assert box.run_shim("export", cast, "--to", "markdown", "-o", "run.md").status == 1
    assert not (box.cwd / "elsewhere").exists()
    assert box.run_shim("export", cast, "--to", "markdown", "-o", "run.md", "--force").status == 0
    assert not (box.cwd / "elsewhere").exists() and not (box.cwd / "run.md").is_symlink()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_failed_export_leaves_the_output_file_unchanged(box, force):
    (box.cwd / "no.cast").write_text("hello\n")
    if force:
        (box.cwd / "x.html").write_text("mine")
    done = box.run_shim("export", "no.cast", "--to", "html", "-o", "x.html", *force)
    assert done.status == 1
    assert "not a recording" in done.stderr
    assert sorted(os.listdir(box.cwd)) == ["no.cast", *(["x.html"] if force else [])]
    assert not force or (box.cwd / "x.html").read_text() == "mine"


def test_missing_output_folder_is_reported_with_its_path(box, cast):
    done = box.run_shim("export", cast, "--to", "html", "-o", "no/such/x.html")
    assert done.status == 1
    assert "no/such/x.html cannot be written: No such file" in done.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ("--to", "pdf"),
            "invalid value for --to: 'pdf' hint: the choices are html, markdown, ndjson",
        ),
        (("--to", "html", "--redact", "some"), "'some'"),
        ((), "--to"),
    ],
)
def test_usage_error_exits_with_status_2(box, cast, args, expected):
    done = box.run_shim("export", cast, *args)
    assert done.status == 2
    assert expected in " ".join(done.stderr.replace("│", " ").split())


def test_html_is_refused_on_a_terminal_and_markdown_is_printed(box, cast):
    for to, status in (("html", 2), ("markdown", 0)):
        primary, secondary = pty.openpty()
        args = ["export", cast, "--to", to, "-o", "-"]
        process = start_shim(
            args, stdout=secondary, stderr=subprocess.PIPE, cwd=box.cwd, env=box.build_environment()
        )
        os.close(secondary)
        output = b""
        try:
            while chunk := os.read(primary, 65536):
                output += chunk
        except OSError:  # the terminal was closed
            pass
        os.close(primary)
        _, complaint = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == status
        assert output.startswith(b"# Make" if to == "markdown" else b"")
        assert (b"a terminal cannot show" in complaint) is (to == "html")


def test_closed_output_pipe_exits_with_status_0(box, cast):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start_shim(
        ["export", cast, "--to", "html"], cwd=box.cwd, env=box.build_environment(), **pipes
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=TIMEOUT_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()

"""Implements `shim export`, which writes recordings in other formats."""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from shim.core.cast.format import CAST_SUFFIX
from shim.core.errors import FrontendError, SystemResourceError
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import format_single_line
from shim.recording.completion import complete_recording
from shim.recording.folders import find_newest_recording
from shim.state.files import replace_file, write_all, write_new_file
from shim.story.terminal.console import (
    BrokenPipeHandler,
    check_option_value,
    print_line,
)
from shim.story.terminal.progress import show_progress

# Each module defines `write_recording_export(path, write, *, redact)`.
# It is only imported if its format is selected.
FORMATS = {
    "html": "shim.story.export.html",
    "markdown": "shim.story.export.markdown",
    "ndjson": "shim.story.export.ndjson",
    "atif": "shim.story.export.atif",
    "otel": "shim.story.export.otel",
    "asciicast": "shim.story.export.asciicast",
}
# Formats that are written to a file by default, with the file suffix.
# Other formats are written to stdout.
FILE_SUFFIXES = {"html": ".html", "asciicast": ".asciicast"}
# Formats that may be written to a terminal, because they escape control characters.
# Other formats are for programs.
TERMINAL_FORMATS = frozenset(("markdown",))
REDACT_CHOICES = ("all", "none")


def export_recordings(
    casts: Annotated[
        list[str],
        typer.Argument(
            metavar="CAST",
            help="Recordings. A folder means its newest recording.",
            autocompletion=complete_recording,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help=f"The format: {', '.join(FORMATS)}.", autocompletion=lambda: list(FORMATS)
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; - is stdout. By default, html and asciicast write a file "
            "beside the recording, and the other formats write to stdout.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    redact: Annotated[
        str, typer.Option(help="all: redact secrets; none: write the recorded text.")
    ] = "all",
    content: Annotated[
        bool, typer.Option("--content", help="otel: include texts, arguments and results.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="otel: send the spans to this OTLP collector, instead of writing a file."
        ),
    ] = None,
) -> None:
    """Export recordings as HTML pages, terminal recordings, Markdown, events or traces.

    `--to html` writes a page that needs no network. `--to asciicast` writes a file that
    `asciinema play` plays.

    Example: shim export run.cast --to html
    """
    check_option_value(FORMATS, to, "--to")
    check_option_value(REDACT_CHOICES, redact, "--redact")
    if (content or endpoint is not None) and to != "otel":
        raise typer.BadParameter(
            "can only be used with --to otel", param_hint="--content and --endpoint"
        )
    if endpoint is not None:
        from shim.story.export.otel_send import send_recording_spans

        count = sum(
            send_recording_spans(cast, endpoint, redact=redact != "none", content=content)
            for cast in casts
        )
        sys.stderr.write(f"sent: {pluralize(count, 'span')}\n")
        return
    _check_output(casts, to, output)
    export = _load_exporter(to)
    if content:
        export = functools.partial(export, content=True)
    for cast in casts:
        _export_recording(export, find_newest_recording(cast), to, output, redact != "none", force)


def _check_output(casts: list[str], to: str, output: str | None) -> None:
    """Raise a usage error if the exports cannot be written to `output`."""
    writes_to_stdout = output == "-" or (output is None and to not in FILE_SUFFIXES)
    if len(casts) > 1 and (writes_to_stdout or output is not None):
        raise typer.BadParameter(
            "several recordings cannot be written to one file: export them one by one, or use "
            "--to html or --to asciicast without -o",
            param_hint="CAST",
        )
    if writes_to_stdout and to not in TERMINAL_FORMATS and sys.stdout.isatty():
        raise typer.BadParameter(
            f"a terminal cannot show {to}: write to a file with -o FILE, or to a pipe",
            param_hint="-o",
        )


def _export_recording(
    export: Callable[..., None],
    cast: str,
    to: str,
    output: str | None,
    redact: bool,
    force: bool,
) -> None:
    """Export one recording to a file or to stdout."""
    if output is None and to in FILE_SUFFIXES:
        path = cast.removesuffix(CAST_SUFFIX) + FILE_SUFFIXES[to]
    else:
        path = output or "-"
    with show_progress(f"exporting {format_single_line(os.path.basename(cast))}"):
        if path == "-":
            _export_to_stdout(export, cast, redact)
        else:
            _export_to_file(export, cast, redact, path, force)
    if output is None and path != "-":
        print_line(f"wrote {path}")


def _load_exporter(format_name: str) -> Callable[..., None]:
    try:
        export: Callable[..., None] = importlib.import_module(
            FORMATS[format_name]
        ).write_recording_export
    except ModuleNotFoundError as error:
        from shim.process.installation import build_install_hint

        raise SystemResourceError(
            f"--to {format_name} needs {error.name}, which is not installed",
            hint=build_install_hint(),
        ) from None
    return export


def _export_to_stdout(export: Callable[..., None], path: str, redact: bool) -> None:
    with BrokenPipeHandler():
        export(path, functools.partial(write_all, 1), redact=redact)


def _export_to_file(
    export: Callable[..., None], recording_path: str, redact: bool, path: str, force: bool
) -> None:
    """Write an export to a file. If the export fails, no new file is left and an old file is not
    changed.
    """

    def fill(file_descriptor: int) -> None:
        export(recording_path, functools.partial(write_all, file_descriptor), redact=redact)

    try:
        (replace_file if force else write_new_file)(
            path, fill, 0o666
        )  # other users may read an export
    except FileExistsError:
        raise FrontendError(
            f"{path} already exists", hint="choose another name, or --force to replace the file"
        ) from None
    except OSError as error:
        raise SystemResourceError(f"{path} cannot be written: {error.strerror}") from None

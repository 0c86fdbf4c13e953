"""`shim --help`: every command below a title, with its full sentence, which the completion of a
shell also shows.
"""

import re

import pytest
import typer

from shim.commands.cli import app
from shim.commands.help.command_groups import (
    COMMAND_GROUPS,
    OTHERS_TITLE,
    format_help_summary,
    group_command_names,
)
from shim.commands.help.plain_help import format_help_page

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_belongs_to_a_single_group():
    assert dict(group_command_names(COMMANDS))[OTHERS_TITLE] == [], "give it a title in GROUPS"
    assert len({name for names in COMMAND_GROUPS.values() for name in names}) == sum(
        map(len, COMMAND_GROUPS.values())
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("args", [("--help",), ("cast", "-h"), ("vendor", "-h")])
def test_help_truncates_no_sentence(shim, monkeypatch, args, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, stdout, complaint = shim(*args)
    assert (status, complaint) == (0, "")
    here = COMMANDS if len(args) == 1 else COMMANDS[args[0]].commands
    lines = " ".join(stdout.decode().split())
    for name, command in here.items():
        assert f"{name} {format_help_summary(command.help)}" in lines
        assert format_help_summary(command.help).endswith(".")
    assert "..." not in lines.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [("se", "sessions"), ("help perm", "permissions"), ("run --v", "--vendor")],
)
def test_shell_completes_commands_topics_and_options(shim, monkeypatch, command_line, expected):
    monkeypatch.setenv("_SHIM_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"shim {command_line}")
    assert f'"{expected}"' in shim()[1].decode()


def pages(command=None, command_path=()):
    """Yield the path of every command."""
    command = typer.main.get_command(app) if command is None else command
    yield command_path
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*command_path, name))


@pytest.mark.parametrize("command_path", list(pages()), ids=" ".join)
def test_help_page_formats_placeholders_in_upper_case(shim, command_path):
    help_text = shim(*command_path, "--help")[1].decode()
    assert not re.search(r"<(str|int|float|list)|\{[a-z]\w*\}|\[\[", help_text), help_text
    usage = help_text.split("\n\n")[0]
    assert re.search(r"[a-z]", usage.partition("[OPTIONS]")[2]) is None, usage


@pytest.mark.parametrize(
    ("row", "plain"),
    [
        ("  file <str>      A file.", "  FILE            A file."),
        ("  --wait <float range>  Seconds.", "  --wait NUMBER         Seconds."),
        ("  -v <list[str]>  Words.", "  -v TEXT         Words."),
        ("  --allow RULE  A rule.", "  --allow RULE  A rule."),
    ],
)
def test_format_help_preserves_column_alignment(row, plain):
    page = f"Usage: x {{file}} [names]...\n\n{row}"
    assert format_help_page(page) == f"Usage: x FILE [NAMES]...\n\n{plain}"

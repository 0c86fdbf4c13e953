"""`shim cast …`, in this process; what matters is what it prints, what it writes, and how it exits."""

import json
import os
from pathlib import Path

import pytest
from casting import cast_of
from support import ROOT

from shim.cast_command import app

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
INTACT = cast_of([(0.0, "i", b"hello\n")])


@pytest.fixture
def folder(inside) -> Path:
    """A folder with an intact cast, a damaged one and one that was cut off."""
    place = inside.path / "casts"
    place.mkdir()
    (place / "a.cast").write_bytes(INTACT)
    (place / "b.cast").write_bytes(INTACT.replace(b"hello", b"jello"))
    (place / "c.cast").write_bytes(INTACT[:-20])
    (place / "notes.txt").write_text("no cast", encoding="utf-8")
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(shim, command):
    status, said, _ = shim("cast", command, "--help")
    assert status == 0
    assert f"Example: shim cast {command}" in said.decode()


@pytest.mark.parametrize("words", [(), ("verify",), ("nonsense",), ("verify", "--nope")])
def test_a_wrong_call_is_exit_2_and_no_traceback(shim, words):
    status, said, complaint = shim("cast", *words)
    assert status == 2
    assert "Usage" in said.decode() + complaint and "Traceback" not in complaint


# -- verify -----------------------------------------------------------------------------------------------------


def test_an_intact_cast_is_called_so(shim, folder):
    path = str(folder / "a.cast")
    assert shim("cast", "verify", path) == (0, f"{path}: intact, 3 lines\n".encode(), "")


def test_all_the_casts_of_a_folder_are_looked_at(shim, folder):
    status, said, _ = shim("cast", "verify", str(folder))
    assert status == 1
    assert said.decode().splitlines() == [
        f"{folder}/a.cast: intact, 3 lines",
        f"{folder}/b.cast: damaged, 3 lines",
        "  lines 1 to 3: damage: the checkpoint of line 3 does not match; nothing behind it can be proved",
        f"{folder}/c.cast: cut off, 2 lines",
        "  lines 1 to 3: damage: cut off behind line 2: the last checkpoint is missing, "
        "and lines 1 to 2 are not proved",
    ]


def test_a_program_is_told_the_same(shim, folder):
    status, said, _ = shim("cast", "verify", "--json", str(folder), "/nowhere.cast")
    rows = json.loads(said)
    assert status == 1
    assert [row["state"] for row in rows] == ["intact", "damaged", "cut off", "unreadable"]
    assert rows[1]["findings"][0] | {"text": ""} == {
        "first": 1, "last": 3, "severity": "damage", "kind": "changed", "text": ""
    }  # fmt: skip
    assert [row["proved"] for row in rows] == [3, 0, 0, 0]


def test_what_is_only_odd_is_no_failure(shim, inside):
    path = inside.path / "odd.cast"
    path.write_bytes(cast_of([(0.0, "n", {}), (9e6, "n", {})]))
    status, said, _ = shim("cast", "verify", str(path))
    assert status == 0
    assert b"intact, 4 lines\n  line 3: note: a pause of 9000000" in said


def test_a_folder_without_casts_is_an_error(shim, inside):
    status, said, complaint = shim("cast", "verify", str(inside.path))
    assert (status, said) == (1, b"")
    assert "has no casts" in complaint


def test_a_pipe_in_a_folder_of_casts_does_not_hang_us(shim, folder):
    os.mkfifo(folder / "pipe.cast")
    assert b"pipe.cast" not in shim("cast", "verify", str(folder))[1]


# -- what a terminal obeys ----------------------------------------------------------------------------------------

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J[red]evil[/red]\u202e\x9b31m"


def test_what_is_verified_obeys_nothing(shim, inside):
    path = inside.path / "evil[bold]\x1b[31m.cast"
    lines = cast_of([], end=False) + f'[0.1,{json.dumps(HOSTILE)},""]\n{{{HOSTILE}\n{HOSTILE}\n'.encode()
    path.write_bytes(lines)
    status, said, _ = shim("cast", "verify", str(path))
    assert status == 1
    obeys_nothing(said.decode())
    assert "[red]evil[/red]" in said.decode() and "evil[bold]\\x1b[31m.cast" in said.decode()


def obeys_nothing(text: str) -> None:
    """Assert that a terminal shows every character of it."""
    assert "\n" in text and all(character.isprintable() or character == "\n" for character in text), ascii(text)


def test_nothing_for_people_is_imported_before_it_is_needed():
    text = (ROOT / "shim" / "cast_command.py").read_text(encoding="utf-8")
    head = text[: text.index("\napp = ")]
    assert "cast_files" not in head and "cast_verify" not in head

"""`make texts` finds all texts that a person may read."""

import pytest
import typer
from fixture_cases import ROOT
from texts import find_profile_texts, find_sentences, has_prose, list_commands

from shim.commands.cli import app


def test_every_cli_command_is_in_the_list_of_help_pages():
    command_lines = set(list_commands())
    assert {(), ("run",), ("cast", "list"), ("sessions", "delete")} <= command_lines
    assert {(name,) for name in typer.main.get_command(app).commands} <= command_lines  # type: ignore[attr-defined]


def test_sentences_of_a_module_are_listed_without_docstrings(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""A module that says things."""\n\n\ndef fail(path):\n    """It fails in a known way."""\n'
        '    raise OSError(f"{path!r} cannot be read: "\n'
        '                  "it is a folder", "bin", "a_name another_name")\n'
    )
    assert list(find_sentences(path)) == [(6, "{path} cannot be read: it is a folder")]


@pytest.mark.parametrize(
    ("text", "is_prose"),
    [
        ("pass recordings, or folders of recordings", True),
        ("--shim-vendor", False),
        ("a b", False),
        ("it is empty", True),
        ("{path!r} cannot be read ({error})", True),
        ("matches the end of a result: `\\n<exit \\d+>$`", True),
        ("{', '.join(f'{a}: {b}' for a, b in pairs)}", False),
        ("please (log|sign) ?in|api.?key (is |was )?missing", False),
        ("https://example.org/a b c", False),
        ("({value}.__class__ is str and {test})", False),
    ],
)
def test_prose_is_distinguished_from_flags_and_identifiers(text, is_prose):
    assert has_prose(text) is is_prose


def test_patterns_types_and_word_lists_are_not_listed(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        'import re\n\nPATTERN = re.compile("command failed with an error")\n'
        'NAMES = "each of these names".split()\nTEXT = "the command has failed"\n'
    )
    assert list(find_sentences(path)) == [(5, "the command has failed")]


def test_profile_hints_and_error_texts_are_collected():
    profile = {"login": [{"hint": "run it once and log in"}], "noise": ["Reading keys from stdin"]}
    assert list(find_profile_texts(profile)) == ["run it once and log in"]
    assert any(
        "does not exist" in text
        for _, text in find_sentences(ROOT / "shim" / "recording" / "folders.py")
    )

"""`make texts`: writes every help page and every sentence of the program to one file, for a reader.

The help pages are those that the commands print. The sentences come from the code: each string of a
few words that is not a docstring, with its expressions in braces. All errors, hints, notes and
findings that a person may see are such strings. Patterns, addresses and generated code are left
out, because only programs read them.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from shim.commands.cli import app

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "shim"
FILE = ROOT / "build" / "texts.txt"
MIN_WORD_COUNT = 3  # a shorter text is a name, a flag or a field
COLUMNS = 100
SECONDS = 60
SCRIPT_TEXT = re.compile(r"""(["'`])((?:(?!\1).)*?\w \w(?:(?!\1).)*?)\1""")
PROSE = re.compile(r"[A-Za-z][\w'’-]*(?:,|:|;)? ")
WORD = re.compile(r"[A-Za-z]+")
# An expression in braces, which may contain other braces.
EXPRESSION = re.compile(r"\$?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
QUOTATION = re.compile(r"`[^`]*`")  # what a sentence quotes may be a pattern
MAX_TEXT_CHARS = 1500  # a longer string is a table or a script
# What only programs read, outside of the expressions of a text.
MACHINE_TEXT = re.compile(
    r"\\[dswSWZz.*$|(]|\(\?|\[\^|\.[*{?]|\]\*|\?\||^\^|[a-z]\|[a-z]+ |-----"  # regular expressions
    r"|^\S+://|default-src|^Max-Age|^https?:"  # addresses and headers
    r"|\.__class__|\bis (?:not )?None\b|\bengine\.|\bconst \w+ =|=> |\bdef \w+\(|^(?:if|for) .*:$"  # code
    r"|^(?:list|dict|tuple|Mapping)\[|\$@|\bsys\.exit|\bexport \{"
    r"|_\w+\(|element\(|!==|\)\.\w+ = |^\) |^\}, |2>/dev/null|^, (?:\{|null)|^#\w+ "
    r"| \| --|\w_\w+ \w+_\w+ \w+_|\w- \w+- \w+-|_ \w+_ "  # tables and templates
)
# The keys of a profile whose texts a person reads.
PROFILE_KEYS = ("login", "unless", "const", "denyMessage")
CODE_FUNCTIONS = ("compile", "LazyPattern", "cast")  # their strings are patterns and types


def list_commands(command: Any = None, args: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of every command of `shim`, groups first."""
    command = typer.main.get_command(app) if command is None else command
    yield args
    for name, inner in getattr(command, "commands", {}).items():
        yield from list_commands(inner, (*args, name))


def collect_help_pages() -> Iterator[tuple[str, str]]:
    """Yield every help page with the command line that prints it."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    for args in [*list_commands(), ("claude",), ("yume-cli",)]:
        line = [sys.executable, "-m", "shim", *args, "--help"]
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        yield " ".join(("shim", *args, "--help")), done.stdout + done.stderr


def find_sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))  # a docstring, or a string without effect
        elif isinstance(node, ast.Call):
            parts.update(map(id, _list_code_strings(node)))
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts.append((node.lineno, _join_parts(node)))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            texts.append((node.lineno, node.value))
    yield from ((line, text) for line, text in sorted(texts) if has_prose(text))


def _list_code_strings(call: ast.Call) -> list[ast.AST]:
    """Return the strings of a call that are a pattern, a type, or a list of words to split."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name == "split" and isinstance(function, ast.Attribute):
        return [function.value]
    if name in CODE_FUNCTIONS:
        return [part for arg in call.args for part in ast.walk(arg)]
    return []


def _join_parts(node: ast.JoinedStr) -> str:
    return "".join(
        f"{{{ast.unparse(part.value)}}}"
        if isinstance(part, ast.FormattedValue)
        else str(getattr(part, "value", ""))
        for part in node.values
    )


def has_prose(text: str) -> bool:
    """Return whether a text has a few words in a row, and is written for a person."""
    fixed_text = EXPRESSION.sub("…", text)
    if len(text) > MAX_TEXT_CHARS or MACHINE_TEXT.search(QUOTATION.sub("…", fixed_text)):
        return False
    if len(WORD.findall(fixed_text)) < MIN_WORD_COUNT - 1:
        return False
    return len(text.split()) >= MIN_WORD_COUNT and len(PROSE.findall(text)) >= MIN_WORD_COUNT - 1


def find_profile_texts(value: Any, *, is_text: bool = False) -> Iterator[str]:
    """Yield the texts of a profile that a person reads."""
    if isinstance(value, str):
        yield from [value] if is_text and has_prose(value) else []
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_profile_texts(inner, is_text=is_text or key in PROFILE_KEYS)
    elif isinstance(value, list):
        for inner in value:
            yield from find_profile_texts(inner, is_text=is_text)


def collect_sentences() -> Iterator[tuple[str, str]]:
    """Yield every sentence with its file and line."""
    for path in sorted(SHIM.rglob("*.py")):
        yield from (
            (f"{path.relative_to(ROOT)}:{line}", text) for line, text in find_sentences(path)
        )
    for path in sorted(SHIM.rglob("*.toml")):
        with path.open("rb") as file:
            texts = dict.fromkeys(find_profile_texts(tomllib.load(file)))
        yield from ((str(path.relative_to(ROOT)), text) for text in texts)
    for path in sorted(SHIM.rglob("*.js")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.lstrip().startswith(("//", "/*", "*")):
                yield from (
                    (f"{path.relative_to(ROOT)}:{number}", match[2])
                    for match in SCRIPT_TEXT.finditer(line)
                    if not MACHINE_TEXT.search(EXPRESSION.sub("…", match[2]))
                )


def build_text() -> str:
    """Return the content of the file."""
    pages = [
        f"{'=' * COLUMNS}\n$ {line}\n\n{content.rstrip()}\n"
        for line, content in collect_help_pages()
    ]
    content = [
        f"{location}\n{textwrap.indent(sentence.strip(), '    ')}"
        for location, sentence in collect_sentences()
    ]
    return "\n".join(pages) + f"\n{'=' * COLUMNS}\nSentences in the code\n\n" + "\n\n".join(content)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=FILE, help="the file to write")
    path = parser.parse_args().to
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build_text(), encoding="utf-8")
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()

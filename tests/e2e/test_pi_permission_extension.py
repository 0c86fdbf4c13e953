"""pi's permission extension in a real Node: which files its tools may read and change if edits need
no permission.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from programs import find_node_folder

from shim.adapters.pi import PERMISSION_EXTENSION

pytestmark = pytest.mark.e2e

ASKS = """
const [gate, calls] = process.argv.slice(1);
let handler;
(await import(gate)).default({ on: (name, given) => { handler = given; } });
console.log(JSON.stringify(JSON.parse(calls).map(([toolName, input]) => !handler({ toolName, input })?.block)));
"""
SECONDS = 30.0


def evaluate_calls(work: Path, calls: list[tuple[str, object]]) -> list[bool]:
    config = json.dumps(
        {"folders": [".", "../more"], "names": [".git"], "paths": ["/.config/Shim/"]}
    )
    result = subprocess.run(
        [
            str(find_node_folder() / "node"),
            "--input-type=module",
            "-e",
            ASKS,
            PERMISSION_EXTENSION,
            json.dumps(calls),
        ],
        cwd=work,
        env={**os.environ, "PI_GATE": config},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
    )
    decisions: list[bool] = json.loads(result.stdout)
    return decisions


def test_file_tools_are_restricted_to_the_allowed_folders(tmp_path: Path) -> None:
    work, more, out = tmp_path / "work", tmp_path / "more", tmp_path / "workshop"
    for folder in (work / "sub", more, out, work / ".git"):
        folder.mkdir(parents=True)
    (work / "away").symlink_to(out)
    (work / "nothing").symlink_to(out / "new")
    (work / "near").symlink_to(work / "sub")
    inside = [
        str(work / "new"),
        "new",
        "sub/deep/new",
        "near/new",
        "sub/../new",
        "../more/new",
        str(more / "new"),
    ]
    outside = [
        str(out / "new"),
        "../workshop/new",
        "away/new",
        "nothing",
        "sub/../../new",
        "~/new",
        "@../new",
        "a\u00a0b",
    ]
    hidden = [".git/config", "sub/../.GIT/config", ".config/shim/config.toml"]
    for tool in ("write", "edit"):
        assert evaluate_calls(work, [(tool, {"path": path}) for path in inside]) == [True] * len(
            inside
        )
        denied = [*outside, *hidden, None, 7]
        assert evaluate_calls(work, [(tool, {"path": path}) for path in denied]) == [False] * len(
            denied
        )
    readable_paths = [str(work), "sub", "near", "../more", "sub/../.git"]
    assert evaluate_calls(work, [("read", {"path": path}) for path in readable_paths]) == [
        True
    ] * len(readable_paths)
    # pi looks for other spellings of a missing file name. One of them may be a link.
    other = ["l'autre", "At 9 AM.png", "\u00e9t\u00e9"]
    refused_paths = [*outside, "../workshop", "away", *other]
    assert evaluate_calls(work, [("read", {"path": path}) for path in refused_paths]) == [
        False
    ] * len(refused_paths)
    for name in other:
        (work / name).touch()
    assert (
        evaluate_calls(work, [("read", {"path": path}) for path in ("new", *other)]) == [True] * 4
    )
    assert evaluate_calls(
        work, [("grep", {}), ("ls", {"path": ".."}), ("bash", {"command": "x"})]
    ) == [
        True,
        False,
        True,
    ]

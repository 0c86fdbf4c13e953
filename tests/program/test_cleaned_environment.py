"""Frontends that pass on only HOME, PATH, ANTHROPIC_* and CLAUDE_*: the shim's variables have a
second name.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from box import ANSWER, ASK

from shim.process.environment import MAX_DEPTH


@pytest.fixture
def fake(box):
    return box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER])


def test_vendor_and_executable_can_be_set_with_the_claude_shim_prefix(box, fake):
    done = box.run_claude(*ASK, SHIM_VENDOR=None, CLAUDE_SHIM_VENDOR="demo", CLAUDE_SHIM_BIN=fake)
    assert (done.status, done.init["shim"]["vendor"]) == (0, "demo")


def test_shim_prefix_overrides_the_claude_shim_prefix(box, fake):
    done = box.run_claude(
        *ASK, SHIM_VENDOR="demo", SHIM_BIN=fake, CLAUDE_SHIM_VENDOR="pi", CLAUDE_SHIM_BIN="/nowhere"
    )
    assert (done.status, done.init["shim"]["vendor"]) == (0, "demo")


def test_child_environment_contains_only_shim_depth(box, fake):
    box.run_claude(*ASK, CLAUDE_SHIM_VENDOR="demo", CLAUDE_SHIM_BIN=fake, CLAUDE_SHIM_ANYTHING="x")
    assert [name for name in box.read_record()["environment"] if "SHIM_" in name] == ["SHIM_DEPTH"]


def test_recursion_limit_reads_the_claude_shim_prefix(box, fake):
    done = box.run_claude(
        *ASK, CLAUDE_SHIM_VENDOR="demo", CLAUDE_SHIM_BIN=fake, CLAUDE_SHIM_DEPTH=str(MAX_DEPTH)
    )
    assert done.status == 1 and "started itself" in done.stderr


def test_installed_wrapper_and_doctor_read_the_claude_shim_prefix(box, fake):
    assert box.run_shim("install", "--to", str(box.bin), "--vendor", "pi").status == 0
    environment = {"HOME": str(box.path / "home"), "PATH": os.defpath, "CLAUDE_SHIM_VENDOR": "demo"}
    environment["CLAUDE_SHIM_BIN"] = fake
    done = subprocess.run([Path(box.bin) / "claude", *ASK], env=environment, cwd=box.cwd, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=30, check=False)  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["shim"]["vendor"] == "demo"
    report = box.run_shim(
        "doctor", environment=box.build_environment(SHIM_VENDOR=None, CLAUDE_SHIM_VENDOR="nobody")
    )
    assert "nobody" in report.stdout.decode()


@pytest.mark.parametrize("chosen", [None, "own.toml"])
def test_missing_executable_error_names_the_config_file(box, chosen):
    path = box.config
    if chosen:
        path = box.path / chosen
        path.write_text("")
    done = box.run_claude(
        *ASK, SHIM_VENDOR="codex", SHIM_BIN=None, PATH="/nowhere", SHIM_CONFIG=chosen and str(path)
    )
    assert done.status == 1
    assert f"`bin` under [vendors.codex] in {path}" in done.stderr

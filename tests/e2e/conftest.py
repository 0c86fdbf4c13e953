"""A place for each test in which a real vendor program runs under the installed drop-in, against our own model."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from frontend import MARK, Frontend
from model_server import ModelServer
from programs import Program, install
from vendor_setups import VENDORS, Vendor

INSTALL_SECONDS = 60.0


@pytest.fixture(scope="session")
def programs() -> Callable[[str], Program]:
    """Installs a pinned package, once in this machine's cache."""
    return install


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    vendor: Vendor = request.param
    return vendor


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A small file in the working directory."""
    file = tmp_path / "work" / "hello.txt"
    file.parent.mkdir()
    file.write_text("hello world\nsecond line\n")
    return file


@pytest.fixture
def frontend(
    vendor: Vendor, programs: Callable[[str], Program], model: ModelServer, hello: Path, tmp_path: Path
) -> Iterator[Frontend]:
    """The drop-in, installed for the vendor into an empty home; nothing of this machine's settings reaches it."""
    program = programs(vendor.package)
    home, temporary, binaries = tmp_path / "home", tmp_path / "tmp", tmp_path / "bin"
    for folder in (home, temporary):
        folder.mkdir()
    environment = {
        "PATH": program.path,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "SHIM_BIN": str(program.executable),
        "SHIM_STATE": str(tmp_path / "state"),
        MARK: str(uuid.uuid4()),
        **vendor.prepare(home, model.url),
    }
    subprocess.run(
        [sys.executable, "-m", "shim", "install", "--vendor", vendor.name, "--to", str(binaries)],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        timeout=INSTALL_SECONDS,
        check=True,
    )
    frontend = Frontend(binaries / "claude", hello.parent, environment, vendor.arguments)
    assert os.access(frontend.claude, os.X_OK)
    yield frontend
    frontend.close()

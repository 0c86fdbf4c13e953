"""A wrong clock for single processes and all that they start. It is a C library that replaces the
functions of the system, so that OpenSSL checks certificates with the wrong clock, too.

The `libfaketime` of Debian 12 makes `time.sleep` of Python fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
BUILD_SECONDS = 60.0
SECONDS_PER_DAY = 86_400


def build_clock_environment(folder: Path, offset_s: int) -> dict[str, str]:
    """Build the library in a folder. Return the variables of a process whose clock is ahead by
    `offset_s`. Skip the test if there is no C compiler, or on another system than Linux.
    """
    compiler = shutil.which("cc")
    if sys.platform != "linux":
        pytest.skip("LD_PRELOAD needs Linux")
    if compiler is None:
        pytest.skip("no C compiler: `apt-get install gcc libc6-dev`")
    library = folder / "wrong_clock.so"
    if not library.exists():
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)],
            check=True,
            timeout=BUILD_SECONDS,
        )
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET_S": str(offset_s)}

"""The package as pip builds it: its contents, and an installation from a checkout without
`make`.
"""

import os
import subprocess
import sys
import zipfile

from fixture_cases import ROOT

BUILD_SECONDS = 300.0  # pip downloads the build tool first


def test_wheel_contains_the_manual_and_prints_a_topic(tmp_path):
    wheels, folder = tmp_path / "wheels", tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", wheels, ROOT], check=True, timeout=BUILD_SECONDS
    )
    (wheel,) = wheels.iterdir()
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "shim" / "manual").iterdir()}
    assert ours <= packed and "shim/manual/demo.svg" in packed
    assert "shim/py.typed" in packed
    assert any(name.endswith(".dist-info/licenses/shim/LICENSE") for name in packed)
    assert not any(name.startswith(("tests/", "fixtures/")) for name in packed)

    subprocess.run(
        [*pip, "install", "--no-deps", "--target", folder, wheel], check=True, timeout=BUILD_SECONDS
    )
    result = subprocess.run(
        [sys.executable, "-P", "-m", "shim", "help", "yume"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=BUILD_SECONDS,
    )
    assert result.stdout == (ROOT / "shim" / "manual" / "yume.md").read_bytes()

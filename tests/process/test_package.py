"""The changes to the files of the package since the process started."""

import errno
import os

import pytest

import shim
from shim.core.errors import SystemResourceError
from shim.process import package


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Create a package folder with only the version file."""
    path = tmp_path / "shim" / "__init__.py"
    path.parent.mkdir()
    path.write_text(f'"""A text."""\n\n__version__ = "{shim.__version__}"\n', encoding="utf-8")
    monkeypatch.setattr(package, "PACKAGE_DIR", str(path.parent))
    monkeypatch.setattr(package, "VERSION_FILE", str(path))
    return path


def test_unchanged_files_are_not_reported(copy):
    assert package.describe_shim_package_change() == ""
    package.require_package_files_for_child(["python", "-m", "shim.bridge.host"])


@pytest.mark.parametrize(
    ("text", "version"), [('__version__ = "9.9"\n', "9.9"), ("", "another version")]
)
def test_replaced_package_is_reported_with_its_version(copy, text, version):
    copy.write_text(text, encoding="utf-8")
    change = package.describe_shim_package_change()
    assert f"replaced by {version}" in change and shim.__version__ in change
    package.require_package_files_for_child(["python", "-m", "shim.bridge.host"])


def test_removed_package_refuses_commands_that_need_its_files(copy):
    copy.unlink()
    assert "was moved or removed" in package.describe_shim_package_change()
    package.require_package_files_for_child(["/usr/bin/vendor", "--model", "m"], ["/home"])
    for command, environment in (
        (["python", "-m", "shim.bridge.host"], []),
        (["pi", "-e", f"{copy.parent}/adapters/pi_gate.js"], []),
        (["codex", "-c", "hooks={command=\"python -I '-m' 'shim.conversation.tool_hook' …\"}"], []),
        (["qwen"], [f"{copy.parent}/adapters/settings.json"]),
    ):
        with pytest.raises(SystemResourceError, match="needs the files of claude-shim"):
            package.require_package_files_for_child(command, environment)


def test_package_is_not_reported_removed_without_free_descriptors(copy, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("builtins.open", refuse)
    assert package.describe_shim_package_change() == ""

"""The command that reinstalls this copy fits the way in which it was installed."""

import json
import shlex
import sys

import pytest

from shim.process import installation
from shim.process.installation import build_install_hint

CHECKOUT = "file:///src/claude%20shim"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that makes this process look like an installed copy."""
    site = tmp_path / "site-packages"
    (site / "shim").mkdir(parents=True)
    checkout = tmp_path / "src"
    (checkout / "shim").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.syspath_prepend(str(site))

    def install(installer="pip", direct_url=None, tool_file="", editable=False):
        metadata = site / "claude_shim-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: claude-shim\nVersion: 0.1.0\n")
        (metadata / "INSTALLER").write_text(f"{installer}\n")
        if direct_url == "checkout":
            direct_url = {"url": checkout.as_uri(), "dir_info": {"editable": editable}}
        if direct_url is not None:
            (metadata / "direct_url.json").write_text(json.dumps(direct_url))
        if tool_file:
            (tmp_path / tool_file).touch()
        package = (checkout if editable else site) / "shim"
        monkeypatch.setattr(installation, "PACKAGE_DIR", str(package))
        return str(checkout)

    return install


def parse_command(hint):
    assert hint.startswith("run `") and hint.endswith("`")
    return shlex.split(hint[5:-1])


def test_pipx_copy_gets_a_pipx_command(installed):
    source = installed(direct_url="checkout", tool_file="pipx_metadata.json")
    assert parse_command(build_install_hint()) == ["pipx", "install", "--force", source]
    assert parse_command(build_install_hint("otel"))[-1] == f"{source}[otel]"


def test_uv_tool_copy_gets_a_uv_tool_command(installed):
    source = installed("uv", direct_url="checkout", tool_file="uv-receipt.toml")
    command = ["uv", "tool", "install", "--reinstall", source]
    assert parse_command(build_install_hint()) == command


@pytest.mark.parametrize(
    "installer, command",
    [
        ("pip", ["/env/bin/python", "-m", "pip", "install"]),
        ("uv", ["uv", "pip", "install", "--python", "/env/bin/python"]),
    ],
)
@pytest.mark.parametrize("editable", [False, True])
def test_hint_reinstalls_a_copy_with_its_own_installer(installed, installer, command, editable):
    source = installed(installer, direct_url="checkout", editable=editable)
    flags = ["--editable"] if editable else []
    assert parse_command(build_install_hint("otel")) == [*command, *flags, f"{source}[otel]"]


def test_copy_from_a_package_index_is_installed_by_name(installed):
    installed()
    assert parse_command(build_install_hint("otel"))[-1] == "claude-shim[otel]"


@pytest.mark.parametrize("url", ["https://host/repo.git", "file:///src/repo"])
def test_copy_from_git_is_installed_from_the_same_revision(installed, url):
    vcs = {"vcs": "git", "commit_id": "0" * 40, "requested_revision": "v1"}
    installed(direct_url={"url": url, "vcs_info": vcs})
    requirement = f"git+{url}@v1"
    assert parse_command(build_install_hint())[-1] == requirement
    assert parse_command(build_install_hint("otel"))[-1] == f"claude-shim[otel] @ {requirement}"


def test_missing_source_gives_a_hint_without_a_command(installed):
    installed(direct_url={"url": CHECKOUT, "dir_info": {}})
    assert build_install_hint() == "install claude-shim again, using pip"
    assert build_install_hint("otel") == (
        "install claude-shim again with its extra `otel`, using pip"
    )


def test_damaged_metadata_gives_a_hint_without_a_command(installed):
    installed(direct_url={})
    assert build_install_hint() == "install claude-shim again, using pip"


def test_other_installers_are_named(installed):
    installed("conda")
    assert build_install_hint() == "install claude-shim again, using conda"


def test_metadata_of_another_copy_is_ignored(installed, tmp_path, monkeypatch):
    """A source tree on the module path, in an environment with an installed copy."""
    source = installed(direct_url="checkout")
    monkeypatch.setattr(installation, "PACKAGE_DIR", f"{source}/shim")
    command = ["/env/bin/python", "-m", "pip", "install", "--editable", source]
    assert parse_command(build_install_hint()) == command

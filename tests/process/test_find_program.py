"""The search for a vendor's program, which must not find a program in a hostile repository."""

import pytest

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError, UnsupportedPermissionModeError, VendorError
from shim.process.find_program import (
    MAX_SETTINGS_BYTES,
    check_project_autostart_programs,
    explain_possible_policy_bypass,
    find_program,
    find_programs_on_path,
    list_program_candidates,
    list_search_dirs,
)
from shim.process.install import build_drop_in_script
from shim.state.config import VendorSettings


def find_vendor_program(box, name="qwen", cwd=None, settings=None, **environment):
    return find_program(
        get_adapter(name),
        settings or VendorSettings(),
        box.build_environment(**environment),
        str(cwd or box.cwd),
    )


def test_first_program_on_path_is_selected(box):
    first, second = box.path / "first", box.path / "second"
    expected = box.write_program("qwen", "", folder=first)
    box.write_program("qwen", "", folder=second)
    assert find_vendor_program(box, PATH=f"/nowhere:{first}:{second}") == expected


def test_program_name_listed_first_is_preferred(box):
    agent = box.write_program("agent", "")
    assert find_vendor_program(box, "cursor") == agent
    assert find_vendor_program(box, "cursor") != box.write_program("cursor-agent", "")
    assert find_vendor_program(box, "cursor").endswith("/cursor-agent")


def test_file_that_is_not_executable_is_skipped(box):
    (box.bin / "qwen").write_text("data", encoding="utf-8")
    expected = box.write_program("qwen", "", folder=box.path / "later")
    assert find_vendor_program(box, PATH=f"{box.bin}:{box.path}/later") == expected


def test_missing_program_is_reported_with_a_hint(box):
    with pytest.raises(
        VendorError, match="no program called cursor-agent or agent was found on PATH"
    ) as missing:
        find_vendor_program(box, "cursor", PATH=str(box.bin))
    assert "`bin` under [vendors.cursor]" in missing.value.hint


@pytest.mark.parametrize("by_setting", [True, False])
@pytest.mark.parametrize("kind", ["absolute", "home", "bare"])
def test_program_can_be_set_by_bin_setting_or_shim_bin(box, by_setting, kind):
    path = box.write_program("my-qwen", "", folder=box.home if kind == "home" else box.bin)
    program = {"absolute": path, "home": "~/my-qwen", "bare": "my-qwen"}[kind]
    if by_setting:
        assert find_vendor_program(box, settings=VendorSettings(bin=program)) == path
    else:
        assert (
            find_vendor_program(box, SHIM_BIN=program, settings=VendorSettings(bin="/nowhere"))
            == path
        )


@pytest.mark.parametrize("program", ["./qwen", "bin/qwen", "../qwen"])
def test_relative_program_path_is_rejected(box, program):
    with pytest.raises(FrontendError, match="is a relative path"):
        find_vendor_program(box, SHIM_BIN=program)


@pytest.mark.parametrize("program", ["/nowhere/qwen", "~/nowhere", "no-such-program"])
def test_missing_configured_program_raises_vendor_error(box, program):
    with pytest.raises(VendorError, match="was not found"):
        find_vendor_program(box, SHIM_BIN=program)


def test_bare_name_is_not_searched_in_the_working_directory(box):
    box.write_program("qwen", "", folder=box.cwd)
    with pytest.raises(VendorError):
        find_vendor_program(box, SHIM_BIN="qwen", PATH=f"{box.cwd}:.:")


def test_program_below_home_is_accepted_if_home_is_the_working_directory(box):
    expected = box.write_program("qwen", "", folder=box.home / ".local" / "bin")
    path = f"{box.home}/.local/bin"
    assert find_vendor_program(box, cwd=box.home, PATH=path) == expected
    assert find_vendor_program(box, cwd=box.path, PATH=path) == expected
    with pytest.raises(VendorError):
        find_vendor_program(box, cwd=box.home / ".local", PATH=path)


def test_only_absolute_path_entries_outside_the_working_directory_are_searched(box):
    symlink = box.path / "link"
    symlink.symlink_to(box.cwd)
    path = f"/usr/bin::.:bin:{box.cwd}:{box.cwd}/sub:{symlink}:{box.cwd}-other"
    assert list_search_dirs(box.build_environment(PATH=path), str(box.cwd)) == [
        "/usr/bin",
        f"{box.cwd}-other",
    ]


def test_dropin_on_path_is_skipped_in_favor_of_the_claude_that_was_replaced(box):
    (box.bin / "claude").write_bytes(build_drop_in_script({}))
    (box.bin / "claude").chmod(0o755)
    later = box.write_program("claude", "", folder=box.path / "later")
    path = f"{box.bin}:{box.path}/later"
    assert list(
        list_program_candidates("claude", box.build_environment(PATH=path), str(box.cwd))
    ) == [later]
    before = box.write_program("claude.before-shim", "")
    assert list(
        list_program_candidates("claude", box.build_environment(PATH=path), str(box.cwd))
    ) == [
        before,
        later,
    ]


def test_programs_on_path_are_listed_by_vendor(box):
    qwen, agent = box.write_program("qwen", ""), box.write_program("agent", "")
    vendors = {name: get_adapter(name) for name in ("cursor", "demo", "pi", "qwen")}
    programs = find_programs_on_path(
        vendors, box.build_environment(PATH=str(box.bin)), str(box.cwd)
    )
    assert programs == {"cursor": agent, "qwen": qwen}


@pytest.mark.parametrize(
    "settings",
    [
        '{"tools": {"discoveryCommand": "x"}}',
        r'{"tools": {"discovery\u0043ommand": "x"}}',
        " " * MAX_SETTINGS_BYTES + "{}",
    ],
)
@pytest.mark.parametrize("index", [0, 1], ids=["the project", "home"])
def test_gemini_settings_that_may_bypass_rules_are_reported_by_path(tmp_path, settings, index):
    folders = [tmp_path / "work", tmp_path / "home"]
    path = folders[index] / ".gemini" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(settings)
    assert explain_possible_policy_bypass(
        get_adapter("gemini"), (), [str(folder) for folder in folders]
    ).startswith(str(path))


def test_harmless_settings_and_other_vendors_are_not_reported(tmp_path):
    path = tmp_path / ".gemini" / "settings.json"
    assert explain_possible_policy_bypass(get_adapter("gemini"), (), [str(tmp_path), ""]) == ""
    path.parent.mkdir(parents=True)
    path.write_text('{"tools": {"allowed": ["x"]}}')
    assert explain_possible_policy_bypass(get_adapter("gemini"), (), [str(tmp_path)]) == ""
    path.write_text('{"tools": {"discoveryCommand": "x"}}')
    assert explain_possible_policy_bypass(get_adapter("qwen"), (), [str(tmp_path)]) == ""


@pytest.fixture
def repository(tmp_path):
    """Create a repository below another folder. Return a folder of the repository."""
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    folder = tmp_path / "repository" / "sub"
    folder.mkdir()
    return folder


def refusal(vendor, folder, *, environment=None, trust=False, knows=True):
    """Return the reason why a vendor is not started in a folder, or ""."""
    request = LaunchRequest(
        parse_argv([]), "", opens_trust_prompt=trust, has_flag=lambda flag: knows
    )
    try:
        check_project_autostart_programs(
            get_adapter(vendor), request, {"HOME": "/nowhere", **(environment or {})}, str(folder)
        )
    except UnsupportedPermissionModeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", [".opencode/plugin/x.ts", ".opencode/tools/y.js"])
def test_vendor_is_refused_if_the_repository_contains_plugin_folders(repository, name):
    for folder in (repository, repository.parent):
        path = folder / name
        path.parent.mkdir(parents=True)
        assert str(path.parent) in refusal("opencode", repository)
        path.parent.rmdir()
    (repository.parent.parent / name).parent.mkdir(parents=True)
    assert refusal("opencode", repository) == ""


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{"model": "m"}', False),
        ('{"mcp": {}}', True),
        ('{"\\u006dcp": {}}', True),
        ('// x\n{"plugin": [', True),
    ],
)
def test_project_config_is_refused_only_if_programs_may_be_configured(repository, text, refused):
    (repository / "opencode.json").write_text(text)
    assert bool(refusal("opencode", repository)) is refused


def test_trusted_and_user_plugin_folders_do_not_refuse_the_vendor(repository):
    (repository / ".opencode" / "plugin").mkdir(parents=True)
    assert refusal("opencode", repository)
    assert refusal("opencode", repository, trust=True) == ""
    assert refusal("opencode", repository, environment={"HOME": str(repository)}) == ""
    assert refusal("qwen", repository) == ""


def test_pi_is_refused_only_if_its_version_has_no_trust_prompt(repository):
    (repository / ".pi" / "extensions").mkdir(parents=True)
    assert refusal("pi", repository) == ""
    assert ".pi/extensions" in refusal("pi", repository, knows=False)

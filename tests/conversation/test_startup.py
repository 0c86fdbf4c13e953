"""Decisions before a turn starts: the vendor, the permitted values, the terminator."""

import sys

import pytest

from shim.adapters import VENDORS
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.drivers.open_translation import choose_result_terminator_line
from shim.conversation.startup import prepare_conversation, validate_invocation
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.io.mcp import configs
from shim.state import store

U = "11111111-2222-4333-8444-555555555555"
STREAM = ("--output-format", "stream-json", "--verbose")


def resolve_vendor(*args, installed=()):
    """The vendor and the model of an invocation."""
    start = prepare_conversation(parse_argv(args), dict(installed))
    return start.adapter.name, start.invocation.model


# -- the vendor: the first source that names one ---------------------------------------------------

# Each source names itself. They are removed one by one from the top.
SAYINGS = ("flag", "session", "model", "environment", "installed", "settings")
NAMES = dict(zip(SAYINGS, ("pi", "cursor", "qwen", "acai", "cake", "demo"), strict=True))


@pytest.mark.parametrize("first", SAYINGS)
def test_vendor_is_chosen_by_the_source_with_the_highest_precedence(local_box, monkeypatch, first):
    speaking = SAYINGS[SAYINGS.index(first) :]
    args = []
    if "flag" in speaking:
        args += ["--shim-vendor", NAMES["flag"]]
    if "session" in speaking:
        store.store_session(
            U, store.StoredSession(NAMES["session"], "vendors-own"), local_box.build_environment()
        )
        args += ["--resume", U]
    if "model" in speaking:
        args += ["--model", f"{NAMES['model']}:m1"]
    if "environment" in speaking:
        monkeypatch.setenv("SHIM_VENDOR", NAMES["environment"])
    local_box.write_settings(f'vendor = "{NAMES["settings"]}"\n')
    installed = {"vendor": NAMES["installed"]} if "installed" in speaking else {}
    assert resolve_vendor(*args, installed=installed)[0] == NAMES[first]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("qwen:m1", ("qwen", "m1")),
        ("qwen:", ("qwen", None)),
        ("qwen:32b:q4", ("qwen", "32b:q4")),
        (":qwen:32b", ("demo", "qwen:32b")),
        (":x:y", ("demo", "x:y")),
        ("x:y", ("demo", "x:y")),
        ("Qwen:m1", ("demo", "Qwen:m1")),
        ("opus", ("demo", "opus")),
        (None, ("demo", None)),
    ],
)
def test_model_prefix_before_a_colon_selects_the_vendor(local_box, monkeypatch, model, expected):
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    assert resolve_vendor(*(["--model", model] if model else [])) == expected


def test_first_installed_vendor_of_a_list_is_chosen(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["qwen", "pi", "cursor"]\n')
    local_box.write_program("cursor-agent", "exit 0\n")
    assert resolve_vendor() == ("cursor", None)
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor() == ("pi", None)
    local_box.write_program("qwen", "exit 0\n")
    assert resolve_vendor() == ("qwen", None)


def test_environment_variable_accepts_a_vendor_list(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    monkeypatch.setenv("SHIM_VENDOR", "qwen, pi")
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor() == ("pi", None)


def test_installed_default_accepts_a_vendor_list(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor(installed={"vendor": "qwen,pi"}) == ("pi", None)


def test_shim_vendor_flag_accepts_only_a_single_vendor(local_box):
    with pytest.raises(FrontendError, match="unknown vendor"):
        resolve_vendor("--shim-vendor", "qwen,pi")


def test_vendor_list_with_more_than_8_entries_is_rejected(local_box):
    local_box.write_settings(f"vendor = {list(VENDORS)[:9]}")
    with pytest.raises(FrontendError, match="the list has 9 vendors; at most 8 are allowed"):
        resolve_vendor()


def test_unknown_vendor_in_a_list_is_rejected(local_box):
    local_box.write_settings('vendor = ["demo", "nobody"]')
    with pytest.raises(FrontendError, match='vendor is "nobody"; it must be one of'):
        resolve_vendor()


def test_duplicate_vendor_in_a_list_is_accepted(local_box):
    local_box.write_settings('vendor = ["demo", "demo"]')
    assert resolve_vendor(*STREAM) == ("demo", None)


def test_model_applies_only_to_the_first_vendor_of_a_list(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["qwen", "demo"]')
    assert resolve_vendor("--model", "m1") == ("demo", None)
    local_box.write_program("qwen", "exit 0\n")
    assert resolve_vendor("--model", "m1") == ("qwen", "m1")


def test_model_with_a_prefix_of_another_vendor_is_ignored_with_a_warning(local_box, capfd):
    store.store_session(
        U, store.StoredSession("demo", "vendors-own"), local_box.build_environment()
    )
    assert resolve_vendor("--resume", U, "--model", "qwen:m1") == ("demo", None)
    assert resolve_vendor("--shim-vendor", "demo", "--model", "qwen:m1") == ("demo", None)
    assert resolve_vendor("--shim-vendor", "demo", "--model", "demo:m1") == ("demo", "m1")
    assert capfd.readouterr().err == "the model m1 belongs to qwen and is not passed to demo\n" * 2


def test_model_prefix_takes_precedence_over_a_vendor_list(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["pi", "demo"]')
    assert resolve_vendor("--model", "qwen:m1") == ("qwen", "m1")


def test_empty_environment_variable_is_ignored(local_box, monkeypatch):
    monkeypatch.setenv("SHIM_VENDOR", "")
    local_box.write_settings('vendor = "qwen"\n')
    assert resolve_vendor() == ("qwen", None)


@pytest.mark.parametrize(
    "name", ["nobody", "../qwen", "/bin/sh", "--version", "Qwen", "q" * 33, "qwen\n", "a b"]
)
def test_unknown_vendor_name_is_rejected(local_box, name):
    with pytest.raises(FrontendError, match="unknown vendor"):
        resolve_vendor(f"--shim-vendor={name}")


def test_hint_lists_installed_vendors_if_no_vendor_is_chosen(local_box, monkeypatch):
    qwen = local_box.write_program("qwen", "exit 0\n")
    monkeypatch.setenv("PATH", str(local_box.bin))
    with pytest.raises(FrontendError, match="no vendor is set") as refused:
        resolve_vendor()
    assert f"qwen ({qwen})" in refused.value.hint
    assert "SHIM_VENDOR" in refused.value.hint and str(local_box.config) in refused.value.hint


def test_hint_reports_that_path_contains_no_supported_vendor(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    with pytest.raises(FrontendError) as refused:
        resolve_vendor()
    assert "found on PATH: none" in refused.value.hint


# -- values that become arguments ------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["gpt-5.1", "anthropic/claude-opus-5", "qwen3:32b", "m[1m]", "Sonnet 4.5", "a@b+c"]
)
def test_valid_model_names_are_accepted(model):
    assert validate_invocation(parse_argv(["--model", model])).model == model


@pytest.mark.parametrize(
    "model", ["--yolo", "-m", "@file", "a\nb", "a;b", "$(id)", "../x" * 60, "\u202eevil", "/etc"]
)
def test_model_name_that_could_be_a_flag_or_a_path_is_rejected(model):
    with pytest.raises(FrontendError, match="the model name"):
        validate_invocation(parse_argv([f"--model={model}"]))


@pytest.mark.parametrize("resume", [U, "session-1", "a.b:c_d"])
def test_valid_session_ids_are_accepted(resume):
    assert validate_invocation(parse_argv([f"--resume={resume}"])).resume == resume


@pytest.mark.parametrize(
    "resume", ["--yolo", "../x", "/etc/passwd", "@file", "a b", "a" * 129, "a\n", "\u00e9"]
)
def test_session_id_that_could_be_a_flag_or_a_path_is_rejected(resume):
    with pytest.raises(FrontendError, match="neither a UUID nor a vendor's session id"):
        validate_invocation(parse_argv([f"--resume={resume}"]))


def test_resume_without_a_session_id_is_rejected():
    with pytest.raises(FrontendError, match="needs a session id"):
        validate_invocation(parse_argv(["--resume"]))


def test_directory_that_could_be_a_flag_is_rejected():
    with pytest.raises(FrontendError, match="is not a directory"):
        validate_invocation(parse_argv(["--add-dir=--yolo"]))
    assert validate_invocation(parse_argv(["--add-dir", "/a", "b"])).add_dirs == ("/a", "b")


# -- the terminator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "entrypoint", "setting", "expected"),
    [
        (("-p", *STREAM), None, "auto", "message_stop"),
        (("-p", *STREAM), "cli", "auto", "message_stop"),
        (("-p", *STREAM), "sdk-py", "auto", "none"),
        (("-p", *STREAM), "sdk-ts", "auto", "none"),
        (STREAM, None, "auto", "none"),
        (("-p", "--input-format", "stream-json", *STREAM), None, "auto", "none"),
        (("-p", *STREAM), "sdk-py", "message_stop", "message_stop"),
        (STREAM, None, "dollar", "dollar"),
        (("-p", *STREAM), None, "none", "none"),
        (("-p", "--output-format", "json"), None, "message_stop", "none"),
        (("-p",), None, "dollar", "none"),
    ],
)
def test_terminator_depends_on_flags_entrypoint_and_setting(
    monkeypatch, args, entrypoint, setting, expected
):
    monkeypatch.delenv("CLAUDE_CODE_ENTRYPOINT", raising=False)
    if entrypoint:
        monkeypatch.setenv("CLAUDE_CODE_ENTRYPOINT", entrypoint)
    assert choose_result_terminator_line(parse_argv(args), setting) == expected


# -- the MCP servers of the command line -----------------------------------------------------------


@pytest.mark.parametrize(("vendor", "times"), [("demo", 1), ("claude", 0)])
def test_mcp_configs_are_loaded_once_except_for_the_claude_vendor(
    local_box, monkeypatch, vendor, times
):
    read = []
    monkeypatch.setattr(configs, "load_mcp_configs", lambda args, cwd: read.append(args) or {})
    monkeypatch.setenv("SHIM_BIN", sys.executable)
    args = ("--shim-vendor", vendor, "-p", "hi", "--mcp-config", "servers.json")
    prepare_conversation(
        parse_argv(args), {}, launcher_class=DryRunLauncher
    ).plan_first_child_launch()
    assert read == [("servers.json",)] * times

"""What is decided before a turn begins: the vendor, the values that may pass, the terminator."""

import sys

import pytest

from shim.adapters import VENDORS
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.invocation import choose_terminator, validate_invocation
from shim.conversation.startup import ConversationStartup
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.io.mcp import configs
from shim.state import store

U = "11111111-2222-4333-8444-555555555555"
STREAM = ("--output-format", "stream-json", "--verbose")


def resolve_vendor(*args, installed=()):
    """The vendor and the model of an invocation."""
    start = ConversationStartup(parse_argv(args), dict(installed))
    return start.adapter.name, start.invocation.model


# -- the vendor: first that says (surface page) ----------------------------------------------------

# Each says its own name; from the top one is left out after the other.
SAYINGS = ("flag", "session", "model", "environment", "installed", "settings")
NAMES = dict(zip(SAYINGS, ("pi", "cursor", "qwen", "acai", "cake", "demo"), strict=True))


@pytest.mark.parametrize("first", SAYINGS)
def test_the_vendor_is_named_by_the_first_that_says(local_box, monkeypatch, first):
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
def test_a_model_may_name_the_vendor_before_a_colon(local_box, monkeypatch, model, expected):
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    assert resolve_vendor(*(["--model", model] if model else [])) == expected


def test_of_a_list_of_vendors_the_first_that_is_there_is_taken(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["qwen", "pi", "cursor"]\n')
    local_box.write_program("cursor-agent", "exit 0\n")
    assert resolve_vendor() == ("cursor", None)
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor() == ("pi", None)
    local_box.write_program("qwen", "exit 0\n")
    assert resolve_vendor() == ("qwen", None)


def test_a_list_may_also_be_said_in_the_environment(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    monkeypatch.setenv("SHIM_VENDOR", "qwen, pi")
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor() == ("pi", None)


def test_a_list_may_also_be_said_at_the_installation(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_program("pi", "exit 0\n")
    assert resolve_vendor(installed={"vendor": "qwen,pi"}) == ("pi", None)


def test_a_flag_names_one_vendor(local_box):
    with pytest.raises(FrontendError, match="unknown vendor"):
        resolve_vendor("--shim-vendor", "qwen,pi")


def test_a_list_is_not_longer_than_anybody_waits_for(local_box):
    local_box.write_settings(f"vendor = {list(VENDORS)[:9]}")
    with pytest.raises(FrontendError, match="the list has 9 vendors; at most 8 are allowed"):
        resolve_vendor()


def test_a_name_in_a_list_that_is_no_vendor_is_refused_though_another_could_answer(local_box):
    local_box.write_settings('vendor = ["demo", "nobody"]')
    with pytest.raises(FrontendError, match='vendor is "nobody", it must be one of'):
        resolve_vendor()


def test_a_vendor_that_is_listed_twice_is_asked_once(local_box):
    local_box.write_settings('vendor = ["demo", "demo"]')
    assert resolve_vendor(*STREAM) == ("demo", None)


def test_a_model_is_that_of_the_first_vendor_of_a_list(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["qwen", "demo"]')
    assert resolve_vendor("--model", "m1") == ("demo", None)
    local_box.write_program("qwen", "exit 0\n")
    assert resolve_vendor("--model", "m1") == ("qwen", "m1")


def test_a_model_that_is_one_vendors_is_given_to_no_other(local_box, capfd):
    store.store_session(
        U, store.StoredSession("demo", "vendors-own"), local_box.build_environment()
    )
    assert resolve_vendor("--resume", U, "--model", "qwen:m1") == ("demo", None)
    assert resolve_vendor("--shim-vendor", "demo", "--model", "qwen:m1") == ("demo", None)
    assert resolve_vendor("--shim-vendor", "demo", "--model", "demo:m1") == ("demo", "m1")
    assert capfd.readouterr().err == "the model m1 is qwen's and is not given to demo\n" * 2


def test_a_model_prefix_names_one_vendor_whatever_list_there_is(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    local_box.write_settings('vendor = ["pi", "demo"]')
    assert resolve_vendor("--model", "qwen:m1") == ("qwen", "m1")


def test_an_empty_name_says_nothing(local_box, monkeypatch):
    monkeypatch.setenv("SHIM_VENDOR", "")
    local_box.write_settings('vendor = "qwen"\n')
    assert resolve_vendor() == ("qwen", None)


@pytest.mark.parametrize(
    "name", ["nobody", "../qwen", "/bin/sh", "--version", "Qwen", "q" * 33, "qwen\n", "a b"]
)
def test_a_name_that_is_no_vendor_is_refused(local_box, name):
    with pytest.raises(FrontendError, match="unknown vendor"):
        resolve_vendor(f"--shim-vendor={name}")


def test_without_any_vendor_the_hint_lists_what_is_on_path(local_box, monkeypatch):
    qwen = local_box.write_program("qwen", "exit 0\n")
    monkeypatch.setenv("PATH", str(local_box.bin))
    with pytest.raises(FrontendError, match="no vendor was chosen") as refused:
        resolve_vendor()
    assert f"qwen ({qwen})" in refused.value.hint
    assert "SHIM_VENDOR" in refused.value.hint and str(local_box.config) in refused.value.hint


def test_without_any_vendor_on_path_the_hint_says_so(local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    with pytest.raises(FrontendError) as refused:
        resolve_vendor()
    assert "none of those it knows" in refused.value.hint


# -- values that become arguments ------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["gpt-5.1", "anthropic/claude-opus-5", "qwen3:32b", "m[1m]", "Sonnet 4.5", "a@b+c"]
)
def test_names_that_models_have_pass(model):
    assert validate_invocation(parse_argv(["--model", model])).model == model


@pytest.mark.parametrize(
    "model", ["--yolo", "-m", "@file", "a\nb", "a;b", "$(id)", "../x" * 60, "\u202eevil", "/etc"]
)
def test_a_model_that_could_be_a_flag_or_a_path_is_refused(model):
    with pytest.raises(FrontendError, match="the model name"):
        validate_invocation(parse_argv([f"--model={model}"]))


@pytest.mark.parametrize("resume", [U, "session-1", "a.b:c_d"])
def test_an_id_that_a_vendor_may_have_given_passes(resume):
    assert validate_invocation(parse_argv([f"--resume={resume}"])).session.resume == resume


@pytest.mark.parametrize(
    "resume", ["--yolo", "../x", "/etc/passwd", "@file", "a b", "a" * 129, "a\n", "\u00e9"]
)
def test_a_session_id_that_could_be_a_flag_or_a_path_is_refused(resume):
    with pytest.raises(FrontendError, match="neither a UUID nor an id of a vendor"):
        validate_invocation(parse_argv([f"--resume={resume}"]))


def test_resume_without_an_id_is_refused_because_nobody_can_be_asked():
    with pytest.raises(FrontendError, match="needs a session id"):
        validate_invocation(parse_argv(["--resume"]))


def test_a_directory_that_could_be_a_flag_is_refused():
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
def test_the_terminator_stands_where_a_frontend_waits_for_it(
    monkeypatch, args, entrypoint, setting, expected
):
    monkeypatch.delenv("CLAUDE_CODE_ENTRYPOINT", raising=False)
    if entrypoint:
        monkeypatch.setenv("CLAUDE_CODE_ENTRYPOINT", entrypoint)
    assert choose_terminator(parse_argv(args), setting) == expected


# -- the MCP servers of the command line -----------------------------------------------------------


@pytest.mark.parametrize(("vendor", "times"), [("demo", 1), ("claude", 0)])
def test_mcp_servers_are_read_once_and_for_a_real_claude_never(
    local_box, monkeypatch, vendor, times
):
    read = []
    monkeypatch.setattr(configs, "load_mcp_configs", lambda args, cwd: read.append(args) or {})
    monkeypatch.setenv("SHIM_BIN", sys.executable)
    args = ("--shim-vendor", vendor, "-p", "hi", "--mcp-config", "servers.json")
    ConversationStartup(parse_argv(args), {}, launcher_class=DryRunLauncher).plan_first_child()
    assert read == [("servers.json",)] * times

"""The settings: the file, the SHIM_* variables over the file, and flags over both. The error
message of a wrong value has its file, its key, the value, and the allowed values.
"""

import pytest

from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.core.reading import MAX_LINE_BYTES
from shim.state.config import (
    VendorSettings,
    get_config_dir,
    get_state_dir,
    load_shim_settings,
)
from shim.state.settings_file import KEY_KINDS, VENDOR_KEY_KINDS


def load_box_config(box, *args, **environment):
    return load_shim_settings(parse_argv(args), box.build_environment(**environment))


def test_defaults_apply_without_a_config_file(box):
    settings = load_box_config(box)
    assert (settings.vendor, settings.dialect, settings.terminator) == ((), "claude", "auto")
    assert (settings.end_grace, settings.log, settings.deny, settings.hide) == (2.0, None, (), ())
    assert settings.get_vendor_settings("qwen") == VendorSettings()


def test_every_config_key_is_read(box):
    box.write_settings("""
        vendor = ["qwen", "pi"]
        dialect = "claude"
        terminator = "none"
        end_grace = 1
        log = "info"
        [tools]
        deny = ["Bash"]
        hide = ["TodoWrite"]
        [vendors.qwen]
        bin = "~/qwen"
        args = ["--a"]
        env = {A = "1", B = 2}
        launcher = ["ssh", "box"]
        driver = "one-way"
        variant = "y"
        trust = true
        timeouts = {idle = 3}
    """)
    settings = load_box_config(box)
    assert settings.vendor == ("qwen", "pi")
    assert (settings.terminator, settings.end_grace, settings.log) == ("none", 1.0, "info")
    assert (settings.deny, settings.hide) == (("Bash",), ("TodoWrite",))
    assert settings.get_vendor_settings("qwen") == VendorSettings(
        bin="~/qwen",
        args=("--a",),
        env={"A": "1", "B": "2"},
        launcher=("ssh", "box"),
        driver="one-way",
        variant="y",
        trust=True,
        timeouts={"idle": 3},
    )


def test_vendor_timeout_overrides_the_global_timeout(box):
    box.write_settings("idle_timeout = 900\n[vendors.qwen]\ntimeouts = {idle = 3}")
    settings = load_box_config(box)
    assert [settings.resolve_timeout_s("idle_timeout", vendor) for vendor in ("qwen", "pi")] == [
        3,
        900,
    ]


def test_recording_and_timeout_keys_are_accepted(box):
    box.write_settings(
        'record = "/tmp/casts/"\nrecord_strict = true\nmax_line_bytes = 100000\nidle_timeout = 900.5\n'
    )
    assert load_box_config(box).vendor == ()


def test_flag_overrides_environment_and_environment_overrides_file(box):
    box.write_settings('terminator = "none"\nlog = "debug"\n')
    assert load_box_config(box).terminator == "none"
    assert load_box_config(box, SHIM_TERMINATOR="dollar", SHIM_LOG="info")[2:5:2] == (
        "dollar",
        "info",
    )
    assert (
        load_box_config(box, "--shim-terminator=auto", SHIM_TERMINATOR="dollar").terminator
        == "auto"
    )
    assert load_box_config(box, "--shim-log", "error", SHIM_LOG="info").log == "error"
    assert load_box_config(box, SHIM_TERMINATOR="").terminator == "none"


@pytest.mark.parametrize("by_flag", [True, False])
def test_config_file_can_be_selected_by_flag_or_environment(box, by_flag):
    path = box.path / "other.toml"
    path.write_text('terminator = "dollar"\n', encoding="utf-8")
    args = (f"--shim-config={path}",) if by_flag else ()
    assert (
        load_box_config(box, *args, SHIM_CONFIG=None if by_flag else str(path)).terminator
        == "dollar"
    )


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("terminator = 3", "terminator is 3; it must be a string"),
        ("vendor = 1", "vendor is 1; it must be a name or a list of names"),
        ("vendor = [1]", "vendor is [1]; it must be a name or a list of names"),
        ("end_grace = -1", "end_grace is -1; it must be a number"),
        ("end_grace = true", "end_grace is true; it must be a number"),
        ("record_strict = 1", "record_strict is 1; it must be true or false"),
        ("tools = 1", "tools is 1; it must be a table"),
        ("[tools]\ndeny = 'Bash'", 'tools.deny is "Bash"; it must be a list of strings'),
        ("[vendors.qwen]\ntrust = 'yes'", 'vendors.qwen.trust is "yes"; it must be true or false'),
        (
            "[vendors.'../x']\nbin = 'x'",
            'vendors."../x" is {bin = "x"}; it must be a table under a vendor\'s name',
        ),
        ("[vendors]\nqwen = 'x'", 'vendors.qwen is "x"; it must be a table under a vendor\'s name'),
        (
            "log = 'verbose'",
            'log is "verbose"; it must be one of debug, info, warning, error, LEVEL:FILE',
        ),
        (
            "\n[vendors.qwen]\ndriver = 'both'",
            'vendors.qwen.driver is "both"; it must be one of two-way, one-way',
        ),
        (
            "[vendors.qwen]\nbin = 'a/b'",
            'vendors.qwen.bin is "a/b"; it must be an absolute path, ~/… or a bare name',
        ),
        (
            "[vendors.qwen]\nlauncher = ['./x', '-y']",
            'vendors.qwen.launcher is ["./x", "-y"]; it must be an absolute path',
        ),
        (
            "[vendors.qwen.env]\nA = true",
            "vendors.qwen.env.A is true; it must be a string or a number",
        ),
        (
            "redact = 'al'",
            'redact is "al"; it must be one of casts, all, none; did you mean `all`?',
        ),
        ("max_line_bytes = 3", "max_line_bytes is 3; it must be a number of bytes, at least 10000"),
    ],
)
def test_invalid_value_is_reported_with_file_line_and_allowed_values(box, toml, expected):
    box.write_settings(toml + "\n")
    with pytest.raises(FrontendError) as refused:
        load_box_config(box)
    file, line, mistake = str(refused.value).removeprefix(str(box.config)).split(":", 2)
    assert (file, mistake.lstrip()[: len(expected)]) == ("", expected)
    last = expected.split(" ")[0].rpartition(".")[2].strip('"')
    assert last in toml.split("\n")[int(line) - 1]


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("# mine\n\nvendr = 'qwen'", "unknown key `vendr` in FILE line 3, did you mean `vendor`?"),
        (
            "colour = 1",
            "unknown key `colour` in FILE line 1; the allowed keys are: vendor, dialect,",
        ),
        ("[tools]\ndny = []", "unknown key `tools.dny` in FILE line 2, did you mean `deny`?"),
        (
            "[vendors.qwen]\npath = 'x'",
            "unknown key `vendors.qwen.path` in FILE line 2; the allowed keys are: bin, args,",
        ),
    ],
)
def test_unknown_key_is_reported_with_line_and_suggestion(box, toml, expected):
    box.write_settings(toml + "\n")
    with pytest.raises(FrontendError) as refused:
        load_box_config(box)
    assert str(refused.value).startswith(expected.replace("FILE", str(box.config)))
    assert "the allowed keys are: " in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_end_grace_that_is_not_finite_is_rejected(box, value):
    """With nan, no deadline is ever reached. With inf, the grace period is unlimited, but every
    wait has a limit.
    """
    box.write_settings(f"end_grace = {value}\n")
    with pytest.raises(FrontendError, match="end_grace"):
        load_box_config(box)


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_invalid_terminator_is_rejected_from_every_source(box, source):
    box.write_settings('terminator = "bell"\n' if source == "file" else "")
    args = ("--shim-terminator=bell",) if source == "flag" else ()
    with pytest.raises(FrontendError, match="bell"):
        load_box_config(box, *args, SHIM_TERMINATOR="bell" if source == "environment" else None)


@pytest.mark.parametrize("data", [b"vendor = ", b"\xff\xfe", b"= 1\n" * 3])
def test_file_that_is_not_toml_or_utf8_is_reported(box, data):
    box.write_settings("")
    box.config.write_bytes(data)
    with pytest.raises(FrontendError, match=r"config\.toml is not (TOML|UTF-8).*line 1"):
        load_box_config(box)


def test_deeply_nested_file_is_rejected(box):
    box.write_settings("a = " + "[" * 50_000)
    with pytest.raises(FrontendError, match="nested too deep"):
        load_box_config(box)


def test_too_large_file_is_rejected(box):
    box.write_settings("#" * (1024 * 1024 + 1))
    with pytest.raises(FrontendError, match="larger than"):
        load_box_config(box)


def test_folder_instead_of_the_config_file_is_rejected(box):
    box.config.mkdir(parents=True)
    with pytest.raises(FrontendError, match="cannot be read"):
        load_box_config(box)


@pytest.mark.parametrize("by_flag", [True, False])
def test_selected_config_file_must_exist(box, by_flag):
    with pytest.raises(FrontendError, match=r"/nowhere\.toml does not exist"):
        load_box_config(
            box,
            *(("--shim-config", "/nowhere.toml") if by_flag else ()),
            SHIM_CONFIG=None if by_flag else "/nowhere.toml",
        )


def test_config_and_state_folders_follow_xdg_and_home():
    assert get_config_dir({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == "/x/shim"
    assert get_config_dir({"HOME": "/h"}) == "/h/.config/shim"
    assert get_config_dir({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}) == "/h/.config/shim"
    assert get_state_dir({"SHIM_STATE": "/s", "HOME": "/h"}) == "/s"
    assert get_state_dir({"SHIM_STATE": "relative", "HOME": "/h"}) == "/h/.local/state/shim"


def test_config_key_tables_contain_the_documented_keys():
    assert set(VENDOR_KEY_KINDS) == {
        "bin",
        "args",
        "env",
        "launcher",
        "driver",
        "variant",
        "trust",
        "trust_version",
        "timeouts",
        "late_denials",
        "models",
    }
    assert {
        "vendor",
        "record",
        "redact",
        "max_line_bytes",
        "end_grace",
        "transcripts",
        "log",
        "tools",
    } <= set(KEY_KINDS)


@pytest.mark.parametrize(
    ("toml", "bytes_"), [("", MAX_LINE_BYTES), ("max_inbound_bytes = 300000000", 300_000_000)]
)
def test_max_inbound_bytes_is_configurable(box, toml, bytes_):
    box.write_settings(toml)
    assert load_box_config(box).max_inbound_bytes == bytes_


@pytest.mark.parametrize("value", ["0", "9999", "-1", "true", '"much"'])
def test_invalid_max_inbound_bytes_is_rejected(box, value):
    box.write_settings(f"max_inbound_bytes = {value}")
    with pytest.raises(FrontendError, match="max_inbound_bytes is"):
        load_box_config(box)


@pytest.mark.parametrize(
    ("dialect", "chosen", "redaction"),
    [
        ("claude", None, "casts"),
        ("yume", None, "all"),
        ("claude", "all", "all"),
        ("yume", "none", "none"),
        ("yume", "casts", "casts"),
    ],
)
def test_redaction_is_the_configured_value_or_the_dialect_default(box, dialect, chosen, redaction):
    assert (
        load_box_config(box, SHIM_DIALECT=dialect, SHIM_REDACT=chosen).resolve_redaction_mode()
        == redaction
    )
    box.write_settings("" if chosen is None else f'redact = "{chosen}"\n')
    assert load_box_config(box, SHIM_DIALECT=dialect).resolve_redaction_mode() == redaction


def test_invalid_redact_value_is_rejected(box):
    with pytest.raises(
        FrontendError, match="SHIM_REDACT is 'everything'; it must be one of casts, all, none"
    ):
        load_box_config(box, SHIM_REDACT="everything")
    box.write_settings("redact = true\n")
    with pytest.raises(FrontendError, match="redact is true; it must be a string"):
        load_box_config(box)

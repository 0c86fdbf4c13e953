"""`--shim-explain` and `shim explain`: what would be started and why. No program is started."""

import json
import os

import pytest
from box import ANSWER

from tests.conversation.test_conversation import U

KEY = "sk-ant-api03-" + "Ab3dEf6hIj" * 9


def files(box):
    """Return all files of the box except compiled profiles, which every start stores."""
    return {
        path
        for path in box.path.rglob("*")
        if path.is_file() and path.parent != box.state / "profiles"
    }


@pytest.fixture
def run_explain(box):
    """Return a function that runs `shim explain --json -- ARGS` and checks that no program was
    started and no file created.
    """

    def explain(*args, status=0, **environment):
        marker = box.path / "started"
        program = box.write_program("program", f"touch {marker}\n")
        before = files(box)
        done = box.run_shim(
            "explain",
            "--json",
            "--",
            *args,
            environment=box.build_environment(SHIM_BIN=program) | environment,
        )
        assert done.status == status, done.stderr
        assert files(box) == before, "nothing was started, and nothing was written"
        return json.loads(done.stdout)

    return explain


def test_explain_returns_the_complete_command(run_explain):
    explanation = run_explain("-p", "do it", "--shim-vendor", "qwen", "--permission-mode", "plan")
    assert explanation["argv"][0].endswith("/program")
    assert explanation["argv"][
        (index := explanation["argv"].index("--approval-mode")) : index + 2
    ] == [
        "--approval-mode",
        "plan",
    ]
    assert (explanation["vendor"], explanation["named_by"], explanation["mode"]) == (
        "qwen",
        "--shim-vendor",
        "plan",
    )
    assert explanation["program_by"] == "SHIM_BIN" and explanation["mode_arguments"] == [
        "--approval-mode",
        "plan",
    ]


def test_explained_command_matches_the_command_of_the_turn(box, run_explain):
    flags = ("-p", "do it now", "--shim-vendor", "pi", "--model", "m1", "--permission-mode", "plan")
    explanation = run_explain(*flags)
    child = box.create_fake(["read"], ["record", str(box.recording)])
    box.run_claude(*flags, SHIM_BIN=child)
    ran = box.read_record()
    assert explanation["argv"][1:] == ran["arguments"]
    assert explanation["environment"]["set"].items() <= ran["environment"].items()
    assert not set(explanation["environment"]["removed"]) & ran["environment"].keys()
    assert explanation["cwd"] == ran["cwd"]


@pytest.mark.parametrize(
    ("source", "args", "environment", "toml"),
    [
        ("--shim-vendor", ("--shim-vendor", "qwen"), {"SHIM_VENDOR": "pi"}, ""),
        ("--model", ("--model", "qwen:m1"), {"SHIM_VENDOR": "pi"}, ""),
        ("SHIM_VENDOR", (), {"SHIM_VENDOR": "qwen"}, 'vendor = "pi"'),
        ("the settings file", (), {}, 'vendor = "qwen"'),
    ],
)
def test_source_of_the_vendor_choice_is_reported(box, run_explain, source, args, environment, toml):
    box.write_settings(toml)
    explanation = run_explain("-p", "x", *args, **environment)
    assert (explanation["vendor"], explanation["named_by"]) == ("qwen", source)
    assert (
        explanation["settings"]["file"] == str(box.config)
        and explanation["settings"]["file_exists"]
    )


def test_explain_uses_the_installed_vendor(box, run_explain):
    assert box.run_shim("install", "--vendor", "qwen", "--to", str(box.bin)).status == 0
    explanation = run_explain("-p", "x")
    assert (explanation["vendor"], explanation["named_by"]) == ("qwen", "`shim install`")
    assert explanation["settings"]["installed"]["vendor"] == "qwen"


def test_secrets_are_redacted(run_explain):
    explanation = run_explain(
        *(
            "-p",
            "x",
            "--shim-vendor",
            "qwen",
            "--mcp-config",
            '{"mcpServers":{"a":{"command":"b","env":{"K":"hush"}}}}',
        ),
        *("--append-system-prompt", f"use {KEY}"),
        SHIM_ARGS=f"--openai-api-key hush --header {KEY}",
        OPENAI_API_KEY="hush",
    )
    assert "hush" not in json.dumps(explanation) and KEY not in json.dumps(explanation)
    assert "[REDACTED:argument]" in explanation["argv"]


def test_removed_and_added_environment_variables_are_reported(run_explain):
    explanation = run_explain(
        "-p", "x", "--shim-vendor", "qwen", CLAUDECODE="1", ANTHROPIC_API_KEY="k"
    )
    assert {"CLAUDECODE", "ANTHROPIC_API_KEY", "SHIM_BIN"} <= set(
        explanation["environment"]["removed"]
    )
    assert explanation["environment"]["set"]["SHIM_DEPTH"] == "1"


def test_every_permission_rule_has_a_source_and_an_enforcement_method(box, run_explain):
    settings = box.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(
        json.dumps({"permissions": {"deny": ["Bash(rm:*)"], "allow": ["WebFetch"]}})
    )
    explanation = run_explain("-p", "x", "--shim-vendor", "qwen", "--disallowedTools", "Write")
    rules = {entry["rule"]: entry for entry in explanation["rules"]}
    assert (
        rules["Bash(rm:*)"]["from"] == str(settings)
        and rules["Write"]["from"] == "--disallowedTools"
    )
    assert (
        "checked by the shim" in rules["Bash(rm:*)"]["how"] and "passed to" in rules["Write"]["how"]
    )
    assert rules["WebFetch"]["kind"] == "allow"
    assert explanation["settings"]["claude"] == [str(settings)]
    assert (explanation["driver"], explanation["asks_frontend"]) == ("two-way", False)


def test_rule_without_effect_is_reported(run_explain):
    (rule,) = run_explain("-p", "x", "--shim-vendor", "opencode", "--allowedTools", "Bash(")[
        "rules"
    ]
    assert rule["how"].startswith("no effect: ")


def test_config_file_of_the_child_is_printed_but_not_written(run_explain):
    explanation = run_explain(
        "-p",
        "x",
        "--shim-vendor",
        "gemini",
        "--disallowedTools",
        "Bash",
        "--permission-mode",
        "plan",
    )
    ((path, text),) = explanation["files"].items()
    assert any(path in arg for arg in explanation["argv"]) and "run_shell_command" in text


def test_refused_turn_is_explained_with_a_hint(run_explain):
    explanation = run_explain(
        "-p", "x", "--shim-vendor", "gemini", "--disallowedTools", "Bash(rm:*)", status=1
    )
    assert "gemini cannot enforce Bash(rm:*)" in explanation["refused"] and explanation["hint"]
    assert explanation["vendor"] == "gemini"


def test_skipped_vendors_of_a_list_are_reported(box, run_explain):
    explanation = run_explain("-p", "x", SHIM_BIN="/nowhere", SHIM_VENDOR="qwen,demo")
    assert explanation["vendor"] == "demo" and explanation["list"] == ["qwen", "demo"]
    (skipped,) = explanation["passed_over"]
    assert skipped["vendor"] == "qwen"


def test_explain_flag_prints_text_and_starts_no_child_process(box):
    program = box.write_program("program", f"touch {box.path}/started\n")
    flags = ("-p", "do it", "--session-id", U, "--shim-explain")
    done = box.run_claude(
        *flags, SHIM_BIN=program, SHIM_VENDOR="pi", SHIM_RECORD=f"{box.path}/casts/"
    )
    output = done.stdout.decode()
    assert done.status == 0 and not done.stderr
    assert output.startswith("This is what would be started. Nothing was started.\n")
    assert "pi (version not cached), chosen by SHIM_VENDOR" in output
    assert "found by SHIM_BIN; no --help" in output and "one-way" in output
    assert f"the run is recorded to {box.path}/casts/" in output
    assert not os.path.exists(box.path / "started") and not os.path.exists(box.path / "casts")


def test_escape_sequences_are_removed_from_the_printed_explanation(box):
    done = box.run_claude(
        "-p",
        "x\x1b]0;owned\x07",
        "--shim-explain",
        SHIM_VENDOR="pi",
        SHIM_BIN=box.create_fake(["out", ANSWER]),
    )
    assert done.status == 0 and b"\x1b" not in done.stdout


def test_explain_flag_after_a_double_dash_is_part_of_the_prompt(box):
    done = box.run_claude(
        "-p",
        "--",
        "--shim-explain",
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]),
    )
    assert done.status == 0 and b"Hello." in done.stdout


def test_value_of_a_secret_environment_variable_is_redacted(box, run_explain):
    box.write_settings('[vendors.qwen]\nenv = { MY_TOKEN = "hush", PLAIN = "shown" }\n')
    variables = run_explain("-p", "x", "--shim-vendor", "qwen")["environment"]["set"]
    assert (variables["MY_TOKEN"], variables["PLAIN"]) == ("[REDACTED:variable]", "shown")


def test_explain_describes_the_child_of_a_background_session(run_explain):
    """A host talks to its vendor in both directions, also for one message."""
    arguments = ("-p", "do it", "--shim-vendor", "pi", "--output-format", "stream-json")
    local = run_explain(*arguments)
    assert (local["background"], local["driver"]) == ("", "one-way")
    background = run_explain(*arguments, SHIM_BRIDGE="1")
    assert (background["background"], background["driver"]) == ("new", "two-way")
    assert "rpc" in background["argv"] and "rpc" not in local["argv"]

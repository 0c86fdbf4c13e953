"""Claude's model names at the drop-in, with stand-ins for the vendors: the model that each vendor
receives, and the model in `init`.
"""

import json
import subprocess

import pytest
from box import ANSWER, ASK, CONVERSE, END, START, build_text_event, format_ndjson

# A session of pi with the model of its own choice. pi names the model only in its replies.
PI = format_ndjson(
    {"type": "session", "id": "7f1c2f4e-0000-4000-8000-0000000000aa"},
    {"type": "message_start", "message": {"role": "assistant", "model": "pi-own", "content": []}},
    {
        "type": "message_end",
        "message": {
            "role": "assistant", "model": "pi-own", "content": [{"type": "text", "text": "Hi."}], "stopReason": "stop",
        },
    },
    {"type": "agent_end", "messages": []},
)  # fmt: skip


@pytest.fixture
def box(quick_box):
    return quick_box


def start_vendor(box, vendor, *args, out=PI, settings="", stderr=""):
    """Return the arguments of a vendor's start, and the init line. `stderr` is what the shim says."""
    box.write_settings(settings)
    program = box.create_fake(["serve"], ["record", str(box.recording)], ["out", out])
    done = box.run_claude(*ASK, *args, SHIM_VENDOR=vendor, SHIM_BIN=program)
    assert done.stderr == stderr
    return box.read_record()["arguments"], done.init


def flag(args, name):
    return args[args.index(name) + 1] if name in args else None


@pytest.mark.parametrize(
    "name", ["sonnet", "opus[1m]", "claude-sonnet-4-5-20250929", "opusplan", "default"]
)
def test_other_vendors_receive_no_claude_model_name(box, name):
    args, init = start_vendor(box, "pi", "--model", name)
    assert "--model" not in args and name not in args
    assert init["model"] == "unknown"
    assert init["shim"]["model_asked"] == name


@pytest.mark.parametrize("prefix", ["", "pi:", ":"])
def test_vendor_model_name_is_passed_to_the_vendor(box, prefix):
    args, init = start_vendor(box, "pi", "--model", f"{prefix}openai/gpt-6")
    assert flag(args, "--model") == "openai/gpt-6"
    assert init["model"] == "openai/gpt-6"
    assert "model_asked" not in init["shim"]


@pytest.mark.parametrize(
    ("settings", "name", "expected"),
    [
        ('[models]\nsonnet = "big"\n', "sonnet", "big"),
        ('[models]\nsonnet = "big"\n', "claude-sonnet-4-5-20250929", "big"),
        ('[models]\nsonnet = "big"\n[vendors.pi.models]\nsonnet = "own"\n', "sonnet[1m]", "own"),
        ('[models]\nsonnet = "big"\n[vendors.qwen.models]\nsonnet = "other"\n', "sonnet", "big"),
        ('[models]\nfast = "quick"\n', "fast", "quick"),
        ('[models]\nsonnet = "big"\n', "opus", None),
    ],
)
def test_model_name_is_mapped_by_the_settings(box, settings, name, expected):
    args, init = start_vendor(box, "pi", "--model", name, settings=settings)
    assert flag(args, "--model") == expected
    assert (init["model"], init["shim"]["model_asked"]) == (expected or "unknown", name)


def test_model_that_cannot_be_claudes_fails_without_the_vendor(box):
    program = box.create_fake(["record", str(box.recording)], ["out", PI])
    done = box.run_claude(*ASK, "--model", "claude-x", SHIM_VENDOR="pi", SHIM_BIN=program)
    assert not box.recording.exists()
    assert (done.init["model"], done.result["is_error"]) == ("claude-x", True)
    assert done.result["result"].startswith("There's an issue with the selected model (claude-x). ")
    assert (done.result["subtype"], done.result["api_error_status"]) == ("success", 404)
    assert done.result["terminal_reason"] == "api_error"
    assert done.status == 1
    assert "the model claude-x was not requested from pi: add it under [models]" in done.stderr


def test_mapping_makes_any_claude_name_usable(box):
    args, init = start_vendor(
        box, "pi", "--model", "claude-x", settings='[models]\nclaude-x = "big"\n'
    )
    assert (flag(args, "--model"), init["model"]) == ("big", "big")


def test_next_model_of_a_conversation_can_be_used_after_an_unknown_model(box):
    program = box.create_fake(["record", str(box.recording)], ["out", PI])
    box.write_settings("")
    lines = [
        {"type": "control_request", "request_id": "1",
         "request": {"subtype": "set_model", "model": "claude-x"}},
        {"type": "user", "message": {"role": "user", "content": "one"}},
    ]  # fmt: skip
    done = box.run_claude(
        *CONVERSE, stdin=format_ndjson(*lines).encode(), SHIM_VENDOR="pi", SHIM_BIN=program
    )
    (result,) = [line for line in done.lines if line["type"] == "result"]
    assert result["api_error_status"] == 404 and not box.recording.exists()


def test_real_claude_receives_claude_model_names_despite_the_mapping(box):
    stream = {
        "type": "system",
        "subtype": "init",
        "session_id": "s",
        "tools": [],
        "model": "claude-x",
    }
    program = box.create_fake(
        ["read"], ["record", str(box.recording)], ["out", format_ndjson(stream)]
    )
    box.write_settings('[models]\nsonnet = "big"\n')
    box.run_claude(*ASK, "--model", "sonnet", SHIM_VENDOR="claude", SHIM_BIN=program)
    assert (
        "--model=sonnet" in box.read_record()["arguments"]
        or flag(box.read_record()["arguments"], "--model") == "sonnet"
    )


def test_fallback_models_are_mapped(box):
    fallback_flags = ("--fallback-model", "opus,haiku")
    qwen = format_ndjson(
        {"type": "system", "subtype": "init", "session_id": "s", "tools": [], "model": "m"},
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": "Hi.",
            "session_id": "s",
        },
    )
    settings = '[models]\nhaiku = "small"\n'
    notice = (
        "--fallback-model has a late effect: qwen first retries its model for more than a minute\n"
    )
    args, _ = start_vendor(box, "qwen", *fallback_flags, out=qwen, settings=settings, stderr=notice)
    assert flag(args, "--fallback-model") == "small"


def test_each_vendor_in_a_list_uses_its_model_map(box):
    """The first vendor is missing. A name that is not Claude's would be for that vendor only."""
    box.write_settings(
        '[vendors.pi]\nmodels = { sonnet = "own" }\n[vendors.qwen]\nbin = "/nowhere"\n'
    )
    program = box.create_fake(["read"], ["record", str(box.recording)], ["out", PI], name="pi")
    path = {"SHIM_VENDOR": "qwen,pi", "PATH": program.rpartition("/")[0] + ":/usr/bin:/bin"}
    done = box.run_claude(*ASK, "--model", "sonnet", **path)
    assert done.init["shim"]["vendor"] == "pi"
    assert flag(box.read_record()["arguments"], "--model") == "own"


@pytest.mark.parametrize("text_of", ["--evil", "", 7, "a\nb"])
def test_invalid_model_name_in_the_settings_is_an_error(box, text_of):
    box.write_settings(f"[vendors.pi.models]\nsonnet = {json.dumps(text_of)}\n")
    done = box.run_claude(*ASK, SHIM_VENDOR="pi", SHIM_BIN="/bin/true")
    assert done.status == 1
    assert "vendors.pi.models.sonnet" in done.stderr and "config.toml" in done.stderr


def test_set_model_is_mapped_for_the_next_child(box):
    """C7: the response, the arguments of the next child and its init line agree."""
    box.write_settings('[models]\nsonnet = "big"\n')
    silent = format_ndjson(
        {name: fact for name, fact in START.items() if name != "model"},
        build_text_event("Hello."),
        END,
    )
    program = box.create_fake_sequence(
        [["out", ANSWER]],
        [["record", f"{box.recording}-2"], ["out", silent]],
        [["record", f"{box.recording}-3"], ["out", ANSWER]],
    )
    vendor = {"SHIM_VENDOR": "demo", "SHIM_BIN": program}
    with box.start_claude(*CONVERSE, stdin=subprocess.PIPE, environment=vendor) as running:
        for number, model in enumerate(("sonnet", "opus", "default"), start=1):
            running.send_lines({"type": "user", "message": {"role": "user", "content": "hi"}})
            running.read_until(b'"type":"result"')
            change = {"type": "control_request", "request_id": str(number)}
            running.send_lines({**change, "request": {"subtype": "set_model", "model": model}})
            running.read_until(b'"control_response"')
        done = running.end_input()
    answers = [
        line["response"]["response"]["model"]
        for line in done.lines
        if line["type"] == "control_response"
    ]
    assert answers == ["big", "m1", "m1"]
    inits = [line for line in done.lines if line.get("subtype") == "init"]
    assert [(line["model"], line["shim"].get("model_asked")) for line in inits] == [
        ("m1", None), ("big", "sonnet"), ("m1", "opus"),
    ]  # fmt: skip


def test_initialize_lists_mapped_models_and_cached_vendor_models(box):
    """C3: the list was stored when a person requested it. No vendor is started for it."""
    box.write_settings('[models]\nsonnet = "a/big"\n')
    program = box.write_program("pi", "echo 'mock      m-1  128K     4.1K'\n")
    vendor = {"SHIM_VENDOR": "pi", "SHIM_BIN": program}

    def models():
        request = {
            "type": "control_request",
            "request_id": "i",
            "request": {"subtype": "initialize"},
        }
        done = box.run_claude(*CONVERSE, stdin=json.dumps(request).encode() + b"\n", **vendor)
        (answer,) = [
            line["response"]["response"]
            for line in done.lines
            if line["type"] == "control_response"
        ]
        return [(model["value"], model["description"].split()[0]) for model in answer["models"]]

    mapped = [("default", "The"), ("sonnet", "a/big")]
    assert models() == mapped
    box.write_program(
        "pi",
        "[ $1 = --version ] && echo 1.5.2\n[ $1 = --list-models ] && echo 'mock      m-1  128K     4K'\n",
    )
    box.run_shim("doctor", "pi", environment=box.build_environment(**vendor))
    assert models() == [*mapped, ("mock/m-1", "mock/m-1")]

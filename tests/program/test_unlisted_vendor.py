"""A CLI without a bundled profile: one TOML file beside config.toml, and the installed drop-in
works with it.

`heron` is a stand-in whose lines have their own format. `grok` is a real program (grok-cli 0.0.34).
Its recorded output is in `profiles/grok/`, and `e2e/test_unlisted_cli.py` runs it.
"""

import json
import shlex
import shutil
import subprocess
import tomllib

import pytest
from box import CONVERSE, STREAM, TIMEOUT_S, Box, Done, build_stand_in_command
from fixture_cases import ROOT
from stream_invariants import check_turns
from stream_lines import summarize_lines
from yume_stream import check_flat, summarize_flat_lines

from tests.conversation.test_conversation import request, responses, results, stdin, user

PROFILES = ROOT / "tests" / "profiles"
ALONE = ("-I", "-c", "…")  # after the Python in the installed file: the shim's start
U = "11111111-2222-4333-8444-555555555555"


def install_heron(box):
    tell_version = 'if [ "$*" = --version ]; then echo heron 3.1; exit; fi\n'
    box.write_program(
        "heron", f'{tell_version}exec {" ".join(build_stand_in_command("heron"))} "$@"\n'
    )
    folder = box.config.parent / "vendors"
    folder.mkdir(parents=True)
    shutil.copy(PROFILES / "heron.toml", folder)
    done = box.run_shim("install", "--vendor", "heron", "--to", str(box.path / "drop-in"))
    assert done.status == 0, done.stderr
    assert "never asks for permission" in done.stdout.decode() + done.stderr


@pytest.fixture(scope="module")
def nest(tmp_path_factory):
    """Yield a box with the stand-in, its profile, and the drop-in that `shim install` wrote for
    it.
    """
    box = Box(tmp_path_factory.mktemp("nest"))
    install_heron(box)
    yield box
    box.close()


class Heron:
    """The drop-in in that box, with its own log of the stand-in's arguments."""

    def __init__(self, box, log):
        self.box = box
        self.log = log

    def claude(self, *args, input_=b"", **environment):
        """Run the installed `claude` to its end."""
        *_, command = (
            (self.box.path / "drop-in" / "claude").read_text(encoding="utf-8").partition("\nexec ")
        )
        # without the program and without "$@"
        installed = shlex.split(command)[len(ALONE) + 1 : -1]
        environment = self.box.build_environment(HERON_LOG=str(self.log), **environment)
        return self.box.run_shim(*installed, *args, environment=environment, stdin=input_)

    def alone(self, *args):
        """Run the installed file itself."""
        command = [str(self.box.path / "drop-in" / "claude"), *args]
        environment = self.box.build_environment(HERON_LOG=str(self.log))
        done = subprocess.run(
            command, capture_output=True, env=environment, cwd=self.box.cwd, timeout=TIMEOUT_S
        )
        return Done(done.returncode, done.stdout, done.stderr.decode())

    def read_starts(self):
        """Return the arguments of each start."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def heron(nest, tmp_path):
    return Heron(nest, tmp_path / "heron.log")


LOOKED = [
    "init",
    "think:What is asked?",
    "text:I look.",
    "call:7 Read",
    "call:8 Bash",
    "failed:8 no such\nplace",
    "result:7 one",
    "text:One is there.",
    "end:success One is there.",
    ".",
]


def test_turn_of_an_unlisted_vendor_is_translated_to_claude_lines(heron):
    done = heron.alone("-p", "look around", *STREAM, "--model", "big")
    check_turns(done.stdout, False)
    assert done.status == 0 and summarize_lines(done.lines) == LOOKED
    blocks = [
        block
        for line in done.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == [
        {"file_path": "/repo/a.txt", "offset": 3},
        {"command": "ls -a"},
    ]
    assert (done.init["model"], done.init["tools"]) == ("big", ["Read", "Bash"])
    assert done.init["shim"] == {"vendor": "heron", "unattended": True}
    usage = done.result["usage"]
    token_counts = usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]
    assert token_counts == (30, 10, 5)
    assert done.result["shim"]["repairs"] == {} and done.result["shim"]["unknown_events"] == {}
    assert heron.read_starts() == [
        {"arguments": ["fly", "--brain", "big", "--", "look around"], "prompt": "look around"}
    ]


def test_fragments_are_emitted_as_partial_messages(heron):
    done = heron.claude("-p", "say it", *STREAM, "--include-partial-messages")
    check_turns(done.stdout, True)
    summary = summarize_lines(done.lines)
    assert [entry for entry in summary if entry[0] in "+~"] == [
        "~What is ",
        "~asked?",
        "+Hear",
        "+d: ",
        "+say it",
    ]
    assert summary[-2:] == ["end:success Heard: say it", "."]


@pytest.mark.parametrize("verbose", [False, True])
def test_json_output_is_a_single_result_or_all_lines_with_verbose(heron, verbose):
    done = heron.claude(
        "-p", "say it", "--output-format", "json", *(["--verbose"] if verbose else [])
    )
    output = json.loads(done.stdout)
    assert (output[-1] if verbose else output)["result"] == "Heard: say it"
    assert not verbose or [event["type"] for event in output] == [
        "system",
        "assistant",
        "assistant",
        "result",
    ]


def test_text_output_contains_the_answer(heron):
    done = heron.claude("-p", "say it")
    assert (done.status, done.stdout) == (0, b"Heard: say it\n")
    assert heron.claude("-p", "", input_=b"from stdin").stdout == b"Heard: from stdin\n"


def test_prompt_from_stdin_reaches_the_vendor_unchanged(heron):
    prompts = ["-rf", "@file", "--care all", "one", "two\nlines", "x" * 200_000]
    for prompt in prompts:
        heron.claude("-p", *STREAM, input_=prompt.encode())
    assert [start["prompt"] for start in heron.read_starts()] == prompts


@pytest.mark.parametrize(
    ("prompt", "cause", "expected"),
    [
        ("fall down", "vendor_error", "my wing is broken"),
        ("limit it", "rate_limit", "429"),
        (
            "drop it",
            "exit_code",
            "exited with code 9 before it finished: the heron did not feel like it",
        ),
    ],
)
def test_vendor_failure_is_an_error_result_with_its_cause(heron, prompt, cause, expected):
    done = heron.claude("-p", prompt, *STREAM)
    check_turns(done.stdout, False)
    assert (done.status, done.cause, done.result["is_error"]) == (1, cause, True)
    assert expected in summarize_lines(done.lines)[-2]


@pytest.mark.parametrize(
    ("mode", "expected_args"),
    [
        ("default", []),
        ("plan", ["--care", "only look"]),
        ("bypassPermissions", ["--care", "not at all"]),
    ],
)
def test_permission_mode_adds_the_arguments_of_the_profile(heron, mode, expected_args):
    done = heron.claude("-p", "say it", *STREAM, "--permission-mode", mode)
    assert done.init["permissionMode"] == mode
    assert heron.read_starts()[-1]["arguments"] == ["fly", *expected_args, "--", "say it"]


def test_permission_mode_missing_from_the_profile_is_refused(heron):
    done = heron.claude("-p", "say it", *STREAM, "--permission-mode", "acceptEdits")
    assert (done.status, done.cause) == (1, "refused")
    assert "default, plan, bypassPermissions" in done.result["errors"][0] and not heron.log.exists()


def test_sdk_conversation_applies_model_and_mode_changes(heron):
    lines = [
        request("1", "initialize", hooks=None),
        user("one"),
        request("2", "set_model", model="big"),
        request("3", "set_permission_mode", mode="plan"),
        request("4", "set_permission_mode", mode="acceptEdits"),
        user("two"),
    ]
    done = heron.claude(*CONVERSE, input_=stdin(*lines), CLAUDE_CODE_ENTRYPOINT="sdk-py")
    assert [line["result"] for line in results(done)] == ["Heard: one", "Heard: two"]
    subtypes = {request_id: answer["subtype"] for request_id, answer in responses(done).items()}
    assert subtypes == {"1": "success", "2": "success", "3": "success", "4": "error"}
    first, second = heron.read_starts()
    nest = second["arguments"][second["arguments"].index("--nest") + 1]
    assert first["arguments"] == ["fly", "--", "one"]
    assert second["arguments"] == [
        "fly",
        "--care",
        "only look",
        "--brain",
        "big",
        "--nest",
        nest,
        "--",
        "two",
    ]
    assert len({line["session_id"] for line in done.lines if "session_id" in line}) == 1
    assert done.terminator is None


def test_resume_passes_the_vendor_session_id(heron):
    heron.claude("-p", "say it", *STREAM, "--session-id", U)
    done = heron.claude("-p", "and again", *STREAM, "--resume", U)
    assert done.init["session_id"] == U and done.result["result"] == "Heard: and again"
    args = heron.read_starts()[-1]["arguments"]
    assert args[1] == "--nest" and args[2].startswith("nest-")


def test_yume_dialect_and_yume_cli_emit_the_same_turn(heron):
    done = heron.claude("-p", "look around", *STREAM, "--shim-dialect", "yume")
    (turn,) = check_flat(done.stdout)
    expected = "init think think text call result call failed text usage result message_stop"
    assert " ".join(entry.split()[0] for entry in summarize_flat_lines(turn)) == expected
    args = "--provider", "heron", "--prompt", "look around"
    done = heron.box.run_shim("yume-cli", "start", *args, environment=heron.box.build_environment())
    (second_turn,) = check_flat(done.stdout)
    assert done.status == 0 and summarize_flat_lines(second_turn) == summarize_flat_lines(turn)


def test_recording_replays_without_starting_the_vendor(heron):
    cast = str(heron.box.path / "run.cast")
    done = heron.claude("-p", "look around", *STREAM, SHIM_RECORD=cast)
    assert heron.box.run_shim("replay", "--check", cast).status == 0
    replayed = heron.claude("-p", "look around", *STREAM, SHIM_VENDOR=f"replay:{cast}")
    assert summarize_lines(replayed.lines) == summarize_lines(done.lines) == LOOKED
    assert replayed.init["shim"]["vendor"] == "heron" and len(heron.read_starts()) == 1
    assert "One is there." in heron.box.run_shim("show", cast).stdout.decode()


def test_translate_command_translates_the_vendor_output(heron):
    output = subprocess.run(
        [heron.box.bin / "heron", "fly", "--", "look"], capture_output=True, check=True
    ).stdout
    done = heron.box.run_shim("translate", "heron", stdin=output)
    assert summarize_lines(done.lines) == LOOKED


def test_vendors_command_lists_the_unlisted_vendor(heron):
    rows = json.loads(heron.box.run_shim("vendors", "--json").stdout)
    (row,) = (row for row in rows if row["name"] == "heron")
    assert row["program"] == str(heron.box.bin / "heron") and row["unattended"]
    assert row["modes"] == ["default", "plan", "bypassPermissions"] and "resume" in row["can"]


# -- a real program --------------------------------------------------------------------------------

GROK = PROFILES / "grok"
CASES = sorted(path.name for path in GROK.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", CASES)
def test_output_of_real_grok_is_translated(box, name):
    folder = box.config.parent / "vendors"
    folder.mkdir(parents=True)
    shutil.copy(PROFILES / "grok.toml", folder)
    case_table = tomllib.loads((GROK / name / "case.toml").read_text(encoding="utf-8"))
    stderr = box.path / "stderr"
    stderr.write_text(case_table["stderr"], encoding="utf-8")
    args = "--stable-ids", "--exit", str(case_table["exit"]), "--stderr", str(stderr)
    for partial in (False, True):
        more = ["--partial"] if partial else []
        done = box.run_shim(
            "translate", "grok", *args, *more, stdin=(GROK / name / "vendor.ndjson").read_bytes()
        )
        check_turns(done.stdout, partial)
        if not partial:
            assert summarize_lines(done.lines) == case_table["said"]
            blocks = [
                item
                for line in done.lines
                if line["type"] == "assistant"
                for item in line["message"]["content"]
            ]
            inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
            assert inputs == [json.loads(item) for item in case_table.get("inputs", [])]

"""`shim run` and `shim demo`: on a real terminal with a real process group, and in a pipe."""

import json
import signal
import subprocess

import pytest
from box import ANSWER, END, SHIM, START, TIMEOUT_S, build_text_event, format_ndjson, start_shim
from fixture_cases import ROOT
from terminal import CTRL_C, CTRL_D, on_terminal

from tests.conversation.test_persistent_driver import (
    CANCELLED,
    HELLO,
    INIT,
    asks,
    calls,
    result,
    returns,
    says,
)

TEXT_OUTPUT = format_ndjson(START, build_text_event("Hello."))


@pytest.fixture
def keyboard(box):
    """Return a function that starts `shim ARGS` on a new terminal."""

    def start(*args, echo=True, **environment):
        env = box.build_environment(**environment)
        return on_terminal(
            [*SHIM, *args], env=env, cwd=str(box.cwd), timeout_s=TIMEOUT_S, echo=echo
        )

    return start


# -- Ctrl-C ----------------------------------------------------------------------------------------


def test_ctrl_c_interrupts_a_turn_of_the_demo(keyboard):
    with keyboard("demo") as terminal:
        terminal.wait_for_text("Let me look")
        terminal.type_keys(CTRL_C)
        terminal.wait_for_text("Interrupting")
        assert terminal.wait_for_exit() == 130
        assert "■ interrupted" in terminal.plain and "Traceback" not in terminal.plain
        assert terminal.clean


def test_ctrl_c_ends_the_turn_and_the_vendor(box, keyboard):
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "up"], ["out", TEXT_OUTPUT], ["hang"])
    with keyboard("run", "-v", "demo", "hi", SHIM_BIN=child) as terminal:
        terminal.wait_for_text("Hello.")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert lifeline.wait_until_closed()
        assert terminal.plain.count("Interrupting… press Ctrl-C again to kill the agent.") == 1
        assert "■ interrupted" in terminal.plain
        assert terminal.clean


def test_second_ctrl_c_ends_the_run_at_once(box, keyboard):
    lifeline = box.create_lifeline()
    child = box.create_fake(
        ["ignore", "SIGINT", "SIGTERM"],
        ["say", lifeline.path, "up"],
        ["out", TEXT_OUTPUT],
        ["hang"],
    )
    with keyboard("run", "-v", "demo", "hi", SHIM_BIN=child) as terminal:
        terminal.wait_for_text("Hello.")
        terminal.type_keys(CTRL_C)
        terminal.wait_for_text("Interrupting")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert "killed" in terminal.plain
        assert terminal.plain.count("Interrupting… press Ctrl-C again to kill the agent.") == 1, (
            "of the first alone"
        )
        assert terminal.clean
        assert lifeline.wait_until_closed()


def test_ctrl_c_before_any_output_ends_the_vendor(box, keyboard):
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "up"], ["hang"])
    with keyboard("run", "-v", "demo", "hi", SHIM_BIN=child) as terminal:
        lifeline.wait_for("up")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert lifeline.wait_until_closed()
        assert (
            "■ interrupted" in terminal.plain
            and "Traceback" not in terminal.plain
            and "✗" not in terminal.plain
        )
        assert terminal.clean


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_termination_signal_ends_the_vendor_and_restores_the_terminal(box, keyboard, name, status):
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "up"], ["out", TEXT_OUTPUT], ["hang"])
    with keyboard("run", "-v", "demo", "hi", SHIM_BIN=child) as terminal:
        terminal.wait_for_text("Hello.")
        terminal.process.send_signal(getattr(signal, name))
        assert terminal.wait_for_exit() == status
        assert lifeline.wait_until_closed() and terminal.clean


def test_closed_stdout_ends_the_turn(box):
    lifeline = box.create_lifeline()
    child = box.create_fake(["say", lifeline.path, "up"], ["out", TEXT_OUTPUT], ["hang"])
    options = {"cwd": box.cwd, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with start_shim(
        ["run", "-v", "demo", "hi"], env=box.build_environment(SHIM_BIN=child), **options
    ) as process:
        assert process.stdout.readline() == b"> hi\n"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 0
    assert lifeline.wait_until_closed()


# -- permission requests ---------------------------------------------------------------------------


def build_asking_child(box, command="touch x", *, further_steps=()):
    """Create a qwen that asks about a shell command and records its input. `further_steps` are
    further permission requests.
    """
    child_steps = [
        HELLO,
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, calls(command=command), asks(command=command))],
    ]
    child_steps += [["hear", '"control_response"'], *further_steps, ["record", str(box.recording)]]
    return box.create_fake(
        *child_steps,
        ["out", format_ndjson(returns("ok"), says("Done."), result())],
        ["hear", "never"],
    )


def read_decisions(box):
    """Return the answers that the vendor received."""
    lines = map(json.loads, box.read_record()["stdin"].splitlines())
    return [
        line["response"]["response"]["behavior"]
        for line in lines
        if line["type"] == "control_response"
    ]


@pytest.mark.parametrize(
    ("typed", "behaviour"), [("y", "allow"), ("n", "deny"), ("a", "allow"), ("maybe\ny", "allow")]
)
def test_typed_answer_decides_the_permission_prompt(box, keyboard, typed, behaviour):
    with keyboard("run", "-v", "qwen", "hi", SHIM_BIN=build_asking_child(box)) as terminal:
        terminal.wait_for_text("? Allow Bash touch x")
        terminal.wait_for_text("y = yes, n = no, a = always allow Bash(touch x) in this run: ")
        terminal.type_keys(typed + "\n")
        terminal.wait_for_text("allowed after" if behaviour == "allow" else "denied after")
        assert terminal.wait_for_exit() == 0
        assert terminal.clean
    assert read_decisions(box) == [behaviour]


def test_always_answer_allows_a_repeated_call_without_a_prompt(box, keyboard):
    further_steps = [
        ["out", format_ndjson(returns("ok"), calls("call_2"), asks("call_2", question="q2"))],
        ["hear", '"q2"'],
    ]
    with keyboard(
        "run", "-v", "qwen", "hi", SHIM_BIN=build_asking_child(box, further_steps=further_steps)
    ) as terminal:
        terminal.wait_for_text("a = always")
        terminal.type_keys("always\n")
        assert terminal.wait_for_exit() == 0
        assert terminal.plain.count("? Allow") == 1
    assert read_decisions(box) == ["allow", "allow"]


def test_input_typed_before_the_permission_prompt_is_discarded(box, keyboard):
    with keyboard("run", "-v", "qwen", "hi", SHIM_BIN=build_asking_child(box)) as terminal:
        terminal.type_keys("y\ny\n")
        terminal.wait_for_text("n = no")
        terminal.type_keys("n\n")
        assert terminal.wait_for_exit() == 0
    assert read_decisions(box) == ["deny"]


def test_input_typed_during_the_turn_is_not_echoed(box, keyboard):
    gate = box.create_gate()
    child = box.create_fake(["hear", '"user"'], ["out", format_ndjson(INIT, says("I look."))], ["wait", gate.path],
                     ["out", format_ndjson(says("Done."), result("Done."))])  # fmt: skip
    with keyboard("run", "-v", "qwen", "go", SHIM_BIN=child) as terminal:
        terminal.wait_for_text("I look.")
        terminal.type_keys("typed during the turn")
        gate.open()
        assert terminal.wait_for_exit() == 0 and terminal.clean
    assert "typed during" not in terminal.plain


def test_terminal_without_echo_stays_without_echo(box, keyboard):
    child = box.create_fake(
        ["hear", '"user"'], ["out", format_ndjson(INIT, says("Done."), result("Done."))]
    )
    with keyboard("run", "-v", "qwen", "go", echo=False, SHIM_BIN=child) as terminal:
        assert terminal.wait_for_exit() == 0 and terminal.clean


def test_end_of_input_denies_the_permission_prompt(box, keyboard):
    with keyboard("run", "-v", "qwen", "hi", SHIM_BIN=build_asking_child(box)) as terminal:
        terminal.wait_for_text("n = no")
        terminal.type_keys(CTRL_D)
        assert terminal.wait_for_exit() == 0
    assert read_decisions(box) == ["deny"]


def test_ctrl_c_at_a_permission_prompt_interrupts_the_turn(box, keyboard):
    child_steps = [
        HELLO,
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"interrupt"'],
    ]
    child = box.create_fake(*child_steps, ["out", CANCELLED], ["hear", "never"])
    with keyboard("run", "-v", "qwen", "hi", SHIM_BIN=child) as terminal:
        terminal.wait_for_text("n = no")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert "■ interrupted" in terminal.plain
        assert terminal.clean


def test_call_is_denied_without_a_terminal_and_an_allow_rule_is_printed(box):
    done = box.run_shim(
        "run",
        "-v",
        "qwen",
        "hi",
        environment=box.build_environment(SHIM_BIN=build_asking_child(box)),
    )
    output = done.stdout.decode()
    assert done.status == 0 and read_decisions(box) == ["deny"]
    assert "⊘ ended with 1 denied call" in output and "✓ done" not in output
    assert (
        "to allow this call: shim run --allow 'Bash(touch x)' …; on a terminal, `shim run` asks you"
        in output
    )


def test_no_allow_hint_is_printed_for_a_call_denied_by_a_rule(box):
    environment = box.build_environment(SHIM_BIN=build_asking_child(box))
    box.write_settings('[tools]\ndeny = ["Bash(touch:*)"]\n')
    output = box.run_shim("run", "-v", "qwen", "hi", environment=environment).stdout.decode()
    assert "Bash was denied: Bash(touch:*)" in output and "to allow it" not in output


def test_allow_flag_skips_the_permission_prompt(box):
    done = box.run_shim(
        "run",
        "-v",
        "qwen",
        "--allow",
        "Bash(touch x)",
        "hi",
        environment=box.build_environment(SHIM_BIN=build_asking_child(box)),
    )
    assert done.status == 0 and read_decisions(box) == ["allow"]
    assert "✓ done" in done.stdout.decode()


# -- the vendor's input ----------------------------------------------------------------------------


def test_run_uses_the_installed_vendor(box):
    child = box.create_fake(["read"], ["out", ANSWER])
    environment = box.build_environment(SHIM_BIN=child)
    assert (
        box.run_shim(
            "install", "--vendor", "demo", "--to", str(box.bin), environment=environment
        ).status
        == 0
    )
    done = box.run_shim("run", "hi", environment=environment)
    assert done.status == 0 and "Hello." in done.stdout.decode()


def test_run_uses_the_installed_vendor_outside_of_path(box):
    environment = box.build_environment(SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]))
    assert box.run_shim("install", "--vendor", "demo", environment=environment).status == 0
    assert box.run_shim("run", "hi", environment=environment).status == 0


def test_session_is_continued_and_resumed(box):
    answer = format_ndjson(START | {"session": "s1"}, build_text_event("Hello."), END)
    environment = box.build_environment(
        SHIM_BIN=box.create_fake(["read"], ["record", str(box.recording)], ["out", answer])
    )
    assert box.run_shim("run", "-v", "demo", "one", environment=environment).status == 0
    (session,) = (box.state / "sessions").iterdir()
    for args in (("--continue",), ("--resume", session.stem)):
        assert box.run_shim("run", *args, "two", environment=environment).status == 0
        assert box.read_record()["stdin"] == "two"


def test_record_flag_writes_a_recording(box):
    environment = box.build_environment(SHIM_BIN=box.create_fake(["read"], ["out", ANSWER]))
    assert (
        box.run_shim(
            "run", "-v", "demo", "--record", str(box.path / "a.cast"), "hi", environment=environment
        ).status
        == 0
    )
    assert "Hello." in box.run_shim("show", str(box.path / "a.cast")).stdout.decode()


def test_permission_mode_is_passed_to_the_vendor(box):
    done = box.run_shim(
        "run",
        "-v",
        "qwen",
        "--permission-mode",
        "plan",
        "hi",
        environment=box.build_environment(SHIM_BIN=build_asking_child(box)),
    )
    assert done.status == 0
    assert box.read_record()["arguments"].count("plan") == 1


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("-v", "pi"), (), ("-v", "demo", "--permission-mode", "foo")])
def test_turn_that_cannot_start_prints_the_reason_once_and_no_totals(box, args):
    done = box.run_shim("run", *args, "hi")
    output = done.stdout.decode()
    assert done.status == 1
    reason = done.stderr.splitlines()[0]
    assert reason and (output + done.stderr).count(reason) == 1
    assert "░" not in output and "unknown" not in output and "0 tokens" not in output


def test_vendor_error_is_printed_once(box):
    child = box.create_fake(["complain", "no key is set\n"], ["leave", 3])
    done = box.run_shim(
        "run", "-v", "demo", "hi", environment=box.build_environment(SHIM_BIN=child)
    )
    assert done.status == 1
    assert (done.stdout.decode() + done.stderr).count("no key is set") == 1
    assert (
        "✗ failed: the vendor exited with an error" in done.stdout.decode()
        and "░" not in done.stdout.decode()
    )


# -- the demo --------------------------------------------------------------------------------------


@pytest.mark.parametrize("agents", [(), ("qwen",), ("claude", "pi", "qwen")])
def test_demo_prints_the_next_commands_to_type(box, agents):
    for name in agents:
        program = box.bin / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    done = box.run_shim(
        "demo",
        environment=box.build_environment(PATH=str(box.bin), SHIM_BIN=box.create_demo_program()),
    )
    text = " ".join(done.stdout.decode().split())
    assert done.status == 0 and "That was a demo: the `claude` drop-in ran" in text
    expected = (
        f"Found on PATH: {', '.join(agents)}."
        if agents
        else "No agent CLI was found on PATH. Install one"
    )
    assert expected in text
    chosen = next((name for name in agents if name != "claude"), "qwen")
    assert (
        f'shim run -v {chosen} "what is here?"' in text
        and f"shim install --vendor {chosen}" in text
    )
    assert list(box.home.rglob("*.jsonl")) == [] and not (box.state / "sessions").exists()


def test_make_run_installs_without_test_tools_and_prints_a_notice(tmp_path):
    # the tests may run below a make
    argv = ["make", "--no-print-directory", "-n", "run", f"VENV={tmp_path}/venv"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (
        "-e ." in done.stdout
        and "[test]" not in done.stdout
        and "Installing claude-shim" in done.stdout
    )
    assert done.stdout.rstrip().endswith("shim demo")

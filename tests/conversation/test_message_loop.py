"""The message loop: how a turn ends, for every action of the child, the frontend and the signals.

Tests run in this process with a list as the output if the order of events must be certain. They run
through the drop-in if signals and pipes matter.
"""

import contextlib
import json
import os
import signal
import subprocess
from types import SimpleNamespace

import anyio
import pytest
from box import ANSWER, ASK, END, START, STREAM, TIMEOUT_S, build_text_event, format_ndjson
from stream_invariants import check_turns
from stream_lines import find_result, parse_lines
from turn_stage import build_session_state

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.conversation.drivers.per_turn_driver import PerTurnDriver
from shim.conversation.message_loop import MessageLoop
from shim.core.adapter.adapter import VendorShutdownConfig
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.messages import UserMessage
from shim.io.stderr import SILENT_LOG
from shim.io.stdout import FrontendDisconnectedError
from shim.process import child as children
from shim.process.spawn import ChildSpawnResult, spawn_child
from shim.state.config import DEFAULT_TIMEOUTS_S, ShimSettings
from tests.conversation.test_conversation import QWEN, results, user

TALKING = format_ndjson(START, build_text_event("I am "))
PARTIAL = (*ASK, "--include-partial-messages")


class FakeOutput:
    """An output that is a list. `wait_for_disconnect` simulates a disconnected frontend, `blocked`
    one that does not read the end.
    """

    stdout = SimpleNamespace(has_failed=False)

    def __init__(self, *, is_disconnected=False, blocked=False):
        self.written_bytes = b""
        self.ends = 0
        self.ending = anyio.Event()
        self._is_disconnected = is_disconnected
        self._blocked = blocked

    def write_prompt_to_transcript(self, message):
        pass

    async def write_lines(self, data):
        await anyio.lowlevel.checkpoint()
        if self._is_disconnected:
            raise FrontendDisconnectedError("Broken pipe")
        self.written_bytes += data

    async def wait_for_disconnect(self):
        await anyio.sleep_forever()

    async def finish_turn(self, turn):
        self.ending.set()
        if self._blocked:
            await anyio.sleep_forever()
        self.ends += 1

    @property
    def result(self):
        """Return the only result of a stream that satisfies every invariant."""
        (turn,) = check_turns(self.written_bytes, False)
        return find_result(turn)


class FakeLauncher:
    """The attributes of a launcher that a driver needs when the child is already running."""

    replays_user_messages = False
    retries_interrupted_streams = False
    adapter = SimpleNamespace(shutdown=VendorShutdownConfig(), unattended=False)
    resume_state = SimpleNamespace(version_check=VersionCheck())
    context = SimpleNamespace(log=SILENT_LOG, settings=ShimSettings(), cwd="/repo")
    session_state = build_session_state(display_name="demo", session_id="S")

    def __init__(self, translation, exit_timeout_s):
        self._translation = translation
        self.writer = translation.writer
        self.exit_timeout_s = exit_timeout_s
        self.report_file = None
        self.timeouts = dict(DEFAULT_TIMEOUTS_S)

    @property
    def turn_lifecycle(self):
        return self

    def open_child_stream(self, previous_stream, wrap_translator=None, create_stream=None):
        return self._translation

    def store_session(self, translation):
        pass


@pytest.fixture
def play(box):
    """Return a function that runs a turn of a fake child with these steps. It returns the exit
    status and the output.
    """
    started = []

    async def run(
        *child_steps,
        vendor="demo",
        output=None,
        end_grace=5.0,
        stdin=b"",
        translation=None,
        during=None,
    ):
        paper = output or FakeOutput()
        process = spawn_child(
            [box.create_fake(*child_steps)],
            box.build_environment(),
            str(box.cwd),
            opens_stdin=bool(stdin),
        )
        started.append(process)
        launcher = FakeLauncher(
            translation or create_standalone_child_stream(vendor, stable_ids=True), end_grace
        )
        driver = PerTurnDriver(launcher, paper, first_child=ChildSpawnResult(process, stdin))
        session = MessageLoop(driver, paper, first_message=UserMessage("hi"))
        statuses = []

        async def turn():
            statuses.append(await session.run([]))

        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turn)
                if during:
                    await during(paper)
        return statuses[0], paper

    yield run
    for process in started:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the shutdown timeouts, for children that ignore every signal."""
    monkeypatch.setattr(children, "INTERRUPT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(children, "TERMINATE_TIMEOUT_S", 0.05)


# -- how a child ends ------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_text_turn_ends_with_a_success_result(play):
    status, paper = await play(["out", ANSWER])
    assert (status, paper.ends) == (0, 1)
    assert paper.result["result"] == "Hello."
    assert paper.result["shim"]["cause"] == "clean"


@pytest.mark.anyio
async def test_child_killed_during_output_ends_with_a_single_error_result(play):
    status, paper = await play(["out", TALKING], ["die", "SIGKILL"])
    assert status == 1
    assert paper.result["is_error"] is True
    assert paper.result["shim"]["cause"] == "signal"
    assert "SIGKILL" in paper.result["errors"][0]


@pytest.mark.anyio
async def test_nonzero_exit_status_overrides_a_success_event(play):
    status, paper = await play(["out", ANSWER], ["leave", 9])
    assert status == 1
    assert paper.result["shim"]["cause"] == "exit_code"


@pytest.mark.anyio
async def test_missing_end_event_is_an_error_that_quotes_stderr(play):
    status, paper = await play(["fill", 200, 2], ["leave", 0])
    assert status == 1
    assert paper.result["shim"]["cause"] == "truncated"
    assert "nnnn" in paper.result["errors"][0]


@pytest.mark.anyio
async def test_finished_child_that_hangs_is_terminated_and_the_turn_succeeds(play, box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", ANSWER], ["hang"])
    status, paper = await play(*plan, end_grace=0.1)
    assert status == 0
    assert paper.result["result"] == "Hello."
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_cursor_result_is_accepted_if_the_child_hangs_afterwards(play, box):
    lifeline = box.create_lifeline()
    events = [
        {"type": "system", "subtype": "init", "session_id": "s", "cwd": "/repo", "model": "Auto"},
        {
            "type": "assistant",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "PEAR"}]},
        },
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": "PEAR",
            "duration_ms": 5,
        },
    ]
    plan = (["say", lifeline.path, "child"], ["out", format_ndjson(*events)], ["hang"])
    status, paper = await play(*plan, vendor="cursor", end_grace=0.1)
    assert status == 0
    assert paper.result["result"] == "PEAR"
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_finished_child_that_ignores_signals_is_killed_and_the_turn_succeeds(
    play, box, impatient
):
    lifeline = box.create_lifeline()
    plan = (
        ["ignore", "SIGINT", "SIGTERM"],
        ["say", lifeline.path, "child"],
        ["out", ANSWER],
        ["hang"],
    )
    status, paper = await play(*plan, end_grace=0.05)
    assert status == 0
    assert paper.result["is_error"] is False
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_grandchild_in_the_process_group_is_terminated_with_the_turn(play, box):
    lifeline = box.create_lifeline()
    status, paper = await play(["out", ANSWER], ["spawn", lifeline.path, False], ["leave", 0])
    assert status == 0
    assert paper.result["result"] == "Hello."
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_turn_does_not_wait_for_a_grandchild_in_a_separate_session(play, box):
    lifeline = box.create_lifeline()
    status, paper = await play(
        ["spawn", lifeline.path, True], ["out", ANSWER], ["leave", 0], end_grace=0.1
    )
    assert status == 0
    assert paper.result["result"] == "Hello."
    lifeline.wait_for("grandchild")  # the box ends it


@pytest.mark.anyio
async def test_truncated_turn_fails_although_a_grandchild_has_stdout_open(play, box):
    lifeline = box.create_lifeline()
    status, paper = await play(
        ["out", TALKING], ["spawn", lifeline.path, True], ["leave", 0], end_grace=0.1
    )
    assert status == 1
    assert paper.result["shim"]["cause"] == "truncated"


@pytest.mark.anyio
async def test_child_that_closes_stdout_without_exiting_is_terminated(play, box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", ANSWER], ["close", 1], ["hang"])
    status, paper = await play(*plan, end_grace=0.1)
    assert status == 0
    assert paper.result["is_error"] is False
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_event_after_the_result_within_the_grace_period_is_read(play):
    late = format_ndjson({"type": "nobody_knows"})
    status, paper = await play(["out", ANSWER], ["out", late], ["leave", 0])
    assert status == 0
    assert paper.result["shim"]["unknown_events"] == {"nobody_knows": 1}


@pytest.mark.anyio
async def test_large_stderr_output_and_long_prompt_do_not_block_the_turn(play, box):
    prompt = b"p" * 300_000
    plan = (
        ["fill", 1_000_000, 2],
        ["fill", 300_000],
        ["read"],
        ["record", str(box.recording)],
        ["out", ANSWER],
    )
    status, paper = await play(*plan, stdin=prompt)
    assert status == 0
    assert paper.result["result"] == "Hello."
    assert len(box.read_record()["stdin"]) == len(prompt)


# -- errors of the shim, and a disconnected frontend -----------------------------------------------


def build_broken_translation(*names):
    """Build a translation whose methods raise."""
    translation = create_standalone_child_stream("demo", stable_ids=True)

    def fail(*args):
        raise ZeroDivisionError("a bug of ours")

    for name in names:
        setattr(translation, name, fail)
    return translation


@pytest.mark.anyio
async def test_internal_error_is_reported_in_a_single_result_and_ends_the_child(play, box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    status, paper = await play(*plan, translation=build_broken_translation("feed"))
    assert status == 1
    assert paper.result["shim"]["cause"] == "internal"
    assert paper.result["errors"] == ["internal error: ZeroDivisionError('a bug of ours')"]
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_internal_error_before_the_child_starts_is_reported_in_a_single_result():
    def fail(prompt):
        raise ZeroDivisionError("a bug of ours")

    launcher, paper = (
        FakeLauncher(create_standalone_child_stream("demo", stable_ids=True), 5.0),
        FakeOutput(),
    )
    launcher.start = fail
    assert (
        await MessageLoop(
            PerTurnDriver(launcher, paper), paper, first_message=UserMessage("hi")
        ).run([])
        == 1
    )
    assert (paper.result["shim"]["cause"], paper.result["num_turns"]) == ("internal", 0)


@pytest.mark.anyio
async def test_internal_error_in_all_hooks_of_the_session_is_reported_in_a_single_result():
    async def fail(event):
        raise ZeroDivisionError("a bug of ours")

    launcher, paper = (
        FakeLauncher(create_standalone_child_stream("demo", stable_ids=True), 5.0),
        FakeOutput(),
    )
    driver = PerTurnDriver(launcher, paper)
    driver.call_session_hooks = fail
    assert await MessageLoop(driver, paper, first_message=UserMessage("hi")).run([]) == 1
    assert paper.result["errors"] == ["internal error: ZeroDivisionError('a bug of ours')"]


@pytest.mark.anyio
async def test_internal_error_in_the_final_output_ends_the_child(play, box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    with contextlib.suppress(Exception):  # The drop-in writes the remaining lines.
        await play(*plan, translation=build_broken_translation("feed", "close"))
    assert lifeline.wait_until_closed()


@pytest.mark.anyio
async def test_disconnected_frontend_ends_the_child_without_error(play, box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    status, _ = await play(*plan, output=FakeOutput(is_disconnected=True))
    assert status == 0
    assert lifeline.wait_until_closed()


def test_internal_error_before_the_message_loop_ends_the_child(local_box, capfd, monkeypatch):
    from shim.commands.claude import dropin

    def raise_bug(*_):
        raise ZeroDivisionError("a bug of ours")

    lifeline = local_box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["hang"])
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    monkeypatch.setenv("SHIM_BIN", local_box.create_fake(*plan))
    monkeypatch.setattr("shim.io.stdout.Stdout", raise_bug)
    assert dropin.main(list(ASK), {}) == 1
    stdout, _ = capfd.readouterr()
    assert [line["type"] for line in parse_lines(stdout.encode())] == [
        "system",
        "result",
        "message_stop",
    ]
    assert lifeline.wait_until_closed_or_unused()


def test_stdout_closed_at_startup_leaves_no_child(box):
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*plan)}
    with box.start_claude(
        *PARTIAL, environment=environment, preexec_fn=lambda: os.close(1)
    ) as dropin:
        dropin.wait_for_status()
        assert lifeline.wait_until_closed_or_unused()
        assert b"Traceback" not in dropin.process.stderr.read()


def test_stdout_closed_by_the_reader_ends_the_child(box):
    """P19"""
    lifeline = box.create_lifeline()
    plan = (["say", lifeline.path, "child"], ["out", TALKING], ["hang"])
    with box.start_claude(
        *PARTIAL, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*plan)}
    ) as dropin:
        lifeline.wait_for("child")
        dropin.process.stdout.close()
        assert dropin.wait_for_status() == 0
        assert lifeline.wait_until_closed()
        assert dropin.process.stderr.read() == b""


# -- signals ---------------------------------------------------------------------------------------


@pytest.fixture
def talking_dropin(box):
    """Start a drop-in whose child has written half a sentence. The child and its grandchild hold a
    lifeline.
    """
    lifeline = box.create_lifeline()
    child_steps = (
        ["out", TALKING],
        ["spawn", lifeline.path, False],
        ["say", lifeline.path, "child"],
        ["hang"],
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}
    with box.start_claude(*PARTIAL, environment=environment) as dropin:
        dropin.read_until(b'"text":"I am "')
        lifeline.wait_for("child")
        yield dropin, lifeline


def test_interrupt_closes_open_blocks_and_exits_with_status_0(talking_dropin):
    """P17"""
    dropin, lifeline = talking_dropin
    dropin.send_signal(signal.SIGINT)
    done = dropin.wait_for_end()
    (turn,) = check_turns(done.stdout, True)
    assert done.status == 0
    assert find_result(turn)["subtype"] == "error_during_execution"
    (user_line,) = [line for line in turn if line["type"] == "user"]
    assert user_line["message"]["content"] == [
        {"type": "text", "text": "[Request interrupted by user]"}
    ]
    assert lifeline.wait_until_closed()


def test_second_interrupt_has_no_effect(talking_dropin):
    """P17"""
    dropin, lifeline = talking_dropin
    dropin.send_signal(signal.SIGINT)
    dropin.send_signal(signal.SIGINT)
    done = dropin.wait_for_end()
    check_turns(done.stdout, True)
    assert (done.status, done.stderr) == (0, "")
    assert lifeline.wait_until_closed()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_termination_signal_emits_an_error_result_and_ends_the_process_group(
    talking_dropin, number, status
):
    """P13"""
    dropin, lifeline = talking_dropin
    dropin.send_signal(number)
    done = dropin.wait_for_end()
    (turn,) = check_turns(done.stdout, True)
    assert done.status == status
    assert find_result(turn)["is_error"] is True
    assert find_result(turn)["shim"]["cause"] == "signal"
    assert lifeline.wait_until_closed()


def test_sigterm_after_an_interrupt_terminates_the_dropin(box):
    lifeline = box.create_lifeline()
    child_steps = (
        ["ignore", "SIGINT", "SIGTERM"],
        ["out", TALKING],
        ["say", lifeline.path, "child"],
        ["hang"],
    )
    with box.start_claude(
        *PARTIAL, environment={"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}
    ) as dropin:
        dropin.read_until(b'"text":"I am "')
        lifeline.wait_for("child")
        dropin.send_signal(signal.SIGINT)
        dropin.send_signal(signal.SIGTERM)
        done = dropin.wait_for_end()
    check_turns(done.stdout, True)
    assert done.status == 143
    assert lifeline.wait_until_closed()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_signal_is_handled_while_stdout_is_full(box, number):
    lifeline = box.create_lifeline()
    child_steps = (["say", lifeline.path, "child"], ["out", TALKING], ["fill", 500_000], ["hang"])
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"\n" * 65536)
        os.set_blocking(writer, True)
        environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}
        with box.start_claude(*PARTIAL, environment=environment, stdout=writer) as dropin:
            lifeline.wait_for("child")
            dropin.send_signal(number)
            assert dropin.wait_for_status() == 128 + number
            assert lifeline.wait_until_closed()
            assert dropin.process.stderr.read() == b""
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.anyio
async def test_sigterm_is_handled_while_the_end_of_the_turn_is_blocked(play):
    async def stop(paper):
        await paper.ending.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    status, paper = await play(["out", ANSWER], output=FakeOutput(blocked=True), during=stop)
    assert status == 143
    assert len([line for line in parse_lines(paper.written_bytes) if line["type"] == "result"]) == 1


@pytest.mark.anyio
async def test_sigterm_during_the_end_grace_of_a_finished_child_ends_the_child(play, box):
    lifeline = box.create_lifeline()
    child_steps = (["out", ANSWER], ["close", 1], ["say", lifeline.path, "child"], ["hang"])

    async def stop(paper):
        await anyio.to_thread.run_sync(lifeline.wait_for, "child")
        os.kill(os.getpid(), signal.SIGTERM)

    status, paper = await play(*child_steps, end_grace=TIMEOUT_S, during=stop)
    assert status == 143
    assert paper.result
    assert lifeline.wait_until_closed()


def test_sigterm_while_reading_the_prompt_is_reported_and_starts_no_child(box):
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["record", str(box.recording)]),
    }
    # A warning on stderr would come after 3 s. The test waits until the prompt is being read.
    with box.start_claude("-p", *STREAM, stdin=subprocess.PIPE, environment=environment) as dropin:
        dropin.process.stdin.write(b"half a prompt")
        dropin.process.stdin.flush()
        dropin.wait_until_read()
        dropin.send_signal(signal.SIGTERM)
        done = dropin.wait_for_end()
    assert done.status == 143
    assert done.cause == "signal"
    assert not box.recording.exists()


def build_hanging_shell_command(lifeline):
    """Build a shell command that hangs with a lifeline, but only if its input contains "second"."""
    return f'grep -q second && exec 3>{lifeline.path} && echo "command $$" >&3 && exec sleep 60'


def build_hook_settings(event, shell_command):
    hook = {"type": "command", "command": shell_command}
    return json.dumps({"hooks": {event: [{"hooks": [hook]}]}})


def signal_during_hook(box, number, event, output_flags):
    """Send a signal while a hook command runs, before the turn has a stream. Return the ended run."""
    lifeline = box.create_lifeline()
    shell_command = f"echo second | {{ {build_hanging_shell_command(lifeline)}; }}"
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": box.create_fake()}
    args = ("-p", "hi", "--settings", build_hook_settings(event, shell_command), *output_flags)
    with box.start_claude(*args, environment=environment) as dropin:
        lifeline.wait_for("command")
        dropin.send_signal(number)
        done = dropin.wait_for_end()
    assert lifeline.wait_until_closed()
    return done


@pytest.mark.parametrize(
    ("number", "event", "output_flags"),
    [
        (signal.SIGTERM, "UserPromptSubmit", ("--output-format", "json")),
        (signal.SIGHUP, "UserPromptSubmit", STREAM),
        (signal.SIGTERM, "SessionStart", STREAM),
    ],
)
def test_termination_signal_during_a_hook_before_the_stream_ends_in_a_result(
    box, number, event, output_flags
):
    """P13"""
    done = signal_during_hook(box, number, event, output_flags)
    assert (done.status, done.cause, done.stderr) == (128 + number, "signal", "")
    assert done.result["errors"] == [f"the turn was stopped by {number.name}"]


@pytest.mark.parametrize("output_flags", [("--output-format", "json"), STREAM])
@pytest.mark.parametrize("event", ["SessionStart", "UserPromptSubmit"])
def test_sigint_during_a_hook_before_the_stream_ends_in_a_result(box, event, output_flags):
    """P17"""
    done = signal_during_hook(box, signal.SIGINT, event, output_flags)
    assert (done.status, done.cause, done.stderr) == (0, "interrupted", "")


def test_no_prompt_hook_runs_after_sigint(box):
    lifeline = box.create_lifeline()
    marker = box.path / "prompted"
    shell_commands = {
        "SessionStart": f"echo second | {{ {build_hanging_shell_command(lifeline)}; }}",
        "UserPromptSubmit": f"touch {marker}",
    }
    hooks = {
        event: [{"hooks": [{"type": "command", "command": shell_command}]}]
        for event, shell_command in shell_commands.items()
    }
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": box.create_fake()}
    args = ("-p", "hi", "--settings", json.dumps({"hooks": hooks}), *STREAM)
    with box.start_claude(*args, environment=environment) as dropin:
        lifeline.wait_for("command")
        dropin.send_signal(signal.SIGINT)
        done = dropin.wait_for_end()
    assert (done.status, done.cause, marker.exists()) == (0, "interrupted", False)


def test_sigterm_during_a_prompt_hook_of_the_second_turn_ends_in_a_second_result(box):
    lifeline = box.create_lifeline()
    settings = build_hook_settings("UserPromptSubmit", build_hanging_shell_command(lifeline))
    child = box.create_fake(["serve"], ["out", QWEN], ["hang"])
    with box.start_conversation(child, "--settings", settings, vendor="qwen") as dropin:
        dropin.send_lines(user("first"))
        dropin.read_line_containing(b'"type":"result"')
        dropin.send_lines(user("second"))
        lifeline.wait_for("command")
        dropin.send_signal(signal.SIGTERM)
        done = dropin.wait_for_end()
    assert done.status == 143
    first, second = results(done)
    assert first["result"] == "Hello."
    assert second["shim"]["cause"] == "signal"
    assert first["session_id"] == second["session_id"]


def test_sigterm_during_the_shell_code_of_a_command_ends_in_a_result(box):
    lifeline = box.create_lifeline()
    folder = box.cwd / ".claude/commands"
    folder.mkdir(parents=True)
    (folder / "slow.md").write_text(
        f"!`echo second | {{ {build_hanging_shell_command(lifeline)}; }}`"
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    args = ("-p", "/slow", *STREAM, "--dangerously-skip-permissions")
    with box.start_claude(*args, environment=environment) as dropin:
        lifeline.wait_for("command")
        dropin.send_signal(signal.SIGTERM)
        done = dropin.wait_for_end()
    assert (done.status, done.cause) == (143, "signal")


def test_two_sigterms_before_the_child_starts_produce_a_single_result(
    local_box, capfd, monkeypatch
):
    from shim.commands.claude import dropin, refusal
    from shim.conversation import startup

    def tell(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        return original_function()

    original_function = refusal.create_session_ids
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    monkeypatch.setattr(startup, "read_prompt", tell)
    # The second signal comes while the result of the first is created.
    monkeypatch.setattr(refusal, "create_session_ids", tell)
    assert dropin.main(list(ASK), {}) == 143
    stdout, complaint = capfd.readouterr()
    assert [line["type"] for line in parse_lines(stdout.encode())] == [
        "system",
        "result",
        "message_stop",
    ]
    assert complaint == ""


def test_ignored_sighup_stays_ignored(box):
    first, second = box.create_gate(), box.create_gate()
    child_steps = (
        ["out", TALKING],
        ["wait", first.path],
        ["out", format_ndjson(build_text_event("still "))],
        ["wait", second.path],
        ["out", format_ndjson(build_text_event("here."), END)],
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}

    def nohup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with box.start_claude(*PARTIAL, environment=environment, preexec_fn=nohup) as dropin:
        dropin.read_until(b'"text":"I am "')
        first.open()
        # By now the loop has waited, and it handles its own signals.
        dropin.read_until(b'"text":"still "')
        dropin.send_signal(signal.SIGHUP)
        second.open()
        done = dropin.wait_for_end()
    assert done.status == 0
    assert done.result["result"] == "I am still here."

"""A frontend that is let in to its session, or waits for a host that ends."""

import signal

import anyio
import pytest

from shim.bridge.attach import host_joiner
from shim.bridge.client import HostUnavailableError
from shim.bridge.registry import SessionRecord
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.io.signals import SignalRecorder, StartInterruptedError
from shim.state.config import ShimSettings

RECORD = SessionRecord("0123abcd-0000-4000-8000-000000000001", "/gone", True, {"pid": 1})


@pytest.fixture
def joiner(monkeypatch):
    """A joiner whose host does not exit soon."""
    monkeypatch.setattr(
        host_joiner.registry, "is_session_running", lambda session, environment: True
    )
    monkeypatch.setattr(host_joiner, "HOST_EXIT_TIMEOUT_S", 0.5)
    return host_joiner.BackgroundSessionAttacher(
        RECORD, parse_argv([]), ShimSettings(), owns_host=False
    )


def test_signal_aborts_the_join_while_waiting_for_a_host_to_exit(joiner, monkeypatch):
    async def raise_host_error(session, environment, **hello):
        raise HostUnavailableError(session)

    signals = SignalRecorder()
    signals.pending_signals.append(signal.SIGTERM)
    monkeypatch.setattr(host_joiner, "connect_to_session", raise_host_error)
    with pytest.raises(StartInterruptedError):
        joiner.join_and_run_conversation(signals, None, None)


@pytest.mark.anyio
async def test_event_loop_runs_while_waiting_for_a_host_to_exit(joiner, monkeypatch):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joiner._wait_for_host_exit, SignalRecorder())
        await anyio.sleep(0)
        monkeypatch.setattr(
            host_joiner.registry, "is_session_running", lambda session, environment: False
        )


CONVERSATION = ("--input-format", "stream-json", "--output-format", "stream-json")


def build_joiner(*argv):
    return host_joiner.BackgroundSessionAttacher(
        RECORD, parse_argv(argv), ShimSettings(), owns_host=False
    )


def test_wider_mode_that_the_vendor_lacks_is_reported_to_a_conversation(capfd):
    """claude-agent-acp starts with the mode auto, and then chooses another one."""
    build_joiner(*CONVERSATION)._report_refused_mode("auto", "default", "it lacks auto")
    assert capfd.readouterr().err.endswith(
        "the session 0123abcd stays in the mode default: it lacks auto\n"
    )


@pytest.mark.parametrize(
    ("argv", "mode", "current_mode"),
    [
        ((), "auto", "default"),
        (CONVERSATION, "plan", "default"),
        (CONVERSATION, "bypassPermissions", "default"),
    ],
    ids=["one-shot mode", "stricter mode", "bypass mode"],
)
def test_other_refused_mode_refuses_the_join(argv, mode, current_mode):
    with pytest.raises(FrontendError) as refusal:
        build_joiner(*argv)._report_refused_mode(mode, current_mode, "no such mode")
    assert f"--permission-mode {mode} was refused: no such mode" in str(refusal.value)
    assert "--fork-session" in refusal.value.hint

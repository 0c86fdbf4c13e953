"""A frontend joins its session, or waits for a host that is exiting."""

import json
import signal
from collections import deque

import anyio
import pytest
from hub_harness import Play

from shim.bridge import registry
from shim.bridge.attach import host_joiner
from shim.bridge.attach.frontend_bridge import FrontendSessionBridge
from shim.bridge.attach.turn_filter import FrontendOutputOptions
from shim.bridge.client import HostUnavailableError
from shim.bridge.registry import SessionRecord
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError, StartInterruptedError
from shim.core.policy.serialize import serialize_settings
from shim.core.policy.settings import ClaudeSettings
from shim.io.signals import SignalRecorder
from shim.state.config import ShimSettings

RECORD = SessionRecord("0123abcd-0000-4000-8000-000000000001", "/gone", True, {"pid": 1})


@pytest.fixture
def joiner(monkeypatch):
    """Return a joiner whose host does not exit soon."""
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


class EndedHostConnection:
    """A connection to a host that ends after its welcome."""

    session_id = RECORD.session_id

    def __init__(self, can_send):
        self.welcome = {"kind": "welcome", "knows": ["response"]}
        self.can_send = can_send

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def send_frame(self, frame):
        if not self.can_send:
            raise HostUnavailableError(self.session_id)

    async def wait_for_host_answer(self, answer):
        return await answer

    async def __aiter__(self):
        for frame in ():
            yield frame


@pytest.mark.parametrize("can_send", [True, False])
def test_session_is_resumed_if_its_host_ends_during_the_join(joiner, monkeypatch, can_send):
    async def connect(session, environment, **hello):
        return EndedHostConnection(can_send)

    monkeypatch.setattr(host_joiner, "connect_to_session", connect)
    monkeypatch.setattr(
        host_joiner.registry, "is_session_running", lambda session, environment: False
    )
    with pytest.raises(host_joiner.SessionHostEndedError):
        joiner.join_and_run_conversation(SignalRecorder(), None, None)


CONVERSATION = ("--input-format", "stream-json", "--output-format", "stream-json")


def build_joiner(*argv):
    return host_joiner.BackgroundSessionAttacher(
        RECORD, parse_argv(argv), ShimSettings(), owns_host=False
    )


def test_wider_mode_that_the_vendor_lacks_is_reported_to_a_conversation(capfd):
    """claude-agent-acp starts with the mode auto, and then chooses another mode."""
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


# -- a join while another client changes the session -----------------------------------------------

FRONTEND, TERMINAL = 2, 1


class PlayConnection:
    """A frontend's connection to a hub in memory. Its conversation carries out all requests.

    `before_reload` runs when the frontend asks the host to reload the settings.
    """

    def __init__(self, play, before_reload):
        self.play = play
        self.before_reload = before_reload
        self.requests = []
        self.frames = deque()
        (self.welcome, *_) = play.join_client(FRONTEND, client="claude", replay=False)

    async def send_frame(self, frame):
        if frame["kind"] == "request":
            self.before_reload()
        fields = {key: value for key, value in frame.items() if key != "kind"}
        self.play.send_frame(FRONTEND, frame["kind"], **fields)
        answer_requests(self.play, self.requests)

    async def wait_for_host_answer(self, answer):
        return await answer

    async def __aiter__(self):
        self.frames += self.play.read_frames(FRONTEND)
        while self.frames:
            frame = self.frames.popleft()
            yield {**frame, "raw": json.dumps(frame.get("line")).encode()}


def answer_requests(play, requests):
    """Carry out the pending requests, and add them to `requests`."""
    for line in play.take_requests():
        request = line["request"]
        requests.append(request)
        body = {key: request[key] for key in ("mode", "model") if key in request}
        if request["subtype"] == "reload_settings":
            body = {"settings": serialize_settings(ClaudeSettings())}
        response = {"subtype": "success", "request_id": line["request_id"], "response": body}
        play.feed_stdout({"type": "control_response", "response": response})


@pytest.fixture
def join_during(tmp_path, monkeypatch):
    """Join a session, during whose join another client sends frames. Return the connection."""
    monkeypatch.setenv("HOME", str(tmp_path))
    registry.write_session_start_data(str(tmp_path), {"arguments": []})
    record = RECORD._replace(folder=str(tmp_path), metadata={"cwd": str(tmp_path)})

    def join_during(frames, *argv, **session):
        play = Play(**session)
        play.join_client(TERMINAL)
        requests = []

        def send_terminal_frames():
            for kind, fields in frames:
                play.send_frame(TERMINAL, kind, **fields)
            answer_requests(play, requests)

        connection = PlayConnection(play, send_terminal_frames)
        attacher = host_joiner.BackgroundSessionAttacher(
            record, parse_argv(argv), ShimSettings(), owns_host=False
        )
        ids = (f"id-{number}" for number in range(100))
        frontend = FrontendSessionBridge(
            FrontendOutputOptions(), "s", lambda: next(ids), can_answer=True
        )
        frontend.on_host_frame(connection.welcome)
        connection.error = None
        try:
            anyio.run(attacher._join_session, connection, frontend)
        except FrontendError as error:
            connection.error = error
        return connection

    return join_during


def test_mode_and_model_are_set_although_another_client_changed_them_during_the_join(join_during):
    frames = [("mode", {"mode": "acceptEdits"}), ("model", {"model": "large"})]
    flags = ("--permission-mode", "plan", "--model", "small")
    connection = join_during(frames, *flags, mode="plan", model="small")
    session = connection.play.hub.session
    assert (connection.error, session.mode, session.model) == (None, "plan", "small")


@pytest.mark.parametrize("flags", [("--permission-mode", "acceptEdits"), ("--model", "small")])
def test_joining_frontend_does_not_take_control_of_a_turn_that_another_client_started(
    join_during, flags
):
    message = {"id": "m", "message": {"role": "user", "content": "go"}}
    connection = join_during([("message", message)], *flags)
    assert isinstance(connection.error, host_joiner.SessionBusyError)
    assert "c1 has control and a turn is running" in str(connection.error)
    hub = connection.play.hub
    assert (hub.roles.controller_name, hub.session.mode) == ("c1", "default")


def test_host_refuses_control_if_a_turn_starts_at_the_last_moment(join_during, monkeypatch):
    monkeypatch.setattr(
        host_joiner.BackgroundSessionAttacher, "_check_is_joinable", lambda *arguments: None
    )
    message = {"id": "m", "message": {"role": "user", "content": "go"}}
    connection = join_during([("message", message)], "--permission-mode", "plan")
    assert isinstance(connection.error, host_joiner.SessionBusyError)
    assert "c1 has control and a turn is running" in str(connection.error)


def test_refused_bypass_mode_leaves_control_with_the_other_client(join_during):
    connection = join_during([], "--permission-mode", "bypassPermissions")
    assert "bypassPermissions was refused: bypassPermissions can be" in str(connection.error)
    assert connection.play.hub.roles.controller_name == "c1"

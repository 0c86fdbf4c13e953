"""Any interleaving of any number of clients with a hub, against a plain model of the hub.

The limits are small, so that a few lines are a flood. These invariants hold for all actions of the
clients, the conversation, the log and the clock:

    every client has received each line of the log once and in order, except after a reported gap,
        after which the log is sent again
    a partial line goes only to clients that received the block from its start
    a client that has read everything has the true state: the last line, the open questions, the
        status, the controller
    a question is resolved exactly once, by a permitted client, and all clients receive the same
    a client without permission never gets control, and the conversation receives nothing twice
    nothing is sent that is not in the log
    each call of a hook is decided once, by the client that brought the hook, or denied
        if that client has disconnected
    the conversation is in the mode that the last client with control has chosen
    what waits for a client is bounded

    python -m fuzzing.hub_interleavings EXAMPLES
"""

from __future__ import annotations

import json
import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

if __name__ == "__main__":
    for folder in (
        Path(__file__).resolve().parents[1] / "support",
        Path(__file__).resolve().parents[2],
    ):
        sys.path.insert(1, str(folder))

from hub_harness import Frame, MemoryLog, Play, build_user_message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shim.core.bridge import client, partial_block, prompts, subscribers
from shim.core.bridge.commands import ReadLogCommand, SessionHubCommand
from shim.core.bridge.handlers import on_client_frame

SMALL = {  # module, limit → its value here
    (client, "MAX_QUEUED_LINES"): 6,
    (client, "MAX_QUEUED_BYTES"): 2000,
    (subscribers, "MAX_BATCH_LINES"): 4,
    (subscribers, "MAX_BATCH_BYTES"): 700,
    (subscribers, "MAX_RECENT_BYTES"): 1500,
    (partial_block, "MAX_BLOCK_BYTES"): 900,
    (prompts, "MAX_OPEN_PROMPTS"): 4,
}
MAX_CLIENT_LINES = 6 + 10  # for one client: its queue and what was sent at once
# Its queue, a batch with a line, a block, and a few small frames.
MAX_CLIENT_BYTES = 2000 + 700 + 2700 + 900 + 700
PROMPT_TIMEOUT_S = 30.0
PEERS = 6
IDS = [f"{number}1111111-0000-4000-8000-000000000000" for number in range(3)] + ["m1", "m2"]
SHORT = 10  # characters of an id that is not a UUID
NAMES = ["q1", "q2", "q3", "q4", "q5", "q6"]
NONSENSE = [b"x", b"{}", b'{"kind":"odd"}', b'{"kind":"answer","question":"nobody-s"}']
peers = st.integers(0, PEERS - 1)
seldom = st.integers(0, 7)  # 0 means: it happens
mostly = st.sampled_from([True, True, True, False])


class Peer:
    """A client that records what it received and reports what it should not have received."""

    def __init__(
        self, number: int, name: str, drives: bool, partial: bool, cursor: tuple[int, int] | None
    ) -> None:
        self.number = number
        self.name = name
        self.drives = drives
        self.partial = partial
        self.generation, self.cursor = cursor or (0, 0)
        self.expected = cursor
        self.welcomed = self.synced = self.has_left = False
        self.deaf = False
        self.sync_position = -1
        self.believes: set[str] = set()
        self.state: Frame = {}
        self.driver: str | None = None
        self.block: int | None = None  # the number of the next part of the open block
        # whether it has received no partial line since it connected or since a gap
        self.fresh = False
        self.unread_bytes = b""


class BrokenError(AssertionError):
    """An invariant does not hold."""


def require(so: object, *details: object) -> None:
    if not so:
        raise BrokenError(" ".join(map(str, details)))


class SlowLog(Play):
    """A host whose log answers later. `reads` are the commands that wait for an answer."""

    def __init__(self, log: MemoryLog, message_keys: list[str], owner: bool) -> None:
        self.reads: deque[ReadLogCommand] = deque()
        self.slow = False
        self.sent_frames: list[Frame] = []
        super().__init__(
            log,
            message_keys,
            prompt_timeout_s=PROMPT_TIMEOUT_S,
            answer_policy="owner" if owner else "any",
        )

    def _run_command(self, command: SessionHubCommand) -> None:
        if isinstance(command, ReadLogCommand) and self.slow:
            self.reads.append(command)
        else:
            super()._run_command(command)

    def answer_reads(self, count: int) -> None:
        """Answer `count` reads."""
        for _ in range(min(count, len(self.reads))):
            super()._run_command(self.reads.popleft())
        self.run_commands()


class Bridge(RuleBasedStateMachine):
    """The state machine. Hypothesis draws the next step."""

    def __init__(self) -> None:
        super().__init__()
        self._limits = ExitStack()
        for (module, name), value in SMALL.items():
            self._limits.enter_context(patch.object(module, name, value))
        self.log = MemoryLog()
        self.number = 0  # of all clients so far
        self.line_count = 0
        self.part: int | None = None  # of the open block
        self.messages: list[str] = []  # the keys of the messages that the conversation received
        self.accepted_messages: list[Frame] = []  # messages that were sent and are pending
        self.owner = False
        self.inherited_numbers: dict[int, int] = {}
        self.peers: dict[int, Peer] = {}
        self.former_cursors: list[tuple[int, int]] = []  # cursors of disconnected clients
        self._start_host()

    @initialize(owner=st.booleans(), second=st.booleans())
    def add_first_peers(self, owner: bool, second: bool) -> None:
        """Connect two clients."""
        self.owner = owner
        self._start_host()
        self._add_peer(True, True, True, 0)
        self._add_peer(second, True, True, 0)

    def teardown(self) -> None:
        self._limits.close()

    def _start_host(self) -> None:
        """Start a host for the session again."""
        # Short keys are known to one life of the host only.
        self.messages = [key for key in self.messages if len(key) > SHORT]
        self.play = SlowLog(self.log, self.messages, self.owner)
        # The life of the host → the number of the last line of the lives before it.
        self.inherited_numbers[self.log.generation] = self.log.last
        self.open: dict[str, None] = {}
        self.resolved: dict[str, tuple[str | None, str]] = {}
        self.driver: Peer | None = None
        self.last_driver: Peer | None = None
        self.since: dict[str, float] = {}
        # The clients whose hooks are active; None for a disconnected client.
        self.judges: dict[int, Peer | None] = {}
        # the mode that the clients chose, and the mode of the conversation
        self.chosen = self.mode = "default"
        self.calls: dict[str, Peer] = {}  # the calls that a hook was asked about
        self.unanswerable: list[str] = []  # questions that no client could answer
        self.part = None
        self.accepted_messages = []

    # -- the model ---------------------------------------------------------------------------------

    def _set_controller(self, peer: Peer | None) -> None:
        if peer is not self.driver:
            self.last_driver = peer or self.driver
            self.driver = peer
            self._deny_unanswerable_prompts()

    def _can_answer(self, peer: Peer) -> bool:
        return peer.drives and (not self.owner or (self.driver or self.last_driver) is peer)

    def _deny_unanswerable_prompts(self) -> None:
        """Deny what only a controller that cannot answer could have answered."""
        if self.driver is None or not self.driver.deaf:
            return
        if not any(self._can_answer(peer) and not peer.deaf for peer in self.peers.values()):
            for question in list(self.open):
                self._resolve_prompt(question, None, "deny")
                self.unanswerable.append(question)

    def _resolve_prompt(self, question: str, by: str | None, how: str) -> None:
        require(question in self.open, "settled twice", question)
        del self.open[question]
        self.resolved[question] = (by, how)

    def _take_input(self) -> list[Frame]:
        """Return what the conversation received since the last call, without the denials of
        unanswerable questions.

        The conversation applies a setting at once.
        """
        lines = list[Frame]()
        while self.play.stdin:
            line = self.play.stdin.pop(0)
            if not self._accept_setting(line):
                lines.append(line)
        denied_ids, self.unanswerable = self.unanswerable, []
        denials = [
            line for line in lines if line.get("response", {}).get("request_id") in denied_ids
        ]
        require(
            [line["response"]["request_id"] for line in denials] == denied_ids,
            "unheard",
            denied_ids,
            denials,
        )
        require(
            all(line["response"]["response"]["behavior"] == "deny" for line in denials), denials
        )
        return [line for line in lines if line not in denials]

    def _accept_setting(self, line: Frame) -> bool:
        request = line.get("request", {})
        if request.get("subtype") != "set_permission_mode":
            return False
        self.mode = request["mode"]
        body = {"mode": self.mode}
        response = {"subtype": "success", "request_id": line["request_id"], "response": body}
        self.play.feed_stdout({"type": "control_response", "response": response})
        return True

    def _check_no_input(self) -> None:
        lines = self._take_input()
        require(not lines, "the conversation was told", lines)

    def _pick_peer(self, index: int) -> Peer:
        present = list(self.peers.values())
        return present[index % len(present)]

    # -- clients -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.peers) < PEERS)
    @rule(drives=st.booleans(), partial=mostly, history=mostly, back=st.integers(0, 3))
    def connect_peer(self, drives: bool, partial: bool, history: bool, back: int) -> None:
        """Connect a client: a new one, one with its former cursor, or one with an invalid
        cursor.
        """
        self._add_peer(drives, partial, history, back)

    def _add_peer(self, drives: bool, partial: bool, history: bool, back: int) -> None:
        self.number += 1
        cursor = None
        if back and self.former_cursors:
            cursor = self.former_cursors[-back % len(self.former_cursors)]
        if back == 3:
            cursor = (self.log.generation, self.log.last + 1)
        peer = Peer(self.number, "", drives, partial, cursor)
        if not history:
            peer.cursor = self.log.last
        peer.expected = cursor if history else None
        after = None if cursor is None else {"generation": cursor[0], "number": cursor[1]}
        self.play.hub.add_client(peer.number)
        peer.sync_position = self.log.last
        keys: Frame = {
            "protocol": 1,
            "client": "c",
            "role": "drive" if drives else "watch",
            "after": after,
        }
        self.play.send_frame(
            peer.number, "hello", **keys, partial=partial, replay=history, knows=["ask"]
        )
        self.peers[peer.number] = peer
        if drives and self.driver is None:
            self._set_controller(peer)
        self._check_no_input()

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers, reads=st.booleans(), how_often=seldom)
    def disconnect_peer(self, peer_index: int, reads: bool, how_often: int) -> None:
        """Disconnect a client, with or without reading first."""
        if how_often:
            return
        peer = self._pick_peer(peer_index)
        if reads:
            self._read_frames(peer, 1000)
        del self.peers[peer.number]
        self.former_cursors.append((peer.generation, peer.cursor))
        self.play.remove_client(peer.number)
        if self.driver is peer:
            self._set_controller(None)
        if peer.number in self.judges:
            self.judges[peer.number] = None
        require(
            self.play.hub.is_busy or not self.accepted_messages, "a message waits, and nothing runs"
        )
        open_calls = [call for call, owner in self.calls.items() if owner is peer]
        self.calls = {call: owner for call, owner in self.calls.items() if owner is not peer}
        self._deny_unanswerable_prompts()
        self._check_denied(open_calls)
        if self.judges:
            self.ask_hook(0)

    def _check_denied(self, calls: list[str]) -> None:
        responses = [line["response"] for line in self._take_input()]
        require(
            [response["request_id"] for response in responses] == calls,
            "calls",
            calls,
            "and the answers",
            responses,
        )
        for response in responses:
            require(
                response["response"]["hookSpecificOutput"]["permissionDecision"] == "deny",
                "not denied",
                response,
            )

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers, most=st.sampled_from([1, 300, 100_000]), times=st.integers(1, 5))
    def read_part(self, peer_index: int, most: int, times: int) -> None:
        """Let a client read some of its queue."""
        peer = self._pick_peer(peer_index)
        for _ in range(times):
            self._read_frames(peer, most)

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers)
    def read_all(self, peer_index: int) -> None:
        """Let a client read its whole queue. It then has the true state."""
        peer, play = self._pick_peer(peer_index), self.play
        self.advance_time(0)
        while peer.number in play.hub.list_ready_clients() or any(
            read.client_number == peer.number for read in play.reads
        ):
            self._read_frames(peer, 100_000)
            play.answer_reads(len(play.reads))
        require(peer.cursor == self.log.last, "at", peer.cursor, "of", self.log.last)
        require(peer.synced, "never in sync")
        require(peer.believes == set(self.open), "believes", peer.believes, "open", set(self.open))
        require(
            peer.driver == play.hub.roles.controller_name,
            "believes that",
            peer.driver,
            "drives",
            play.hub.roles.controller_name,
        )
        # A frame also contains the model and the mode.
        now = {key: peer.state.get(key) for key in play.hub.build_status_fields()}
        require(
            now == play.hub.build_status_fields(),
            "state",
            peer.state,
            play.hub.build_status_fields(),
        )
        if peer.partial and self.part is not None and peer.block is not None:
            require(
                peer.block == self.part, "the block is at", self.part, "and it was told", peer.block
            )

    # -- the conversation --------------------------------------------------------------------------

    @rule(
        count=st.sampled_from([1, 2, 3, 9]),
        size=st.sampled_from([5, 200, 2500]),
        together=st.booleans(),
    )
    def add_lines(self, count: int, size: int, together: bool) -> None:
        """Add full lines, at once or one by one. One of them has all of the open block."""
        made = []
        for _ in range(count if size < 2500 else 1):
            self.line_count += 1
            made.append(
                {"type": "system", "subtype": "status", "said": self.line_count, "text": "x" * size}
            )
        self.play.feed_stdout(*made) if together else [self.play.feed_stdout(line) for line in made]

    @rule(parts=st.integers(1, 4), size=st.sampled_from([5, 300]))
    def add_block_parts(self, parts: int, size: int) -> None:
        """Add partial lines: start a block or continue it."""
        for _ in range(parts):
            if self.part is None:
                self._emit_event("message_start")
                self._emit_event("content_block_start")
                self.part = 0
            else:
                self._emit_event("content_block_delta", part=self.part, text="x" * size)
                self.part += 1

    @precondition(lambda self: self.part is not None)
    @rule(has_full_line=st.booleans())
    def end_block(self, has_full_line: bool) -> None:
        """Send the full line of a block, then its last partial line."""
        if has_full_line:
            self.play.feed_stdout(
                {"type": "assistant", "parent_tool_use_id": None, "message": {"content": []}}
            )
        self._emit_event("content_block_stop")
        self._emit_event("message_stop")
        self.part = None

    def _emit_event(self, kind: str, **keys: object) -> None:
        self.play.feed_stdout(
            {"type": "stream_event", "event": {"type": kind, **keys}, "parent_tool_use_id": None}
        )

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from([5, 1500]))
    def ask_permission(self, name: str, size: int) -> None:
        """Ask for permission. Each question has a new id."""
        prompt_id = (
            f"{name}-{self.line_count}-{len(self.resolved)}-{len(self.open)}-{self.log.generation}"
        )
        if prompt_id in self.resolved or prompt_id in self.open:
            return
        self.play.ask_permission(prompt_id, text="x" * size)
        if len(self.open) < SMALL[prompts, "MAX_OPEN_PROMPTS"]:
            self.open[prompt_id] = None
            self.since[prompt_id] = self.play.seconds
            self._deny_unanswerable_prompts()
            self._check_no_input()
        else:
            (response,) = self.play.take_responses()
            require(
                response["response"]["behavior"] == "deny", "one question too many was not denied"
            )

    @precondition(lambda self: self.judges)
    @rule(which=st.integers(0, 9))
    def ask_hook(self, which: int) -> None:
        """Ask a hook about a call."""
        number = list(self.judges)[which % len(self.judges)]
        owner = self.judges[number]
        self.line_count += 1
        call = f"call-{self.line_count}"
        request = {
            "subtype": "hook_callback",
            "callback_id": f"{number}/h",
            "input": {"hook_event_name": "PreToolUse"},
        }
        self.play.feed_stdout({"type": "control_request", "request_id": call, "request": request})
        if owner is not None:
            self.calls[call] = owner
            self._check_no_input()
        else:
            self._check_denied([call])

    @precondition(lambda self: self.open)
    @rule(prompt_index=st.integers(0, 9))
    def cancel_prompt(self, prompt_index: int) -> None:
        """Cancel a question of the conversation."""
        question = list(self.open)[prompt_index % len(self.open)]
        self._resolve_prompt(question, None, "cancelled")
        self.play.feed_stdout({"type": "control_cancel_request", "request_id": question})
        self._check_no_input()

    @rule(failed=st.booleans())
    def end_turn(self, failed: bool) -> None:
        """Replay the accepted messages and send a result."""
        for question in list(self.open):
            self._resolve_prompt(question, None, "ended")
        for message in self.accepted_messages:
            self.play.feed_stdout({**message, "isReplay": True})
        self.accepted_messages = []
        self.part = None
        self.play.feed_stdout(
            {"type": "result", "subtype": "success", "is_error": failed, "result": "done"}
        )
        self._check_no_input()
        require(not self.play.hub.is_busy, "runs after its end")

    @rule(seconds=st.sampled_from([1, 20, 31]))
    def advance_time(self, seconds: int) -> None:
        """Advance the clock. Questions that wait too long are denied."""
        self.play.seconds += seconds
        late = [
            question
            for question in self.open
            if self.play.seconds - self.since[question] >= PROMPT_TIMEOUT_S
        ]
        for question in late:
            self._resolve_prompt(question, None, "timeout")
        self.play.hub.apply_timeouts_and_report_changes()
        self.play.run_commands()
        denied = [line["response"] for line in self._take_input()]
        require(
            [response["request_id"] for response in denied] == late, "denied", denied, "late", late
        )

    # -- messages of clients -----------------------------------------------------------------------

    @precondition(lambda self: self.peers)
    @rule(
        peer_index=peers,
        message_id=st.sampled_from([None, *IDS]),
        repeats=st.booleans(),
        takes=st.booleans(),
    )
    def send_message(
        self, peer_index: int, message_id: str | None, repeats: bool, takes: bool
    ) -> None:
        """Send a message of a client: perhaps one that was sent before, perhaps twice."""
        peer = self._pick_peer(peer_index)
        if takes:
            self.change_controller(peer_index, "take")
        for _ in range(1 + repeats):
            keys = {} if message_id is None else {"id": message_id}
            is_duplicate = message_id in self.messages
            may = peer.drives and self.driver in (None, peer)
            self.play.send_frame(peer.number, "message", message=build_user_message(), **keys)
            if may and not is_duplicate:
                self._set_controller(peer)
            lines = self._take_input()
            if is_duplicate or not may:
                require(not lines, "told", lines)
                continue
            (line,) = lines
            require(line["type"] == "user" and line["message"] == build_user_message(), line)
            if message_id is not None:
                self.messages.append(message_id)
                require(
                    len(message_id) <= SHORT or line["uuid"] == message_id, "another uuid", line
                )
            self.accepted_messages.append(line)

    @precondition(lambda self: self.peers and (self.open or self.resolved))
    @rule(peer_index=peers, which=st.integers(0, 9), allow=st.booleans())
    def answer_prompt(self, peer_index: int, which: int, allow: bool) -> None:
        """Answer a question: an open one or a resolved one."""
        peer = self._pick_peer(peer_index)
        prompt_ids = [*self.open, *self.resolved]
        question = prompt_ids[which % len(prompt_ids)]
        may = self._can_answer(peer)
        how = "allow" if allow else "deny"
        if may and question in self.open:
            self._resolve_prompt(question, find_peer_name(self, peer), how)
            expected_count = 1
        else:
            expected_count = 0
        self.play.send_frame(peer.number, "answer", question=question, decision={"behavior": how})
        lines = self._take_input()
        require(len(lines) == expected_count, "answers", lines)
        for line in lines:
            require(line["response"]["request_id"] == question, line)
            require(line["response"]["response"]["behavior"] == how, line)

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers)
    def interrupt_turn(self, peer_index: int) -> None:
        """Interrupt the turn of a client. Every open question is cancelled."""
        peer = self._pick_peer(peer_index)
        if peer.drives:
            for question in list(self.open):
                self._resolve_prompt(question, find_peer_name(self, peer), "interrupt")
        self.play.send_frame(peer.number, "interrupt")
        lines = self._take_input()
        require(len(lines) == peer.drives, "interrupts", lines)

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers, kind=st.sampled_from(["take", "release", "deaf"]))
    def change_controller(self, peer_index: int, kind: str) -> None:
        """Let a client take control, release it, or stop answering."""
        peer = self._pick_peer(peer_index)
        if kind == "deaf":
            peer.deaf = True
            self._deny_unanswerable_prompts()
        if peer.drives and kind == "take":
            self._set_controller(peer)
        elif kind == "release" and self.driver is peer:
            self._set_controller(None)
        self.play.send_frame(peer.number, kind)
        self._check_no_input()

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers, kind=st.sampled_from(["model", "mode", "end", "odd"]))
    def send_command(self, peer_index: int, kind: str) -> None:
        """Send a command that needs control, or a meaningless frame."""
        peer = self._pick_peer(peer_index)
        if kind == "odd":
            for raw in NONSENSE:
                on_client_frame(self.play.hub, peer.number, raw)
        may = kind != "odd" and peer.drives and self.driver in (None, peer)
        ends = len(self.play.ended_by)
        self.play.send_frame(peer.number, kind, model="m", mode="acceptEdits")
        effect_count = len(self._take_input()) + len(self.play.ended_by) - ends
        if kind == "mode":
            require(not effect_count, "modes", effect_count)
            if may:
                self.chosen = "acceptEdits"
            return
        require(effect_count == may, kind, "was done", effect_count, "times")

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers, hooks=mostly, takes=mostly)
    def send_hooks(self, peer_index: int, hooks: bool, takes: bool) -> None:
        """Send `initialize`, with or without hooks. Perhaps a call is asked about at once."""
        peer = self._pick_peer(peer_index)
        if takes:
            self.change_controller(peer_index, "take")
        self.line_count += 1
        brought = {"hooks": {"PreToolUse": [{"hookCallbackIds": ["h"]}]}} if hooks else {}
        request = {"subtype": "initialize", **brought}
        self.play.send_frame(peer.number, "request", id=f"i{self.line_count}", request=request)
        may = peer.drives and self.driver in (None, peer)
        requests = self._take_input()
        require(len(requests) == may, "asked by who may not")
        if may and hooks:
            self.judges = {
                number: owner for number, owner in self.judges.items() if owner is not None
            }
            self.judges[peer.number] = peer
        if may:
            groups = requests[0]["request"].get("hooks", {}).get("PreToolUse", ())
            callback_ids = [name for group in groups for name in group["hookCallbackIds"]]
            require(
                sorted(callback_ids) == sorted(f"{number}/h" for number in self.judges),
                "hooks",
                callback_ids,
                self.judges,
            )
        if self.judges and takes:
            self.ask_hook(peer_index)

    @precondition(lambda self: len(self.peers) > 1)
    @rule(peer_index=peers, waits=st.booleans(), hooks=st.booleans())
    def send_hooks_and_leave(self, peer_index: int, waits: bool, hooks: bool) -> None:
        """Send hooks, perhaps a message, and disconnect at once."""
        if hooks:
            self.send_hooks(peer_index, True, True)
        self.send_old_restriction(peer_index)
        if waits:
            self.send_message(peer_index, None, False, True)
        self.disconnect_peer(peer_index, False, 0)
        if self.peers:
            self.send_hooks(peer_index, False, True)

    @precondition(lambda self: self.peers)
    @rule(peer_index=peers)
    def send_old_restriction(self, peer_index: int) -> None:
        """Send the restriction of an older client version. It is refused and changes nothing."""
        self.play.send_frame(self._pick_peer(peer_index).number, "narrow", mode="plan")
        self._check_no_input()

    @precondition(lambda self: self.peers and self.calls)
    @rule(peer_index=peers, which=st.integers(0, 9))
    def answer_hook(self, peer_index: int, which: int) -> None:
        """Answer for a hook: the client's own or another client's."""
        peer, call = self._pick_peer(peer_index), list(self.calls)[which % len(self.calls)]
        may = self.calls[call] is peer
        for _ in range(2):
            self.play.send_frame(
                peer.number,
                "reply",
                id=call,
                response={"subtype": "success", "response": {"by": peer_index}},
            )
        lines = self._take_input()
        require(len(lines) == may, "answers for a hook:", lines)
        if may:
            require(
                lines[0]["response"]["request_id"] == call and self.calls.pop(call) is peer, lines
            )

    # -- the host and its log ----------------------------------------------------------------------

    @rule(slow=st.booleans(), count=st.integers(0, 9))
    def log_is_slow(self, slow: bool, count: int) -> None:
        """Make the log answer later, or at once again."""
        self.play.slow = slow
        self.play.answer_reads(count)

    @rule(count=st.integers(1, 5))
    def log_drops(self, count: int) -> None:
        """Drop old lines."""
        self.log.first = min(self.log.first + count, self.log.last + 1)

    @rule(killed=st.booleans(), lost=st.integers(0, 2), how_often=seldom)
    def restart_host(self, killed: bool, lost: int, how_often: int) -> None:
        """Kill or close the host, and start it again. A crash of the machine loses lines."""
        if how_often:
            return
        if not killed:
            for question in list(self.open):
                self._resolve_prompt(question, None, "ended")
            self.play.hub.close("idle")
            self.play.run_commands()
            for peer in self.peers.values():
                self._read_frames(peer, 1_000_000)
        for peer in self.peers.values():
            self.former_cursors.append((peer.generation, peer.cursor))
        self.peers.clear()
        if killed:
            del self.log.entries[max(0, len(self.log.entries) - lost) :]
            self.log.first = min(self.log.first, self.log.last + 1)
        self.log.generation += 1
        self._start_host()

    # -- reading clients ---------------------------------------------------------------------------

    def _read_frames(self, peer: Peer, most: int) -> None:
        hub = self.play.hub
        if peer.number in hub.list_ready_clients():
            data = hub.take_outgoing_frames(peer.number, most)
            require(not data or data.endswith(b"\n"), "a part of a frame")
            for raw in data.splitlines():
                self._check_frame(peer, json.loads(raw))
            self.play.run_commands()

    def _check_frame(self, peer: Peer, frame: Frame) -> None:
        kind = frame["kind"]
        require(not peer.has_left, "told after bye", frame)
        require(peer.welcomed or kind in ("welcome", "refused"), "told before welcome", frame)
        check = getattr(self, f"_receive_{kind}", None)
        if check is not None:
            check(peer, frame)

    def _receive_welcome(self, peer: Peer, frame: Frame) -> None:
        require(not peer.welcomed, "welcomed twice")
        require(
            frame["number"] == peer.sync_position, "welcome", frame["number"], peer.sync_position
        )
        peer.welcomed, peer.name = True, frame["client"]
        peer.generation = frame["generation"]
        peer.state, peer.driver = frame["state"], frame["driver"]
        peer.fresh = True

    def _is_in_log(self, peer: Peer, cursor: tuple[int, int]) -> bool:
        """Return whether the hub resumes at a cursor instead of sending the whole log again."""
        generation, number = cursor
        if generation == peer.generation:
            return 0 <= number <= peer.sync_position
        # A restarted host continues the log and its numbers. A cursor of a former life is therefore
        # valid up to the last line that each later life inherited.
        later_lives = range(generation + 1, peer.generation + 1)
        return 0 < generation < peer.generation and 0 <= number <= min(
            self.inherited_numbers[life] for life in later_lives
        )

    def _receive_gap(self, peer: Peer, frame: Frame) -> None:
        first, last, reason = frame["from"], frame["to"], frame["reason"]
        if reason in ("generation", "unknown"):
            cursor = peer.expected
            require(
                cursor is not None and first == 1 and last == peer.sync_position,
                "gap",
                frame,
                cursor,
            )
            is_available = self._is_in_log(peer, cursor)
            require(not is_available, "a gap although the cursor", cursor, "is there")
            peer.cursor, peer.expected = 0, None
        elif reason == "lost":
            require(
                first == peer.cursor + 1 and last < self.log.first,
                "gap",
                frame,
                "at",
                peer.cursor,
                self.log.first,
            )
            peer.cursor = last
        else:
            require(
                first == peer.cursor + 1 and last <= self.log.last, "gap", frame, "at", peer.cursor
            )
            peer.block, peer.fresh = None, True

    def _receive_line(self, peer: Peer, frame: Frame) -> None:
        if "number" not in frame:
            self._receive_part(peer, frame["line"]["event"])
            return
        number = frame["number"]
        if peer.expected is not None:
            is_available = self._is_in_log(peer, peer.expected)
            require(is_available, "no gap although the cursor", peer.expected, "is not there")
        require(number == peer.cursor + 1, "line", number, "behind", peer.cursor)
        entry = self.log.entries[number - 1]
        require(
            entry.number == number and json.loads(entry.line) == frame["line"],
            "another line than the log's",
            frame,
        )
        require(
            (entry.generation, entry.at_ms) == (frame["generation"], frame["at"]),
            "another place or time",
            frame,
        )
        peer.cursor = number
        if frame["line"]["type"] == "assistant":
            peer.block, peer.fresh = None, False
        if frame["line"]["type"] == "result":
            peer.block = None

    def _receive_part(self, peer: Peer, event: Frame) -> None:
        require(peer.partial, "a partial line for who wants none")
        require(peer.synced, "a partial line before the history was told")
        kind = event["type"]
        if kind == "content_block_start":
            peer.block = 0
        elif kind == "content_block_delta":
            require(
                peer.block == event["part"],
                "part",
                event["part"],
                "and it was told up to",
                peer.block,
            )
            peer.block += 1
        elif kind == "content_block_stop":
            peer.block = None

    def _receive_synced(self, peer: Peer, frame: Frame) -> None:
        require(not peer.synced, "in sync twice")
        require(
            frame["number"] == peer.sync_position,
            "in sync at",
            frame["number"],
            "and it came at",
            peer.sync_position,
        )
        require(
            peer.cursor >= peer.sync_position,
            "in sync, and behind",
            peer.cursor,
            peer.sync_position,
        )
        peer.synced = True

    def _receive_question(self, peer: Peer, frame: Frame) -> None:
        question = frame["question"]
        require(question not in peer.believes, "asked twice", question)
        require(question in self.open or question in self.resolved, "never asked", question)
        peer.believes.add(question)

    def _receive_settled(self, peer: Peer, frame: Frame) -> None:
        question = frame["question"]
        require(
            self.resolved.get(question) == (frame["by"], frame["how"]),
            "settled",
            frame,
            self.resolved.get(question),
        )
        peer.believes.discard(question)

    def _receive_ask(self, peer: Peer, frame: Frame) -> None:
        require(self.calls.get(frame["id"], peer) is peer, "a hook of another client's", frame)

    def _receive_state(self, peer: Peer, frame: Frame) -> None:
        peer.state = {key: value for key, value in frame.items() if key != "kind"}

    def _receive_driver(self, peer: Peer, frame: Frame) -> None:
        peer.driver = frame["client"]

    def _receive_bye(self, peer: Peer, frame: Frame) -> None:
        peer.has_left = True

    # -- invariants --------------------------------------------------------------------------------

    @invariant()
    def check_controller(self) -> None:
        name = None if self.driver is None else find_peer_name(self, self.driver)
        require(
            self.play.hub.roles.controller_name == name,
            self.play.hub.roles.controller_name,
            "drives, not",
            name,
        )
        require(
            (self.play.status_fields or {"status": "idle"})["status"] != "waiting" or self.open,
            "waits for nothing",
        )

    @invariant()
    def check_mode(self) -> None:
        self._check_no_input()
        require(self.mode == self.chosen, "in mode", self.mode, "not", self.chosen)

    @invariant()
    def check_queue_limits(self) -> None:
        for peer in self.peers.values():
            waits = self.play.hub.subscribers.clients[peer.number]
            require(
                waits._queued_bytes <= MAX_CLIENT_BYTES
                and waits._queued_line_count <= MAX_CLIENT_LINES,
                waits._queued_bytes,
                "bytes",
                waits._queued_line_count,
                "lines",
            )

    @invariant()
    def check_log(self) -> None:
        require(self.log.last == len(self.log.entries), "a number is missing")


def find_peer_name(machine: Bridge, peer: Peer) -> str:
    """Return the name of a client, which the client may not have read yet."""
    return machine.play.hub.subscribers.clients[peer.number].name


def run_machine(examples: int, step_count: int = 80) -> None:
    """Draw `examples` runs without a stored example."""
    drawn = settings(
        max_examples=examples,
        stateful_step_count=step_count,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Bridge, settings=drawn)


if __name__ == "__main__":
    run_machine(int(sys.argv[1]))

"""A fuzzer over the state machines that speak JSON-RPC with a vendor's child: valid, changed and
reordered messages.

A run is a conversation. The messages of the agent and the actions of the frontend are drawn from a
seed. These invariants always hold:

    no exception leaves the machine, and none is caught if the agent sent only what its protocol
        has
    each turn has one result
    a question of the agent has at most one answer, and exactly one when its turn is over
    an answer that allows a call was given by the frontend for the arguments of that call
    every line for the agent is a request, a notification or a response of JSON-RPC
    no collection of the machine grows beyond its limit

    python -m fuzzing.rpc_fuzzer MESSAGES [SEED]
"""

from __future__ import annotations

import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    for folder in (
        Path(__file__).resolve().parents[1] / "support",
        Path(__file__).resolve().parents[2],
    ):
        sys.path.insert(1, str(folder))

import orjson
from stream_invariants import check_turns
from turn_stage import build_turn_config

from fuzzing.agents import Agent, Line
from fuzzing.vendor_agents import AGENTS
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import (
    AskPermissionCommand,
    SendToChildCommand,
    TurnStage,
    WithdrawPermissionCommand,
)
from shim.core.claude.argv.flags import parse_argv as parse_arguments
from shim.core.claude.messages import UserMessage
from shim.core.claude.permissions import QUESTION_TOOL, PermissionDecision, PermissionRequest
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.policy.policy import Policy, Workspace
from shim.core.turn.outcome import ChildExit

MESSAGES = 60  # of one conversation at most
SIZE = 1200  # entries of one collection of a machine: the limits in the code are 1000
MAX_PRINTED = 10  # findings to print


class BrokenError(AssertionError):
    """A broken invariant, with the conversation so far."""


class AgentConversation:
    """A conversation of an agent, the state machine, and a frontend."""

    def __init__(self, agent: Agent, chance: random.Random) -> None:
        self.agent, self._chance = agent, chance
        vendor = agent.build_adapter()
        self.child_input = vendor.create_child_input()
        writer = StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["message_stop"])
        reader = self.child_input.create_translator_factory(vendor.translator_class)
        self.child_stream = ChildStream(reader, build_turn_config(agent.vendor_name), writer)
        self.lines = b""
        self.turns = 1
        self.messages = 0
        self.story: list[str] = []
        self._open_requests: list[PermissionRequest] = []
        self._granted: list[PermissionRequest] = []  # in this turn
        self._is_turn_over = False
        self._late = b""
        asking = parse_arguments(("--permission-prompt-tool", "stdio"))
        self._send_to_agent(
            self.child_input.encode_handshake(
                LaunchRequest(asking, "", policy=Policy(workspace=Workspace("/w", "/h")))
            )
        )
        self._send_to_agent(self.child_input.encode_prompt(UserMessage("hi")))

    def run(self) -> None:
        """Draw the next step until the conversation is over."""
        for _ in range(self._chance.randrange(1, MESSAGES)):
            move = self._chance.random()
            if move < 0.75:
                self._receive_lines(self.agent.create_lines())
            elif move < 0.9:
                self._answer_request()
            elif move < 0.94:
                self._add_note("the frontend interrupts")
                self.child_stream.turn.record_interrupt()
                self._send_to_agent(self.child_input.encode_interrupt())
            elif move < 0.96:
                self._send_to_agent(
                    self.child_input.encode_permission_mode_change(
                        self._chance.choice(("plan", "default"))
                    )
                    or b""
                )
            else:
                self._send_next_message()
        self._end_conversation()

    def _add_note(self, text: str) -> None:
        self.story.append(text)

    # -- the agent ---------------------------------------------------------------------------------

    def _receive_lines(self, data: bytes) -> None:
        """Read a line of the agent. After the end of a turn nothing is read until the next
        message.
        """
        self.messages += 1
        self._add_note(f"agent: {data.decode(errors='replace').rstrip()}")
        if self._is_turn_over:
            self._late += data
            return
        output, commands = self.child_stream.feed(data)
        self.lines += output
        self._carry_out(commands)
        self._check_sizes()
        if self._is_turn_over:  # as the driver does
            for permission in self._open_requests:
                self._send_to_agent(
                    self.child_input.encode_permission_response(
                        permission, PermissionDecision(False, ends_turn=True)
                    )
                )
            self._open_requests.clear()
        if self._is_turn_over and (waiting := self.agent.list_open_requests()):
            raise BrokenError(f"the turn is over, and the agent waits for answers: {waiting}")
        if not self.agent.hostile:
            repairs = self.child_stream.diagnostics.build_report()["repairs"]
            if "malformed_event" in repairs:
                raise BrokenError(
                    f"a valid message was not understood: {repairs['malformed_event']}"
                )

    def _carry_out(self, commands: Any) -> None:
        for command in commands:
            match command:
                case SendToChildCommand(line):
                    self._send_to_agent(line)
                case AskPermissionCommand(permission) if permission.refusal:
                    self._send_to_agent(
                        self.child_input.encode_permission_response(
                            permission, PermissionDecision(False, message=permission.refusal)
                        )
                    )
                case AskPermissionCommand(permission):
                    self._open_requests.append(permission)
                case WithdrawPermissionCommand(request):
                    for permission in [
                        pending for pending in self._open_requests if pending.request_id == request
                    ]:
                        self._open_requests.remove(permission)
                        self._send_to_agent(
                            self.child_input.encode_permission_response(
                                permission, PermissionDecision(False, ends_turn=True)
                            )
                        )
                case TurnStage.VENDOR_DONE | TurnStage.FINISHED:
                    self._add_note("the turn is settled")
                    self._is_turn_over = True

    def _send_to_agent(self, data: bytes) -> None:
        """Check lines for the agent: each is JSON-RPC, and only the frontend can allow a call."""
        for raw in data.splitlines(keepends=True):
            self._add_note(f"us: {raw.decode().rstrip()}")
            line: Line = orjson.loads(raw)
            if not raw.endswith(b"\n") or not self.agent.is_valid_line(line):
                raise BrokenError(f"no line of JSON-RPC: {raw!r}")
            allowed = self.agent.receive_line(line)
            if allowed is not None and not any(
                self.agent.matches_grant(allowed, request) for request in self._granted
            ):
                raise BrokenError(f"allowed, and the frontend was not asked about it: {allowed}")

    def _check_sizes(self) -> None:
        for owner in self.agent.list_state_holders(self.child_stream, self.child_input):
            for name, value in vars(owner).items():
                if isinstance(value, dict | list | set | bytes) and len(value) > SIZE:
                    raise BrokenError(f"{type(owner).__name__}.{name} has {len(value)} entries")

    # -- the frontend ------------------------------------------------------------------------------

    def _answer_request(self) -> None:
        """Answer one of the open questions, in any order."""
        if not self._open_requests:
            return
        permission = self._open_requests.pop(self._chance.randrange(len(self._open_requests)))
        kind = self._chance.random()
        decision = PermissionDecision(kind < 0.6, message="no", ends_turn=kind > 0.9)
        if 0.5 < kind < 0.6:
            decision = decision._replace(updated_input={"command": "changed"})
        elif permission.tool == QUESTION_TOOL and kind < 0.4:
            answers = {
                question["question"]: self._chance.choice(("red", "Yes", ""))
                for question in permission.tool_input["questions"]
            }
            decision = decision._replace(updated_input={"answers": answers})
        self._add_note(f"the frontend: {permission.tool} {permission.tool_input} {decision}")
        if decision.allow and decision.updated_input is None:
            self._granted.append(permission)
        try:
            answer = self.child_input.encode_permission_response(permission, decision)
        except ValueError:
            decision = PermissionDecision(False, message="made again")
            answer = self.child_input.encode_permission_response(permission, decision)
        if not decision.allow:
            self.child_stream.turn.record_permission_denial(permission, decision.message)
            output, commands = self.child_stream.take_output()
            self.lines += output
            self._carry_out(commands)
        self._send_to_agent(answer)

    def _send_next_message(self) -> None:
        """Send the next message after the agent has ended the last turn."""
        if not self._is_turn_over or not self.child_input.can_accept_prompts:
            return
        self._end_turn(*self.child_stream.finish())
        for command in self.child_stream.skip_output_between_turns(self._late):
            match command:
                case SendToChildCommand(line):
                    self._send_to_agent(line)
                case AskPermissionCommand(permission):
                    self._send_to_agent(
                        self.child_input.encode_permission_response(
                            permission, PermissionDecision(False, message=permission.refusal)
                        )
                    )
        self.child_stream.start_turn()
        self.turns += 1
        self._is_turn_over, self._late = False, b""
        self._add_note("the next message")
        self._send_to_agent(self.child_input.encode_prompt(UserMessage("go on")))

    def _end_turn(self, output: bytes, commands: Any) -> None:
        self.lines += output
        self._carry_out(commands)
        self._open_requests.clear()
        self._granted.clear()

    def _end_conversation(self) -> None:
        self._end_turn(*self.child_stream.close(ChildExit(0, None)))
        count = len(check_turns(self.lines, partial=False))
        if count != self.turns:
            raise BrokenError(f"{count} results of {self.turns} turns")


def find_failures(machine: str, messages: int, seed: int) -> Iterator[tuple[int, str]]:
    """Run conversations of `messages` messages. Yield the seed and the log of each that broke an
    invariant.
    """
    while messages > 0:
        chance = random.Random(f"{machine} {seed}")
        talk = None
        try:
            talk = AgentConversation(AGENTS[machine](chance), chance)
            talk.run()
        except Exception as error:
            story = talk.story if talk is not None else []
            yield seed, "\n".join([*story, "", *traceback.format_exception(error)[-3:]])
        messages -= max(talk.messages if talk is not None else 1, 1)
        seed += 1


def main() -> int:
    """Run every machine for its share of the messages."""
    count, first = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    failure_count = 0
    for machine in AGENTS:
        kinds: Counter[str] = Counter()
        for seed, story in find_failures(machine, count // len(AGENTS), first):
            kinds[kind := story.rstrip().rpartition("\n")[2][:80]] += 1
            if kinds[kind] == 1 and len(kinds) <= MAX_PRINTED:
                sys.stdout.write(f"-- {machine}, seed {seed}\n{story}\n")
        broken = sum(kinds.values())
        sys.stdout.write(
            f"{machine}: {count // len(AGENTS):,} messages, {broken} conversations broke an invariant\n"
        )
        failure_count += broken
    return 1 if failure_count else 0


if __name__ == "__main__":
    sys.exit(main())

"""The hub's side of the conversation: what it is told, what of that is logged, and what follows
from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shim.core.bridge.audience import Audience
from shim.core.bridge.client import Client, Roles
from shim.core.bridge.commands import Append, Changed, Command, Tell
from shim.core.bridge.frames import RefusedError, frame
from shim.core.bridge.log import HEARD, NOTED, Entry, Record
from shim.core.bridge.questions import Questions, denial
from shim.core.bridge.requests import Ask, Asks, Request, Requests
from shim.core.bridge.session import Ceilings, Session, Situation, name_of
from shim.core.claude.messages import read_line
from shim.core.claude.permissions import UNASKED
from shim.core.reading.bounded import Bounded
from shim.core.reading.json_text import dump

UNANSWERED = "the session ended before this message had its turn: it was not answered"
IDS = 1000  # of frames that were obeyed: one of them that comes again is obeyed no second time
ANSWER_BYTES = 4096  # of an answer that is kept for a frame that comes again
WAITING = 1000  # messages that wait for their turn
NO_BODY: Mapping[str, Any] = {}
PRIORITIES = ("now", "next", "later")


def taken(entries: Iterable[Entry]) -> Iterator[str]:
    """The ids of the messages that the session has taken, as far as these lines of the log tell."""
    for entry in entries:
        if b'"isReplay":true' in entry.line:
            line = read_line(entry.line)
            if (
                isinstance(line, dict)
                and line.get("isReplay") is True
                and isinstance(line.get("uuid"), str)
            ):
                yield line["uuid"]


class Conversation:
    """What the hub knows of the session, and how it talks to it.

    `waiting` are the messages that were told and not yet taken: their uuid and their size;
    `senders` are the clients that said them, and under which id. `messages` are the ids of those
    that were told; `done` are other frames by client and id, with what each was answered.
    """

    def __init__(
        self,
        session: Session,
        generation: int,
        number: int,
        mint: Callable[[], str],
        wall: Callable[[], int],
        known: Iterable[str],
    ) -> None:
        self.session = session
        self.mint = mint
        self.wall = wall
        self.commands: list[Command] = []
        self.questions = Questions()
        self.audience = Audience(self.commands, self.questions, generation, number, self._now)
        self.roles = Roles(owner=session.answers == "owner")
        self.asks = Asks()
        self.requests = Requests()
        self.situation = Situation()
        self.initialize: Any = None
        self.init: Any = None
        self.ended = ""  # why the session is over
        self.notice = ""  # a sentence about the host, for clients that connect
        self.ceilings = Ceilings(session.mode)
        self.waiting: dict[str, int] = {}
        self.senders: dict[str, tuple[Client, str]] = {}
        # whose message the turn answers: 0 for nobody's here, None where it names none
        self.turn_of: int | None = None
        self.messages = Bounded[tuple[str, str], bool](IDS)
        self.done = Bounded[tuple[int, str], bytes](IDS)
        self._facts: Mapping[str, Any] = {}
        for message in known:
            self.messages["", message] = True

    # -- what is told to it ------------------------------------------------------------------------

    def tell(self, line: Mapping[str, Any]) -> bytes:
        """A line of its stdin; gives back the line, without its newline."""
        data = dump(line)
        self.commands.append(Tell(data + b"\n"))
        return data

    def record(self, letter: str, data: bytes) -> None:
        """Something for the log that has no number."""
        self.commands.append(Append((Record(letter, self.wall(), data),)))

    def message(self, message: Mapping[str, Any], uuid: str, priority: object = None) -> None:
        """A person's message. RefusedError if too many wait."""
        line: dict[str, Any] = {
            "type": "user",
            "message": message,
            "parent_tool_use_id": None,
            "uuid": uuid,
        }
        if priority in PRIORITIES:
            line["priority"] = priority
        data = dump(line)
        most = self.session.frame_bytes
        if len(self.waiting) >= WAITING or (
            self.waiting and sum(self.waiting.values()) + len(data) > most
        ):
            raise RefusedError(
                "too-many",
                f"{len(self.waiting)} messages wait for their turn already; send it later",
            )
        if not self.session.name:
            self.session = self.session._replace(name=name_of(message))
        self.waiting[uuid] = len(data)
        self.record(HEARD, data)
        self.commands.append(Tell(data + b"\n"))
        self.situation.asked()
        self.changed()

    def request(self, body: Mapping[str, Any], request: Request) -> None:
        """A control request. RefusedError if too many of its client's wait."""
        identity = self.mint()
        self.requests.add(identity, request)
        self.tell({"type": "control_request", "request_id": identity, "request": body})

    def respond(self, identity: str, response: Mapping[str, Any]) -> bytes:
        """Answer a request of the session's; gives back the line."""
        return self.tell(
            {"type": "control_response", "response": {**response, "request_id": identity}}
        )

    # -- questions and asks ------------------------------------------------------------------------

    def settle(
        self, identity: str, by: str | None, how: str, body: Mapping[str, Any] | None = None
    ) -> None:
        """Settle an open question, with an answer of ours or a client's, or because the session
        wants none.
        """
        outcome = self.questions.settle(identity, by, how)
        if outcome is None:
            return
        if body is not None:
            line = {"subtype": "success", "request_id": identity, "response": body}
            data = dump({"type": "control_response", "response": line})
            self.record(HEARD, data)
        self.record(NOTED, dump({"kind": "settled", **outcome._asdict()}))
        if body is not None:
            self.commands.append(Tell(data + b"\n"))
        self.audience.settled(outcome)
        self.changed()

    def settle_all(self, by: str | None, how: str, message: str = "") -> None:
        """Settle every open question; with a `message` each is denied."""
        for question in list(self.questions.open.values()):
            self.settle(question.question, by, how, denial(question, message) if message else None)

    def deny_unheard(self) -> None:
        """Deny what nobody who is here can answer, if who drives cannot: a run of its own would
        have denied it.

        A question of a turn that answers somebody else waits: it is none of the driver's.
        """
        driver = self.roles.driver
        if driver is not None and self.turn_of not in (None, driver.number):
            return
        if driver is None or not driver.deaf or any(map(self.roles.may_answer, self.audience)):
            return
        for question in list(self.questions.open.values()):
            message = UNASKED.format(tool=question.request.get("tool_name"))
            self.settle(question.question, None, "deny", denial(question, message))

    def release(self) -> None:
        """What clients forbade that have gone holds no longer, once no turn runs or waits that
        began under it.
        """
        if not self.situation.active and not self.waiting and self.ceilings.released():
            self.keep()

    def keep(self) -> None:
        """Have the conversation keep to what all clients forbid, as far as it was not told."""
        if self.ceilings.mode != self.ceilings.told_mode:
            self.tell_mode(Request(None, "", "set_permission_mode"))
        if self.ceilings.rules != self.ceilings.told_rules:
            self.tell_rules({}, Request(None, "", "apply_flag_settings"))

    def tell_mode(self, request: Request, body: Mapping[str, Any] = NO_BODY) -> None:
        """The narrowest of the mode that is chosen and of what the clients let it be. RefusedError
        as `request`.
        """
        self.request(
            {**body, "subtype": "set_permission_mode", "mode": self.ceilings.mode}, request
        )
        self.ceilings.told_mode = self.ceilings.mode

    def tell_rules(self, settings: Mapping[str, Any], request: Request) -> None:
        """The rules of all clients, if there ever were any, beside other settings. RefusedError as
        `request`.
        """
        told, (deny, ask) = dict(settings), self.ceilings.rules
        if deny or ask or self.ceilings.told_rules != ((), ()):
            told["permissions"] = {"deny": deny, "ask": ask}
        self.request({"subtype": "apply_flag_settings", "settings": told}, request)
        self.ceilings.told_rules = deny, ask

    def reported(self, mode: str) -> None:
        """The conversation says which mode it is in. Where nobody told it that, its agent has
        chosen it.
        """
        self.session = self.session._replace(mode=mode)
        if mode != self.ceilings.told_mode and not self.requests.pending("set_permission_mode"):
            self.ceilings.choose(mode)
            self.ceilings.told_mode = mode
            self.keep()

    def forward(self, ask: Ask) -> None:
        """Put a request of the session's to the client whose it is, or answer it."""
        if ask.client is None:
            self.respond(ask.identity, self.asks.unasked(ask))
        else:
            self.audience.say(ask.client, frame("ask", id=ask.identity, request=ask.request))

    # -- what is true now --------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The keys of a `state` frame."""
        return self.situation.facts(
            [question.request for question in self.questions.open.values()], bool(self.waiting)
        )

    def _now(self) -> bytes:
        chosen = {"model": self.session.model, "mode": self.session.mode}
        return frame("state", **self.facts(), **chosen) + frame("driver", client=self.roles.name)

    def changed(self) -> None:
        """Tell whoever wants to know, if the state or the driver is another one; of the detail
        alone `later`.
        """
        facts = self._kept()
        if {**facts, "detail": self._facts.get("detail")} != self._facts:
            self._tell_facts(facts)

    def later(self) -> None:
        """Tell of a detail that changed: at a tick, not with every call."""
        facts = self._kept()
        if facts != self._facts:
            self._tell_facts(facts)

    def _kept(self) -> dict[str, Any]:
        """What `host.json` keeps of what is true now."""
        return {**self.facts(), "driver": self.roles.name, "name": self.session.name or None}

    def _tell_facts(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self.commands.append(Changed(facts))
        self.audience.changed()

    def give(self, client: Client | None) -> None:
        """Another client drives, or nobody."""
        if self.roles.give(client):
            self.record(NOTED, dump({"kind": "driver", "client": self.roles.name}))
            self.changed()
            self.deny_unheard()

    def taken(self, uuid: object) -> int | None:
        """A message that the session has taken, or given back, is no longer waiting; the client
        whose it is.
        """
        known = self.waiting.pop(str(uuid), None) is not None
        sender = self.senders.pop(str(uuid), None)
        return sender[0].number if sender else 0 if known else None

    def unanswered(self) -> None:
        """The session ends: whoever said a message that waits is told that nobody answers it, and
        so is the log.
        """
        if not self.waiting:
            return
        for uuid in self.waiting:
            self.record(NOTED, dump({"kind": "unanswered", "message": uuid}))
            client, mark = self.senders.pop(uuid, (None, ""))
            if client is not None and client.number in self.audience.clients:
                self.audience.say(
                    client, frame("refused", id=mark, reason="ended", text=UNANSWERED)
                )
        self.commands.append(Changed({**self._facts, "unanswered": len(self.waiting)}))

    def begun(self, uuid: object) -> None:
        """The session answers a message, also one that is said into its turn: a turn is whose it
        was first.
        """
        asker = self.taken(uuid)
        self.turn_of = asker if self.turn_of is None else self.turn_of

    # -- what a client is answered -----------------------------------------------------------------

    def accept(self, client: Client, identity: str) -> None:
        """What a frame asked for was done."""
        if identity:
            self.finish(
                client,
                identity,
                frame("accepted", id=identity) if client.knows("accepted") else b"",
            )

    def finish(self, client: Client, identity: str, answer: bytes) -> None:
        """The answer to a frame, which is the answer to the same frame again too."""
        kept = answer
        if len(answer) > ANSWER_BYTES:
            kept = frame(
                "refused",
                id=identity,
                reason="bad-frame",
                text="this was answered already; use another id",
            )
        self.done[client.number, identity] = kept
        self.audience.say(client, answer)

    def repeat(self, client: Client, identity: str) -> None:
        """A frame that was obeyed came again."""
        self.audience.say(client, self.done[client.number, identity])

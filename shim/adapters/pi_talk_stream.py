"""pi's RPC: the events of its stream, answers to what it was asked, and dialogs of its extensions
(pi page, section 5).

A run ends with `agent_settled`. Versions before 0.80.4 have no such event: their `agent_end` may be
followed by a retry or a compaction, which is said at once, so that a silence behind it is the end.
"""

from typing import Any

import orjson

from shim.adapters.pi import TOOLS
from shim.adapters.pi_dialogs import METHODS
from shim.adapters.pi_link import ABORT, PROMPT, REQUESTS, REST, SETTING, STATE, STEER, Heard, Link
from shim.adapters.pi_stream import DIALOG, OURS, PiTranslator
from shim.core.adapter.tools import Arguments, absolute, translate
from shim.core.adapter.translator import Event, Translator
from shim.core.claude.permissions import QUESTION
from shim.core.turn.open_calls import read_id
from shim.core.turn.outcome import Exit
from shim.core.turn.turn import Turn

UNGATED = (
    "pi did not load our extension, which asks before each of its tools, so nothing was said to its model; start pi by "
    'itself to see why, or set [vendors.pi] driver = "one-way", where it asks nobody'
)
AT_START = (
    "pi ended at its start: an extension of yours opens a dialog in session_start, before pi hears any answer; take "
    'that extension away, or set [vendors.pi] driver = "one-way", where pi opens no dialog'
)
FOREIGN = "mcp__pi__"  # in front of a tool of an extension that is called like one of Claude's
HANDLED = "handled"  # by an extension: no run begins


class PiTalkTranslator(PiTranslator):
    """`link` is who tells pi; where a recording is read there is none, and pi is only listened to."""

    def __init__(self, turn: Turn, *, partial: bool = False, link: Link | None = None) -> None:
        super().__init__(turn, partial=partial)
        self.link = link or Link()
        self._older = False  # it never says that it has settled

    def begin(self, turn: Turn) -> None:
        super().begin(turn)
        self._started()

    def _started(self) -> None:
        self._cwd = self.link.opening.cwd
        if self.link.session:
            commands = list(self.link.texts) or None
            # the one that was asked for goes before
            own = None if self.turn.terms.model else self.link.model or None
            self.turn.started(session_id=self.link.session, model=own, slash_commands=commands)

    def anew(self, turn: Turn) -> Translator:
        return type(self)(turn, partial=self.partial, link=self.link)

    @classmethod
    def heeds(cls, line: bytes) -> bool:
        """Between two turns its dialogs are read, and its answers."""
        return DIALOG.encode() in line or b'"response"' in line

    def repaired(self, event: Event) -> None:
        """Out of a broken line no dialog is believed, and no answer (threats: forged lines)."""
        kind = event.get("type")
        if not self.link.greeted or kind not in (DIALOG, "response"):
            super().repaired(event)
            return
        self.turn.account.repaired("doubtful_event")
        if kind == DIALOG and event.get("method") in METHODS:
            self._refuse(event.get("id"))

    def feed_back(self) -> None:
        """What pi is told because of what it said."""
        self.outbox += self.link.outbox
        self.link.outbox.clear()

    def feed(self, event: Event) -> None:
        """What the person answered is said first: pi does not tell it."""
        for call, result, failed in self.link.forms.answered:
            self.turn.tool_result(call, result, failed)
        self.link.forms.answered.clear()
        super().feed(event)

    # -- runs --------------------------------------------------------------------------------------

    def on_agent_start(self, event: Event) -> None:
        if not self.link.greeted:
            self.next_turn()
        self.link.running, self._ended = True, False
        if self.link.stopping:  # it did not run yet when it was told to stop
            self.outbox.append(self.link.abort())
        super().on_agent_start(event)

    def on_agent_settled(self, event: Event) -> None:
        self._ended = True
        if self.link.running and not self.link.owes:
            self._over()

    def _reset(self) -> None:
        super()._reset()
        self._ended = False  # what ran has ended, if nothing follows

    def _agent_ended(self, *, newer: bool) -> None:
        self._ended, self._older = True, not newer
        if not self.link.owes:
            if self._older and self._complete():
                self._over()
            else:
                self.turn.pause()

    def on_compaction_end(self, event: Event) -> None:
        super().on_compaction_end(event)
        if self._older and self._ended and not event.get("willRetry"):
            self.turn.pause()

    on_auto_compaction_end = on_compaction_end

    def _over(self) -> None:
        self.link.running = False
        if not self.turn.settled:
            self._conclude()
            self.turn.settle()

    def _complete(self) -> bool:
        """A run that has ended is whole too where a compaction came behind its last reply."""
        return super()._complete() or (self._ended and self._last is None and not self._begun)

    def eof(self, child_exit: Exit | None, stderr: str) -> None:
        """The exit, or a silence where no other end is said."""
        self.link.running = False
        if self.link.starting and self.link.early:
            self.turn.failed(AT_START, kind="refused")
        super().eof(child_exit, stderr)

    # -- answers -----------------------------------------------------------------------------------

    def on_response(self, event: Event) -> None:
        heard = self.link.hear(event)
        if heard is None:
            self.turn.unknown("response", event)
        elif heard.error and heard.step != STEER:
            self._failed(heard)
        elif heard.step == STATE:
            self._started()
        elif heard.step == PROMPT:
            self._prompted(heard.data.get("disposition"))
        elif heard.step == STEER:
            self.outbox += [self.link.rest()] if self._ended else []
        elif heard.step == REST:
            if not (
                heard.data.get("isStreaming")
                or self.link.prompted
                or (self.link.running and not self._ended)
            ):
                self._handled = True
                self._over()
        elif (
            heard.step == ABORT
            and not self.link.prompted
            and (self._ended or not self.link.running)
        ):
            self._over()
        self.feed_back()

    def _prompted(self, disposition: object) -> None:
        """A message of ours was taken. Where pi does not say what it made of it, it is asked
        whether it runs.
        """
        if disposition == HANDLED:
            self._handled = True
            self._over()
        elif disposition is not None:
            self.link.running = True
        elif self.link.greeted and not self.link.running:
            self.outbox.append(self.link.rest())

    def _failed(self, heard: Heard) -> None:
        """pi did not do what it was asked. What only changes its setting ends the turn if a message
        waited for it.
        """
        if heard.step == STATE:
            self.turn.failed(UNGATED if not self.link.gated else heard.error, kind="refused")
        elif heard.step in (PROMPT, SETTING):
            self.turn.failed(heard.error)
        else:
            return
        self.link.running = False
        self.turn.settle()

    # -- dialogs -----------------------------------------------------------------------------------

    def on_extension_ui_request(self, event: Event) -> None:
        identity, method = event.get("id"), event.get("method")
        if method == "setStatus" and event.get("statusKey") == OURS:
            self.link.gated = True
        elif method == "input" and event.get("title") == OURS:
            self._question(str(identity), event)
        elif method in METHODS:
            self._dialog(str(identity), event)

    def _dialog(self, identity: str, event: Event) -> None:
        """Another extension asks the person: as a call of Claude's tool for that. At the start pi
        hears no answer.
        """
        if self.link.starting:
            self.link.early = True
            self._refuse(identity)
            return
        call = f"ask_{identity[-12:]}"
        asked = self.link.dialog(identity, call, event)
        if asked is None:
            self._refuse(identity)
        else:
            self.turn.permission(identity, call, QUESTION, asked, (DIALOG, event))

    def _question(self, identity: str, event: Event) -> None:
        """Our extension asks whether a call may run."""
        try:
            asked = orjson.loads(event["placeholder"])
            call, own, given = read_id(asked["call"]), str(asked["tool"]), asked["input"]
            name, arguments = translate(TOOLS, own, given)
            if own in TOOLS:
                arguments = absolute(arguments, self._cwd)
            announced = name, arguments
            if self._foreign(own, asked.get("replaced"), name, arguments):
                own = name = f"{FOREIGN}{own}"
                arguments = translate({}, own, given)[1]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.turn.account.repaired("malformed_event", f"{error!r}: {event.get('placeholder')}")
            self._refuse(identity)
            return
        if not self.link.question(identity):
            self._refuse(identity)
            return
        self.turn.permission(identity, call, name, arguments, (own, given), announced=announced)

    def _foreign(self, own: str, replaced: object, name: str, arguments: Arguments) -> bool:
        """Whether an extension's tool is called like one of Claude's, so that a mode or a rule
        would allow it as that.

        Where a rule keeps the call from running unasked, its own name stays: then the rule holds.
        """
        if replaced is not True and (own in TOOLS or not own[:1].isupper()):
            return False
        judge = self.turn.terms.judge
        return judge is None or judge.narrowed(name, arguments) is None

    def _refuse(self, identity: Any) -> None:
        if self.link.greeted and len(self.outbox) < REQUESTS:
            self.outbox.append(self.link.refuse(identity))

"""One person, or one script, in a session that lives on its own: what they type, and what becomes
of it. Sans-IO.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.commands.sessions.terminal import keys
from shim.commands.sessions.terminal.asking import LINES, Asking, Decision
from shim.commands.sessions.terminal.keys import Editor, Text
from shim.commands.sessions.terminal.view import View
from shim.core.reading.bounded import Bounded
from shim.io.stamps import fresh_uuid
from shim.story.terminal.arguments import one_line

# from when a question is shown until a key answers it: what is typed just then was no answer
GRACE_SECONDS = 0.5
WORD_SECONDS = 5.0  # from the key of an answer to Enter, if a person types the whole word
TWICE_SECONDS = 2.0  # between two Ctrl-C that leave
SAID = 1000  # frames whose answer is waited for
KINDS = ("accepted", "refused")
_LINE_ENDS = (keys.ENTER, keys.NEWLINE)

Frame = Mapping[str, Any]


class Talk:
    """`send` says a frame to the host that is connected. `left`: the person has left, and the
    session goes on.
    """

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        self.view = view
        self.editor = Editor()
        self.asking = Asking("")
        self.left = False
        self.refused = False  # something was not done
        self.composing = False  # a message is begun while a question could be answered with a key
        # that were said, and did not come back yet: id → text
        self.messages = Bounded[str, str](SAID)
        self._unanswered = Bounded[str, Frame](SAID)  # frames that were said, by their ids
        self.send: Callable[[Frame], None] = lambda said: None
        self._clock = clock
        self._shown = ("", 0.0)  # the question that is asked now, and since when
        self._answered = ""  # the question that we have answered
        self._answer_key = ""  # the key of the last answer, until a line follows it
        self._answered_at = 0.0
        self._pressed = float("-inf")  # the last Ctrl-C

    @property
    def settled(self) -> bool:
        """Whether all that was said to the host is answered."""
        return not self._unanswered

    @property
    def answers(self) -> bool:
        """Whether a key answers a question now."""
        begun = self.editor.text or self.composing or self.asking.identity == self._answered
        return bool(self.asking.keys()) and not self.waits and not begun

    @property
    def waits(self) -> bool:
        """Whether the question has only just come."""
        identity, since = self._shown
        return bool(identity) and self._clock() - since < GRACE_SECONDS

    def take(self, said: Frame) -> None:
        """A frame of the host."""
        kind = said["kind"]
        if kind == "welcome":
            self.asking = Asking(str(said.get("cwd") or ""))
            # said to a connection that broke; twice does no harm
            for unanswered in list(self._unanswered.values()):
                self.send(unanswered)
        elif kind == "question" and isinstance(said.get("request"), Mapping):
            self.asking.asked(str(said.get("question")), said["request"])
        elif kind == "line" and isinstance(line := said.get("line"), Mapping):
            self.messages.pop(str(line.get("uuid")), None)
        elif kind == "settled":
            self._settled(str(said.get("question")))
        self.view.take(said)
        if kind in KINDS:
            self._told(said)
        if self.asking.identity != self._shown[0]:
            self._shown, self.composing = (self.asking.identity, self._clock()), False

    def _settled(self, question: str) -> None:
        """A question needs no answer any more, ours or another's."""
        self.asking.settled(question)
        for mark, ours in list(self._unanswered.items()):
            if ours["kind"] == "answer" and ours["question"] == question:
                del self._unanswered[mark]

    def _told(self, said: Frame) -> None:
        """What became of a frame of ours."""
        mark = str(said.get("id"))
        ours = self._unanswered.pop(mark, None) or {}
        if said["kind"] == "accepted":
            self._done(ours)
            return
        self.refused = True
        text = self.messages.pop(mark, "")
        if text and not self.editor.text:
            self.editor.put(text)
        self._answered = ""
        hint = "; Ctrl-T takes over" if said.get("driver") else ""
        self.view.said(f"✗ {one_line(str(said.get('text') or said.get('reason')))}{hint}")

    def _done(self, ours: Frame) -> None:
        """Say what an order has done, where no line of the session says it."""
        if ours.get("kind") == "model":
            self.view.said(
                f"· the model is {one_line(ours['model'] or 'the default one')} from the next turn on"
            )
        elif ours.get("kind") == "mode" and ours["mode"] == self.view.mode:
            self.view.said(f"· the permission mode is {one_line(ours['mode'])} already")
        elif ours.get("kind") == "release":
            self.view.said("· nobody drives now; whoever speaks next does", "dim")

    # -- what is typed -----------------------------------------------------------------------------

    def press(self, pressed: list[str]) -> None:
        """Keys that came at once."""
        if len(pressed) == 1 and pressed[0].__class__ is Text and self.answers:
            decision = self.asking.key(pressed[0])
            if decision is not None:
                self._answer_key, self._answered_at = pressed[0], self._clock()
                self.answer(decision)
                return
        if self._is_answer_line(pressed):
            self._refuse_answer_line()
            return
        for key in pressed:
            self._key(key)

    @property
    def _can_answer(self) -> bool:
        """Return whether a key would answer an open question. It does not while a message is typed
        after Tab.
        """
        is_open = bool(self.asking.keys()) and self.asking.identity != self._answered
        return is_open and not self.composing

    def _is_answer_line(self, pressed: list[str]) -> bool:
        """Return whether these keys of one read are words of answers with Enter, while a question
        is open.

        The person cannot have seen a question between them, so they are neither an answer nor a
        message.
        """
        if not self._can_answer or self.editor.text:
            return False
        if not all(isinstance(key, Text) or key in _LINE_ENDS for key in pressed):
            return False
        lines = (
            "".join(key if isinstance(key, Text) else "\n" for key in pressed).lower().split("\n")
        )
        words = [line.strip() for line in lines if line.strip()]
        return len(lines) > 1 and bool(words) and all(word in LINES for word in words)

    def _refuse_answer_line(self) -> None:
        self.view.said(
            "✗ nothing was answered: press the key of the answer alone, without Enter. Tab types a message"
        )

    def _key(self, key: str) -> None:
        composing = self.composing
        if key == keys.CTRL_C:
            self.interrupt()
        elif key in (keys.CTRL_D, keys.CTRL_Z) and not self.editor.text:
            self.left = True
        elif key == keys.CTRL_T:
            self.say({"kind": "take"})
        elif key == keys.TAB and not self.editor.text:
            self.composing = not self.composing
        elif (text := self.editor.press(key)) is not None:
            if self._can_answer and text.strip().lower() in LINES:
                self._refuse_answer_line()  # it was typed just when the question came
                return
            self.composing = False
            if text.strip() and (composing or not self._ends_answer(text)):
                self._entered(text)

    def _ends_answer(self, text: str) -> bool:
        """Return whether a line is the rest of an answer whose first key was already used, such as
        "es" of "yes".
        """
        key, self._answer_key = self._answer_key, ""
        is_recent = self._clock() - self._answered_at < WORD_SECONDS
        return bool(key) and is_recent and (key + text.strip()).lower() in LINES

    def _entered(self, text: str) -> None:
        """A line that a person has ended: an order of ours, the answer to a form, or the next
        message.
        """
        if self._ordered(text):
            return
        if self.asking.form is not None:
            self.line(text)
        else:
            self.message(text)

    def line(self, text: str) -> None:
        """A line of a script: it answers the open question if it can, else it is a message."""
        if not text.strip() or self._ordered(text):
            return
        asked = self.asking.identity and self.asking.identity != self._answered
        decision, wrong = self.asking.line(text) if asked else (None, "")
        if wrong:
            self.refused = True
            self.view.said(f"✗ {wrong}")
        elif decision is not None:
            self.answer(decision)
        elif not asked or self.asking.form is None:
            self.message(text)

    def _ordered(self, text: str) -> bool:
        """Obey an order of ours; other lines with a slash are the agent's own."""
        word, _, rest = text.strip().partition(" ")
        order = _ORDERS.get(word)
        if order is None:
            return False
        if order.takes == NEEDED and not rest.strip():
            self.refused = True
            self.view.said(f"✗ {word} {order.takes} {order.means}")
        else:
            order.does(self, rest.strip())
        return True

    # -- what is done ------------------------------------------------------------------------------

    def message(self, text: str) -> None:
        """Say a message; while a turn runs it waits, or steers the turn."""
        if not self.view.drives:
            self.refused = True
            self.editor.put(text)
            self.view.said(
                f"✗ {one_line(str(self.view.driver))} drives: Ctrl-T, or the line /take, takes over"
            )
            return
        mark = fresh_uuid()
        self.messages[mark] = text
        self.say({"kind": "message", "id": mark, "message": {"role": "user", "content": text}})

    def answer(self, decision: Decision) -> None:
        """Answer the question that is asked now."""
        self._answered = self.asking.identity
        self.say({"kind": "answer", "question": self._answered, "decision": decision})

    def interrupt(self) -> None:
        """Ctrl-C: the turn is interrupted; a second one leaves."""
        now = self._clock()
        twice, self._pressed = now - self._pressed < TWICE_SECONDS, now
        if twice:
            self.left = True
        elif self.view.busy:
            self.say({"kind": "interrupt"})
            self.view.said("interrupting; Ctrl-C once more leaves, and the session goes on")
        elif self.editor.text:
            self.editor.put("")
        else:
            self.view.said("Ctrl-C once more leaves, and the session goes on", "dim")

    def help(self) -> None:
        """List our own orders."""
        said = [f"{name} {order.takes}".strip() for name, order in _ORDERS.items()]
        widest = max(map(len, said))
        for words, order in zip(said, _ORDERS.values(), strict=True):
            self.view.said(f"{words:{widest}}  {order.means}", "dim")
        self.view.said("another line that begins with / goes to the agent", "dim")

    def decline(self) -> None:
        """Answer the open question with no."""
        if self.asking.identity:
            self.answer(self.asking.no())
        else:
            self.refused = True
            self.view.said("✗ no question is open: /no declines one")

    def leave(self) -> None:
        """Go; the session goes on."""
        self.left = True

    def say(self, said: Frame) -> None:
        """Say a frame to the host, and remember that its answer is waited for."""
        ours = {"id": fresh_uuid(), **said}
        self._unanswered[ours["id"]] = ours
        self.send(ours)


NEEDED = "MODE"  # a word that an order does not do without


class Order(NamedTuple):
    """A line of ours: what it does, the word that it takes, and what a person is told of it."""

    does: Callable[[Talk, str], None]
    takes: str
    means: str


_ORDERS: Mapping[str, Order] = {
    "/help": Order(lambda talk, _: talk.help(), "", "lists these"),
    "/take": Order(
        lambda talk, _: talk.say({"kind": "take"}),
        "",
        "drives, where somebody else does; Ctrl-T too",
    ),
    "/release": Order(lambda talk, _: talk.say({"kind": "release"}), "", "lets another one drive"),
    "/mode": Order(
        lambda talk, rest: talk.say({"kind": "mode", "mode": rest}),
        NEEDED,
        "sets the permission mode",
    ),
    "/model": Order(
        lambda talk, rest: talk.say({"kind": "model", "model": rest or None}),
        "[NAME]",
        "takes another model; without a name the default one",
    ),
    "/no": Order(lambda talk, _: talk.decline(), "", "declines what the agent asks"),
    "/leave": Order(lambda talk, _: talk.leave(), "", "leaves; the session goes on"),
}

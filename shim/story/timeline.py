"""Where the time of a session went, as a bounded list of spans. Pure."""

from typing import Literal, NamedTuple

# What the time was spent on: the model, a tool, a person's answer, nothing (between two turns).
Spent = Literal["model", "tool", "person", "idle"]

SPANS = 10_000  # of a timeline; a longer one is thinned out to half, which is still finer than a picture


class Span(NamedTuple):
    """A span of time, in seconds since the beginning, and what it was spent on. `step` is its call's number, else 0."""

    spent: Spent
    begin: float
    end: float
    step: int = 0


class Timeline:
    """Adds up what the time is spent on. Times never go back.

    Each of the `seconds` is counted once, so that their sum is the whole time. `spans` may overlap: calls run at the
    same time, and a call's span includes the wait for a person's answer.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds: dict[str, float] = {}
        self.spending: Spent = "idle"
        self._since = 0.0

    def spend(self, at: float, on: Spent) -> None:
        begin = self._since
        if at > begin:
            self.seconds[self.spending] = self.seconds.get(self.spending, 0.0) + at - begin
            if self.spending != "tool":
                self._stretch(Span(self.spending, begin, at))
        self.spending, self._since = on, max(at, begin)

    def call(self, begin: float, end: float, step: int) -> None:
        self._add(Span("tool", begin, max(begin, end), step))

    def _stretch(self, span: Span) -> None:
        """Add a span, or extend the last one if it is of the same kind."""
        last = self.spans[-1] if self.spans else None
        if last is not None and last[:1] + last[2:] == (span.spent, span.begin, 0):
            self.spans[-1] = last._replace(end=span.end)
        else:
            self._add(span)

    def _add(self, span: Span) -> None:
        self.spans.append(span)
        if len(self.spans) >= SPANS:
            self.spans = thinned(self.spans)


def thinned(spans: list[Span]) -> list[Span]:
    """Halve the number of spans: of two neighbours the longer one stands for both."""
    spans = sorted(spans, key=lambda span: (span.begin, span.end))
    fewer = []
    for first, second in zip(spans[::2], spans[1::2], strict=False):
        longer = max(first, second, key=lambda span: span.end - span.begin)
        fewer.append(longer._replace(begin=first.begin, end=max(first.end, second.end)))
    return fewer + (spans[-1:] if len(spans) % 2 else [])

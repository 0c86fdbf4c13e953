"""What a child's output means, as a profile says it: all of a profile that is not needed to start its child."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shim.core.vendor.tools import Tools
from shim.profiles.check.toml_errors import Spot
from shim.profiles.compile.emits import CAUSES, TEXT_MODES, Told
from shim.profiles.compile.rules import RULES, Rules, Trace
from shim.profiles.run.tally import MEANINGS

IDS = ("session", "process")
RESULTS = ("next", "late")
ENDS = ("event", "synthesize")
REPORT_EMITS = ("session", "usage", "result", "notice", "error", "ignore")  # a run is over when its file is read
STDERR_RULES = 50
EXIT_CAUSES = (*CAUSES, "interrupted")
STREAM_KEYS = ("text", "usage", "end", "ids", "results", "stderr_noise", "saves_late", "given_id")


class StderrRule(NamedTuple):
    """One `[[stderr]]`: a regular expression with the group `session_id`, or one whose group `error` is a reason."""

    regex: str
    emit: str
    cause: Any  # a Cause, or None


class Stream(NamedTuple):
    """A checked `[stream]`, `[[event]]`, `[[report]]`, `[[stderr]]` and `[exit_codes]`.

    described       the rules as they were written, for who asks what they name
    rules, reports  those of events, and those of the file that the program wrote about its run
    untyped         some events are told from others without their `type`
    ok_exits        exit codes behind which a whole answer is a success, where `synthesizes` makes that one
    causes          why a turn failed that ended with an exit code
    noise           beginnings of lines on stderr that never are the reason of a failure
    usage_means     Usage of what (usage.MEANINGS)
    counts_replies  a rule says how a reply ended
    """

    told: Told
    described: Any
    rules: Rules
    reports: Rules | None
    untyped: bool
    ok_exits: frozenset[int]
    synthesizes: bool
    causes: Mapping[int, str]
    stderr: tuple[StderrRule, ...]
    noise: tuple[str, ...]
    usage_means: str
    counts_replies: bool


def stream(spot: Spot, tools: Tools, trace: Trace | None = None) -> Stream:
    """What a whole profile says of its stream. FrontendError, with file, line and key, where that is wrong.

    The rules of a bundled profile are not checked here: our tests do that.
    """
    own, events = spot.at("stream"), spot.at("event").items(RULES)
    own.table(STREAM_KEYS)
    late = own.at("results").choice(RESULTS, RESULTS[0]) == "late"
    text = own.at("text").choice(TEXT_MODES, "final")
    told = Told(
        tools,
        text,
        late=late,
        hides=spot.at("unknown_tools").value == "hide",
        marks=own.at("ids").choice(IDS, IDS[0]) == "process",
        pieces=any(one.table().get("emit") == "tool_input" for one in events),
        reconciled=_reconciled(events, text),
    )
    rules = Rules(events, told, trace)
    if not spot.source.bundled:
        rules.check()
    if not events:
        raise spot.refused("a profile with at least one [[event]]", "a profile without")
    end = own.at("end")
    end.table(("ok_exit", "result"))
    return Stream(
        told,
        described=spot.value.get("event"),
        rules=rules,
        reports=_reports(spot, told),
        untyped=any(one.types is None and one.emits != "session" for one in rules),
        ok_exits=ok_exits(spot),
        synthesizes=end.at("result").choice(ENDS, ENDS[0]) == "synthesize",
        causes={_code(spot.at("exit_codes").at(key)): text for key, text in _causes(spot.at("exit_codes")).items()},
        stderr=tuple(_stderr(one) for one in spot.at("stderr").items(STDERR_RULES)),
        noise=own.at("stderr_noise").texts(50),
        usage_means=own.at("usage").choice(MEANINGS, "none"),
        counts_replies=any(one.value.get("stop_reason") for one in events),
    )


def ok_exits(spot: Spot) -> frozenset[int]:
    """The exit codes that do not contradict a vendor's own "done"."""
    codes = spot.at("stream").at("end").at("ok_exit").items(20)
    return frozenset(int(one.number(0, 255)) for one in codes) or frozenset((0,))


def _reconciled(rules: list[Spot], text: str) -> frozenset[str]:
    """Of text and thinking those that a profile streams and says whole too, without a name for the block."""
    found: dict[str, set[str]] = {"text": set(), "thinking": set()}
    for one in rules:
        table = one.table()
        if table.get("emit") in ("text", "thinking") and "block" not in table:
            found[table["emit"]].add("final" if table.get("mode", text) == "final" else "streamed")
    return frozenset(kind for kind, modes in found.items() if len(modes) > 1)


def _reports(spot: Spot, told: Told) -> Rules | None:
    """The rules for the file that the program wrote about its run."""
    spots = spot.at("report").items(RULES)
    if not spots:
        return None
    if not spot.at("launch").at("report"):
        raise spot.at("report").refused("in a profile with `launch.report`")
    rules = Rules(spots, told)
    if not spot.source.bundled:
        rules.check()
    for one in rules:
        if one.types is not None:
            raise one.spot.at("match").refused("without `type`: the file has none")
        if one.emits not in REPORT_EMITS:
            raise one.spot.at("emit").refused(f"one of {', '.join(REPORT_EMITS)}")
    return rules


def _causes(spot: Spot) -> dict[str, str]:
    return {key: spot.at(key).choice(EXIT_CAUSES) for key in spot.table()}


def _code(spot: Spot) -> int:
    key = str(spot.keys[-1])
    if not (key.isascii() and key.isdigit() and int(key) < 256):
        raise spot.refused("under an exit code from 0 to 255", key)
    return int(key)


def _stderr(spot: Spot) -> StderrRule:
    spot.table(("regex", "emit", "cause", "note"))
    emit = spot.at("emit").choice(("session", "error"))
    if not spot.source.bundled:
        groups = spot.at("regex").pattern().groupindex
        if emit == "session" and "session_id" not in groups:
            raise spot.at("regex").refused("a regular expression with a group (?P<session_id>…)")
    return StderrRule(spot.at("regex").text(), emit, spot.at("cause").choice(CAUSES) if spot.at("cause") else None)

"""What a child's output means, as a profile says it: all of a profile that is not needed to start
its child.
"""

from typing import TYPE_CHECKING, Any

from shim.core.adapter.tools import Tools
from shim.profiles.check.toml_errors import ConfigNode
from shim.profiles.compile.emits import CAUSES, RULES, Told
from shim.profiles.compile.rules import Rules
from shim.profiles.run.tally import MEANINGS

if TYPE_CHECKING:
    from shim.profiles.compile.rules import RuleTrace

ENDS = ("event", "synthesize")
# a run is over when its file is read
REPORT_EMITS = ("session", "usage", "result", "notice", "error", "ignore")
STDERR_RULES = 50
EXIT_CAUSES = (*CAUSES, "interrupted")
STREAM_KEYS = (
    "text",
    "usage",
    "end",
    "ids",
    "results",
    "stderr_noise",
    "saves_late",
    "given_id",
    "parent",
)


class StderrRule:
    """One `[[stderr]]`: a regular expression with the group `session_id`, or one whose group
    `error` is a reason.
    """

    def __init__(self, spot: ConfigNode) -> None:
        spot.table(("regex", "emit", "cause", "note"))
        self.regex = spot.at("regex").regex()
        self.emit = spot.at("emit").choice(("session", "error"))
        groups = {"session_id": 1} if spot.source.bundled else spot.at("regex").pattern().groupindex
        if self.emit == "session" and "session_id" not in groups:
            raise spot.at("regex").refused("a regular expression with a group (?P<session_id>…)")
        self.cause: Any = spot.at("cause").choice(CAUSES) if spot.at("cause") else None


class StreamProfile:
    """A checked `[stream]`, `[[event]]`, `[[report]]`, `[[stderr]]` and `[exit_codes]`.

    told            what holds for all rules
    rules, reports  those of events, and those of the file that the program wrote about its run
    untyped         some events are told from others without their `type`
    ok_exits        exit codes behind which a whole answer is a success, where `synthesizes` makes
                    that one
    causes          why a turn failed that ended with an exit code
    stderr          what is read off stderr
    noise           beginnings of lines on stderr that never are the reason of a failure
    usage_means     what the numbers of a usage are (tally.MEANINGS)
    counts_replies  a rule says how a reply ended
    """

    def __init__(self, spot: ConfigNode, tools: Tools, trace: "RuleTrace | None" = None) -> None:
        """`spot` is the whole profile. FrontendError, with file, line and key, where it is wrong.

        The rules of a bundled profile are not checked here: our tests do that.
        """
        own, events, codes = spot.at("stream"), spot.at("event").items(RULES), spot.at("exit_codes")
        own.table(STREAM_KEYS)
        self.told = Told(spot, tools)
        self.rules = Rules(events, self.told, trace)
        if not spot.source.bundled:
            self.rules.check()
        if not events:
            raise spot.refused("a profile with at least one [[event]]", told="a profile without")
        end = own.at("end")
        end.table(("ok_exit", "result"))
        self.reports = _reports(spot, self.told)
        self.untyped = any(one.types is None and one.emits != "session" for one in self.rules)
        self.ok_exits = frozenset(
            int(one.number(0, 255)) for one in end.at("ok_exit").items(20)
        ) or frozenset((0,))
        self.synthesizes = end.at("result").choice(ENDS, ENDS[0]) == "synthesize"
        self.causes: dict[int, Any] = {
            _code(codes.at(key)): codes.at(key).choice(EXIT_CAUSES) for key in codes.table()
        }
        self.stderr = tuple(StderrRule(one) for one in spot.at("stderr").items(STDERR_RULES))
        self.noise = own.at("stderr_noise").texts(50)
        self.usage_means = own.at("usage").choice(MEANINGS, "none")
        self.counts_replies = any(one.value.get("stop_reason") for one in events)


def _reports(spot: ConfigNode, told: Told) -> Rules | None:
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
            raise one.node.at("match").refused("without `type`: the file has none")
        if one.emits not in REPORT_EMITS:
            raise one.node.at("emit").refused(f"one of {', '.join(REPORT_EMITS)}")
    return rules


def _code(spot: ConfigNode) -> int:
    key = str(spot.keys[-1])
    if not (key.isascii() and key.isdigit() and int(key) < 256):
        raise spot.refused("under an exit code from 0 to 255", key)
    return int(key)

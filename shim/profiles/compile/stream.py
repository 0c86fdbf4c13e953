"""What a child's output means, as a profile says it: all of a profile that is not needed to start
its child.
"""

from typing import TYPE_CHECKING, Any

from shim.core.adapter.tools import Tools
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.compile.emits import MAX_RULES, PROFILE_CAUSES, ProfileStreamOptions
from shim.profiles.compile.rules import ProfileEventRules
from shim.profiles.run.usage_counter import USAGE_MEANINGS

if TYPE_CHECKING:
    from shim.profiles.compile.rules import RuleTrace

END_POLICIES = ("event", "synthesize")
# a run is over when its file is read
REPORT_EMITS = ("session", "usage", "result", "notice", "error", "ignore")
MAX_STDERR_RULES = 50
EXIT_CAUSES = (*PROFILE_CAUSES, "interrupted")
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

    def __init__(self, node: ConfigNode) -> None:
        node.read_table(("regex", "emit", "cause", "note"))
        self.regex = node.child("regex").read_regex()
        self.emit = node.child("emit").read_choice(("session", "error"))
        groups = (
            {"session_id": 1}
            if node.source.is_bundled
            else node.child("regex").compile_pattern().groupindex
        )
        if self.emit == "session" and "session_id" not in groups:
            raise node.child("regex").build_error(
                "a regular expression with a group (?P<session_id>…)"
            )
        self.cause: Any = (
            node.child("cause").read_choice(PROFILE_CAUSES) if node.child("cause") else None
        )


class StreamProfile:
    """A checked `[stream]`, `[[event]]`, `[[report]]`, `[[stderr]]` and `[exit_codes]`.

    options         what holds for all rules
    rules, reports  those of events, and those of the file that the program wrote about its run
    untyped         some events are told from others without their `type`
    ok_exits        exit codes behind which a whole answer is a success, where `synthesizes` makes
                    that one
    causes          why a turn failed that ended with an exit code
    stderr          what is read off stderr
    noise           beginnings of lines on stderr that never are the reason of a failure
    usage_means     what the numbers of a usage are (tally.USAGE_MEANINGS)
    counts_replies  a rule says how a reply ended
    """

    def __init__(self, node: ConfigNode, tools: Tools, trace: "RuleTrace | None" = None) -> None:
        """`node` is the whole profile. FrontendError, with file, line and key, where it is wrong.

        The rules of a bundled profile are not checked here: our tests do that.
        """
        stream_node, event_nodes, codes_node = (
            node.child("stream"),
            node.child("event").read_items(MAX_RULES),
            node.child("exit_codes"),
        )
        stream_node.read_table(STREAM_KEYS)
        self.options = ProfileStreamOptions(node, tools)
        self.rules = ProfileEventRules(event_nodes, self.options, trace)
        if not node.source.is_bundled:
            self.rules.check_all_rules()
        if not event_nodes:
            raise node.build_error(
                "a profile with at least one [[event]]", description="a profile without"
            )
        end_node = stream_node.child("end")
        end_node.read_table(("ok_exit", "result"))
        self.reports = _parse_reports(node, self.options)
        self.untyped = any(rule.types is None and rule.emit != "session" for rule in self.rules)
        self.ok_exits = frozenset(
            int(code_node.read_number(0, 255))
            for code_node in end_node.child("ok_exit").read_items(20)
        ) or frozenset((0,))
        self.synthesizes = (
            end_node.child("result").read_choice(END_POLICIES, END_POLICIES[0]) == "synthesize"
        )
        self.causes: dict[int, Any] = {
            _parse_exit_code(codes_node.child(key)): codes_node.child(key).read_choice(EXIT_CAUSES)
            for key in codes_node.read_table()
        }
        self.stderr = tuple(
            StderrRule(rule_node) for rule_node in node.child("stderr").read_items(MAX_STDERR_RULES)
        )
        self.noise = stream_node.child("stderr_noise").read_texts(50)
        self.usage_means = stream_node.child("usage").read_choice(USAGE_MEANINGS, "none")
        self.counts_replies = any(event_node.value.get("stop_reason") for event_node in event_nodes)


def _parse_reports(node: ConfigNode, options: ProfileStreamOptions) -> ProfileEventRules | None:
    """The rules for the file that the program wrote about its run."""
    rule_nodes = node.child("report").read_items(MAX_RULES)
    if not rule_nodes:
        return None
    if not node.child("launch").child("report"):
        raise node.child("report").build_error("in a profile with `launch.report`")
    rules = ProfileEventRules(rule_nodes, options)
    if not node.source.is_bundled:
        rules.check_all_rules()
    for rule in rules:
        if rule.types is not None:
            raise rule.node.child("match").build_error("without `type`: the file has none")
        if rule.emit not in REPORT_EMITS:
            raise rule.node.child("emit").build_error(f"one of {', '.join(REPORT_EMITS)}")
    return rules


def _parse_exit_code(node: ConfigNode) -> int:
    key = str(node.keys[-1])
    if not (key.isascii() and key.isdigit() and int(key) < 256):
        raise node.build_error("under an exit code from 0 to 255", key)
    return int(key)

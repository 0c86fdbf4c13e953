"""Reads the part of a profile that describes the child's output. This part is not needed to start
the child.
"""

from typing import TYPE_CHECKING, Any

from shim.core.adapter.tools import Tools
from shim.profiles.check.config_node import ConfigKey, ConfigNode
from shim.profiles.compile.emits import (
    ID_SCOPES,
    MAX_RULES,
    PROFILE_CAUSES,
    RESULT_TIMINGS,
    TEXT_MODES,
    ProfileTranslationOptions,
)
from shim.profiles.compile.rules import ProfileEventRules
from shim.profiles.run.usage_counter import USAGE_MEANINGS

if TYPE_CHECKING:
    from shim.profiles.compile.rules import ProfileRuleMatchObserver

END_POLICIES = ("event", "synthesize")
# The outputs that report rules may have. The report is read after the run, when it is too late for
# other outputs.
REPORT_EMITS = ("session", "usage", "result", "notice", "error", "ignore")
MAX_STDERR_RULES = 50
EXIT_CAUSES = (*PROFILE_CAUSES, "interrupted")
STREAM_END_KEYS = {
    "ok_exit": ConfigKey.for_node(
        "a list of numbers", "the exit codes of a success, `[0]` by default"
    ),
    "result": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "a turn succeeds if a `result` rule reported success. With `synthesize`, it also "
        "succeeds if the program exits with a code in `ok_exit` after a complete message",
        END_POLICIES,
    ),
}
STREAM_KEYS = {
    "text": ConfigKey(
        ConfigNode.read_choice,
        "what the text of a `text` rule is: a new piece, the text so far, or the complete text",
        TEXT_MODES,
        "final",
    ),
    "usage": ConfigKey(
        ConfigNode.read_choice,
        "what usage numbers mean. `request`: numbers of one request, which are added up. "
        "`run_total`: totals of the run, so the last ones are used. `thread_total`: "
        "totals of the session, from which the totals of earlier turns are subtracted",
        USAGE_MEANINGS,
        "none",
    ),
    "end": ConfigKey(ConfigNode.read_keys, "when a turn succeeds", STREAM_END_KEYS),
    "ids": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "the scope in which tool call ids are unique",
        ID_SCOPES,
    ),
    "results": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "`late`: the result of a call may follow the next text, or be missing. While "
        "calls are open, a complete text is buffered until the next event",
        RESULT_TIMINGS,
    ),
    "stderr_noise": ConfigKey(
        ConfigNode.read_text_list,
        "prefixes of stderr lines that are never the reason for a failure",
        50,
    ),
    "saves_late": ConfigKey(
        ConfigNode.read_bool,
        "whether a session can only be resumed after a complete message",
        successor="",
    ),
    "given_id": ConfigKey(
        ConfigNode.read_bool,
        "the shim chooses each new session's id and passes it as `{session_id}`, because "
        "the program reports its id too late",
    ),
    "parent": ConfigKey.for_node(
        "a field", "the path to the id of the tool call that runs the event's subagent"
    ),
}


class StderrPatternRule:
    """One `[[stderr]]` rule. Its regular expression has the group `session_id`, or the group
    `error` for the reason for a failure.
    """

    def __init__(self, node: ConfigNode) -> None:
        node.read_table(("regex", "emit", "cause", "note"))
        self.regex = node.get_child("regex").read_regex()
        self.emit = node.get_child("emit").read_choice(("session", "error"))
        groups = (
            {"session_id": 1}
            if node.source.is_bundled
            else node.get_child("regex").compile_pattern().groupindex
        )
        if self.emit == "session" and "session_id" not in groups:
            raise node.get_child("regex").build_error(
                "a regular expression with a group (?P<session_id>…)"
            )
        if node.get_child("cause"):
            self.cause: Any = node.get_child("cause").read_choice(PROFILE_CAUSES)
        else:
            self.cause = None


class ParsedStreamRules:
    """A profile's `[stream]`, `[[event]]`, `[[report]]`, `[[stderr]]` and `[exit_codes]`, after
    validation.

        options         the options that apply to all rules
        rules           the rules for events
        reports         the rules for the report file that the program writes about its run
        untyped         whether a rule (other than a `session` rule) applies to events of any type
        ok_exits        the exit codes that mean success
        synthesizes     whether a complete answer and such an exit code mean success even if the
                        child has not reported a result
        causes          exit code → cause of the failure
        stderr          the rules for stderr lines
        ignored_stderr_prefixes  prefixes of stderr lines that are never the reason for a failure
        usage_means     the meaning of the usage figures (usage_counter.USAGE_MEANINGS)
        counts_replies  whether a rule reports the end of each message
    """

    def __init__(
        self, node: ConfigNode, tools: Tools, trace: "ProfileRuleMatchObserver | None" = None
    ) -> None:
        """Read the rules from a profile. `node` is the complete profile. Raise FrontendError with
        file, line and key for an invalid value.

        The rules of a bundled profile are not checked here, because the tests check them.
        """
        stream = node.get_child("stream").read_keys(STREAM_KEYS)
        event_nodes = node.get_child("event").read_items(MAX_RULES)
        codes_node = node.get_child("exit_codes")
        self.options = ProfileTranslationOptions(node, stream, tools)
        self.rules = ProfileEventRules(event_nodes, self.options, trace)
        if not node.source.is_bundled:
            self.rules.check_all_rules()
        if not event_nodes:
            raise node.build_error(
                "a profile with at least one [[event]]", description="a profile without [[event]]"
            )
        self.reports = _parse_reports(node, self.options)
        self.untyped = any(rule.types is None and rule.emit != "session" for rule in self.rules)
        self.ok_exits = frozenset(
            int(code_node.read_number(0, 255))
            for code_node in stream["end"]["ok_exit"].read_items(20)
        ) or frozenset((0,))
        self.synthesizes = stream["end"]["result"] == "synthesize"
        self.causes: dict[int, Any] = {
            _parse_exit_code(codes_node.get_child(key)): codes_node.get_child(key).read_choice(
                EXIT_CAUSES
            )
            for key in codes_node.read_table()
        }
        self.stderr = tuple(
            StderrPatternRule(rule_node)
            for rule_node in node.get_child("stderr").read_items(MAX_STDERR_RULES)
        )
        self.ignored_stderr_prefixes = stream["stderr_noise"]
        self.usage_means = stream["usage"]
        self.counts_replies = any(event_node.value.get("stop_reason") for event_node in event_nodes)


def _parse_reports(
    node: ConfigNode, options: ProfileTranslationOptions
) -> ProfileEventRules | None:
    """Return the rules for the program's report file, or None if the profile has no such rules."""
    rule_nodes = node.get_child("report").read_items(MAX_RULES)
    if not rule_nodes:
        return None
    if not node.get_child("launch").get_child("report"):
        raise node.get_child("report").build_error("omitted, or used together with `launch.report`")
    rules = ProfileEventRules(rule_nodes, options)
    if not node.source.is_bundled:
        rules.check_all_rules()
    for rule in rules:
        if rule.types is not None:
            raise rule.node.get_child("match").build_error(
                "a condition without `type`, because the report file has no event types"
            )
        if rule.emit not in REPORT_EMITS:
            raise rule.node.get_child("emit").build_error(f"one of {', '.join(REPORT_EMITS)}")
    return rules


def _parse_exit_code(node: ConfigNode) -> int:
    key = str(node.keys[-1])
    if not (key.isascii() and key.isdigit() and int(key) < 256):
        raise node.build_error("an exit code from 0 to 255", key)
    return int(key)

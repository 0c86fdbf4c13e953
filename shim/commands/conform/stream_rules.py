"""Defines conformance rules about stream-json output (contract P8-P12, 2): its bytes and lines, the
order of events in a turn, and the fields of each line.
"""

from collections.abc import Sequence
from uuid import UUID

from shim.commands.conform.observations import (
    CONVERSATION_TYPES,
    DROP_IN,
    ConformanceRuleSet,
    ObservedCommandRuns,
    RuleNotObservedError,
    RuleViolationError,
    check_field_types,
    describe_missing_output,
    fail_rule_if,
    is_new_conversation_line,
    list_turns_with_api_error,
    skip_rule_if,
    split_run_into_turns,
)
from shim.commands.conform.process import CommandRun, CommandStdoutLine, JsonObject
from shim.core.claude.grammar import (
    get_parent_call_id,
    is_init_line,
    list_content_blocks,
    list_tool_calls,
)
from shim.core.reading.diagnostics import pluralize

MAX_LINE_CHARS = 1_048_576  # the Python SDK's default limit
MAX_YUME_LINE_BYTES = 100_000  # Yume's approximate limit
SIGNALLED_RUNS = ("sigterm", "sigint")  # a turn that is ended by a signal may have no result

INIT_FIELDS = (
    "cwd",
    "session_id",
    "tools",
    "model",
    "permissionMode",
    "mcp_servers",
    "slash_commands",
    "apiKeySource",
)
RESULT_FIELDS = {
    "subtype": str,
    "is_error": bool,
    "duration_ms": int | float,
    "duration_api_ms": int | float,
    "num_turns": int,
    "session_id": str,
    "total_cost_usd": int | float,
    "usage": dict,
    "modelUsage": dict,
    "permission_denials": list,
    "uuid": str,
}
TOKEN_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
ASSISTANT_FIELDS = ("id", "type", "role", "model", "content", "usage")
BLOCK_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "signature": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}
# Tool → fields that its `tool_use_result` must have. Read is not listed, because a drop-in cannot
# know the fields of its result.
TOOL_RESULT_FIELDS = {
    "Bash": ("stdout", "stderr", "interrupted"),
    "Write": ("filePath", "content"),
    "Edit": ("filePath", "oldString", "newString"),
}

RULES = ConformanceRuleSet()


def _list_lines(observations: ObservedCommandRuns) -> list[tuple[CommandRun, CommandStdoutLine]]:
    return [(run, line) for run in observations.get_stream_json_runs() for line in run.lines]


def _get_lines(
    observations: ObservedCommandRuns, *types: str
) -> list[tuple[CommandRun, JsonObject]]:
    """Return the lines of these types. Raise RuleNotObservedError if there are none."""
    lines = [
        (run, value)
        for run in observations.get_stream_json_runs()
        for value in run.find_lines(*types)
    ]
    if not lines:
        raise RuleNotObservedError(f"no {' or '.join(types)} line was printed")
    return lines


def _list_missing(value: JsonObject, keys: Sequence[str]) -> str:
    return ", ".join(key for key in keys if key not in value)


# -- bytes and lines -------------------------------------------------------------------------------


@RULES.register_must_rule(
    "P8", "stdout contains only JSON objects, one per line, and each line ends with a newline."
)
def _only_lines(observations: ObservedCommandRuns) -> str:
    for run, line in _list_lines(observations):
        if line.error.startswith("the line is") and not line.raw.lstrip().startswith(b"{"):
            raise RuleViolationError(line.error, run, line.raw)
    for run in observations.get_stream_json_runs():
        if (
            run.stdout
            and not run.stdout.endswith(b"\n")
            and run.name not in SIGNALLED_RUNS
            and not run.is_flooded
        ):
            raise RuleViolationError("the last line has no newline", run, run.lines[-1].raw)
        fail_rule_if(run.is_flooded, "the command printed more than the limit for a run", run)
    return (
        f"{pluralize(len(_list_lines(observations)), 'line')} of "
        f"{pluralize(len(observations.get_stream_json_runs()), 'run')}"
    )


@RULES.register_must_rule(
    "P9", "Every line is an object with a type, not null, an array or a bare value."
)
def _every_line_has_a_type(observations: ObservedCommandRuns) -> str:
    for run, line in _list_lines(observations):
        if not line.error and not (
            isinstance(line.value, dict) and isinstance(line.value.get("type"), str)
        ):
            raise RuleViolationError("a line that has no type", run, line.raw)
    return pluralize(len(_list_lines(observations)), "line")


@RULES.register_must_rule("P10", "Every line that begins with { can be parsed as JSON.")
def _every_object_is_whole(observations: ObservedCommandRuns) -> str:
    for run, line in _list_lines(observations):
        if line.error.startswith("the line is") and line.raw.lstrip().startswith(b"{"):
            raise RuleViolationError(line.error, run, line.raw)
    return pluralize(len(_list_lines(observations)), "line")


@RULES.register_must_rule("P11", "stdout is valid UTF-8.")
def _utf8(observations: ObservedCommandRuns) -> str:
    for run, line in _list_lines(observations):
        fail_rule_if("UTF-8" in line.error, line.error, run, line.raw)
    return pluralize(len(_list_lines(observations)), "line")


@RULES.register_must_rule("P12", f"No line has {MAX_LINE_CHARS:,} characters or more.", DROP_IN)
def _lines_end(observations: ObservedCommandRuns) -> str:
    longest = 0
    for run, line in _list_lines(observations):
        length = len(line.raw.decode("utf-8", "replace"))
        longest = max(longest, length)
        fail_rule_if(length >= MAX_LINE_CHARS, f"a line with {length} characters", run, line.raw)
    return f"the longest line has {longest} characters"


@RULES.register_should_rule(
    "P12",
    f"If Yume starts the command, no line has more than {MAX_YUME_LINE_BYTES:,} bytes.",
    DROP_IN,
)
def _short_lines_for_yume(observations: ObservedCommandRuns) -> str:
    yume_lines = [(run, line) for run, line in _list_lines(observations) if run.frontend == "yume"]
    skip_rule_if(not yume_lines, "the command was not started with Yume's flags")
    for run, line in yume_lines:
        fail_rule_if(
            len(line.raw) > MAX_YUME_LINE_BYTES, f"a line with {len(line.raw)} bytes", run, line.raw
        )
    return f"the longest line has {max(len(line.raw) for _, line in yume_lines)} bytes"


# -- order of a turn -------------------------------------------------------------------------------


@RULES.register_must_rule(
    "S1", "A turn has one init line, then the conversation, then exactly one result."
)
def _turns_have_their_order(observations: ObservedCommandRuns) -> str:
    turns = observations.get_turns_of_runs()
    for turn in turns:
        if [is_init_line(line) for line in turn.lines].count(True) != 1:
            raise RuleViolationError(
                "a turn does not have exactly one init line", turn.run, turn.lines[0]
            )
        if not is_init_line(turn.conversation_lines[0]):
            raise RuleViolationError(
                "a line is before the init line of its turn", turn.run, turn.conversation_lines[0]
            )
        if not turn.result and turn.run.name not in SIGNALLED_RUNS:
            raise RuleViolationError(
                f"a turn has no result{describe_missing_output(turn.run)}", turn.run
            )
        for line in turn.following_lines:
            fail_rule_if(
                is_new_conversation_line(line),
                "the conversation continues after the result",
                turn.run,
                line,
            )
    for run in observations.get_stream_json_runs():
        fail_rule_if(
            not split_run_into_turns(run), f"there is no turn{describe_missing_output(run)}", run
        )
    return pluralize(len(turns), "turn")


@RULES.register_must_rule(
    "S2",
    "With messages on stdin, an init line is printed before every turn, and none before "
    "the first message.",
)
def _init_waits_for_a_message(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("conversation")
    earlier_lines = run.lines[: run.line_counts.get("initialized", 0)]
    for line in earlier_lines:
        if isinstance(line.value, dict) and is_init_line(line.value):
            raise RuleViolationError("an init line was printed before any message", run, line.raw)
    first_turn = observations.get_finished_turn("conversation")
    second_turn = observations.get_finished_turn("conversation", 1)
    if not (first_turn.init_line and second_turn.init_line):
        raise RuleViolationError("a turn of a conversation has no init line", run)
    if first_turn.init_line.get("session_id") != second_turn.init_line.get("session_id"):
        raise RuleViolationError(
            "the second init line has a different session_id", run, second_turn.init_line
        )
    return "no init line before the first message, and one before each of 2 turns"


@RULES.register_must_rule("S3", "Every line of a run has the same session_id, and a uuid.")
def _ids(observations: ObservedCommandRuns) -> str:
    count = 0
    for run in observations.get_stream_json_runs():
        sessions = set()
        for line in run.find_lines("system", *CONVERSATION_TYPES):
            count += 1
            sessions.add(line.get("session_id"))
            if len(sessions) > 1 or not isinstance(line.get("session_id"), str):
                raise RuleViolationError("a different session_id, or no session_id", run, line)
            try:
                UUID(str(line.get("uuid")))
            except ValueError:
                raise RuleViolationError("no uuid", run, line) from None
    return pluralize(count, "line")


@RULES.register_must_rule("S1", "The init line has the fields that clients read.")
def _init_is_complete(observations: ObservedCommandRuns) -> str:
    inits = [(run, line) for run, line in _get_lines(observations, "system") if is_init_line(line)]
    for run, line in inits:
        fail_rule_if(
            missing := _list_missing(line, INIT_FIELDS), f"init lacks {missing}", run, line
        )
        fail_rule_if(not isinstance(line["tools"], list), "init.tools is not a list", run, line)
    skip_rule_if(not inits, "no init line was printed")
    return f"{len(inits)} inits"


@RULES.register_must_rule(
    "S9", "The result has all fields that clients need. An error result has a list of errors."
)
def _result_is_complete(observations: ObservedCommandRuns) -> str:
    results = _get_lines(observations, "result")
    for run, line in results:
        check_field_types(run, line, RESULT_FIELDS)
        fail_rule_if(
            missing := _list_missing(line["usage"], TOKEN_FIELDS),
            f"usage lacks {missing}",
            run,
            line,
        )
        if line["subtype"] == "success" and not isinstance(line.get("result"), str):
            raise RuleViolationError("a success result has no text in `result`", run, line)
        if line["subtype"] != "success" and not (
            line["is_error"] and isinstance(line.get("errors"), list)
        ):
            raise RuleViolationError("an error result has no list in `errors`", run, line)
    return f"{len(results)} results"


@RULES.register_must_rule(
    "S10",
    "An API failure is reported as a <synthetic> assistant line, and as a `success` "
    "result with is_error and the same text.",
)
def _api_failures(observations: ObservedCommandRuns) -> str:
    failed_turns = list_turns_with_api_error(observations)
    for turn in failed_turns:
        error_lines = [
            line for line in turn.lines if line.get("error") and line.get("type") == "assistant"
        ]
        texts = [block.get("text") for line in error_lines for block in list_content_blocks(line)]
        if not error_lines or turn.result.get("result") not in texts:
            raise RuleViolationError(
                "no assistant line with `error` has the text of the result", turn.run, turn.result
            )
    skip_rule_if(not failed_turns, "no request to the model failed")
    return f"{len(failed_turns)} failed turns"


@RULES.register_must_rule(
    "S16b",
    "When an SDK starts the command, nothing except session states is printed after an error "
    "result.",
)
def _errors_are_last(observations: ObservedCommandRuns) -> str:
    failed_turns = [
        turn
        for turn in observations.get_turns_of_runs()
        if turn.is_failed and turn.run.frontend == "sdk"
    ]
    if "unknown-sdk" in observations.runs:
        failed_turns += split_run_into_turns(observations.runs["unknown-sdk"])
    for turn in failed_turns:
        for line in turn.following_lines:
            if line.get("type") not in (
                "control_response",
                "control_request",
                "keep_alive",
                "system",
            ):
                raise RuleViolationError(
                    "a line after an error result makes the SDKs lose the error", turn.run, line
                )
    skip_rule_if(not failed_turns, "no turn that was started with an SDK's flags failed")
    return f"{len(failed_turns)} error results"


@RULES.register_should_rule(
    "R7",
    "If Yume starts the command, `message_stop` is the last line, after the result.",
    DROP_IN,
)
def _terminator(observations: ObservedCommandRuns) -> str:
    runs = [
        run
        for run in observations.get_stream_json_runs()
        if run.frontend == "yume" and run.exit_status is not None and not run.sent_signal
    ]
    skip_rule_if(not runs, "the command was not started with Yume's flags")
    for run in runs:
        kinds = [line.get("type") for line in run.json_lines]
        if kinds[-2:] != ["result", "message_stop"]:
            raise RuleViolationError(
                "the last two lines are not a result and a message_stop", run, run.lines[-1].raw
            )
    return pluralize(len(runs), "run")


@RULES.register_must_rule(
    "S17", "No line has the type `error` or `end`, which the SDKs use internally."
)
def _no_word_of_the_sdks(observations: ObservedCommandRuns) -> str:
    for run in observations.get_stream_json_runs():
        for line in run.find_lines("error", "end"):
            raise RuleViolationError(f"a line of type {line['type']}", run, line)
    return pluralize(len(_list_lines(observations)), "line")


@RULES.register_must_rule("S18", "The last session state of a run is not `running`.")
def _states(observations: ObservedCommandRuns) -> str:
    state_count = 0
    for run in observations.get_stream_json_runs():
        states = [
            line.get("state")
            for line in run.find_lines("system")
            if line.get("subtype") == "session_state_changed"
        ]
        state_count += len(states)
        if states and states[-1] == "running" and run.exit_status is not None:
            raise RuleViolationError("the last state is `running`", run)
    return f"{state_count} states were printed"


@RULES.register_should_rule("S15", "`type` is the first key of every object, except in results.")
def _type_comes_first(observations: ObservedCommandRuns) -> str:
    for run, line in _list_lines(observations):
        if (
            isinstance(line.value, dict)
            and line.value.get("type") != "result"
            and next(iter(line.value), "") != "type"
        ):
            raise RuleViolationError("`type` is not the first key of the object", run, line.raw)
    return pluralize(len(_list_lines(observations)), "line")


# -- messages and tool calls -----------------------------------------------------------------------


@RULES.register_must_rule(
    "S4", "Each assistant line has exactly one block, and its stop_reason is always null."
)
def _one_block_a_line(observations: ObservedCommandRuns) -> str:
    turns = [turn for turn in observations.get_turns_of_runs() if not turn.is_failed]
    count = 0
    for turn in turns:
        for line in turn.lines:
            if line.get("type") == "assistant":
                count += 1
                if len(list_content_blocks(line)) != 1:
                    raise RuleViolationError(
                        f"a line with {len(list_content_blocks(line))} blocks", turn.run, line
                    )
                if (
                    line["message"].get("stop_reason") is not None
                    and line["message"].get("model") != "<synthetic>"
                ):
                    raise RuleViolationError("a stop_reason that is not null", turn.run, line)
    skip_rule_if(not count, "no successful turn has an assistant line")
    return pluralize(count, "line")


@RULES.register_must_rule(
    "S5",
    "Each assistant line has a complete message: id, type, role, model, content, and "
    "usage with four token counts.",
)
def _messages_are_whole(observations: ObservedCommandRuns) -> str:
    lines = _get_lines(observations, "assistant")
    for run, line in lines:
        message = line.get("message")
        if not isinstance(message, dict):
            raise RuleViolationError("the line has no message", run, line)
        fail_rule_if(
            missing := _list_missing(message, ASSISTANT_FIELDS),
            f"the message lacks {missing}",
            run,
            line,
        )
        if not isinstance(message["content"], list) or not isinstance(message["usage"], dict):
            raise RuleViolationError("content is not a list, or usage is not an object", run, line)
        fail_rule_if(
            missing := _list_missing(message["usage"], TOKEN_FIELDS),
            f"usage lacks {missing}",
            run,
            line,
        )
        fail_rule_if(
            "parent_tool_use_id" not in line, "the line lacks parent_tool_use_id", run, line
        )
    return pluralize(len(lines), "line")


@RULES.register_must_rule("S6", "Each text, thinking or tool_use block has all required fields.")
def _blocks_are_whole(observations: ObservedCommandRuns) -> str:
    blocks = [
        (run, line, block)
        for run, line in _get_lines(observations, "assistant")
        for block in list_content_blocks(line)
    ]
    for run, line, block in blocks:
        for key, kind in BLOCK_FIELDS.get(str(block.get("type")), {}).items():
            if not isinstance(block.get(key), kind):
                raise RuleViolationError(f"a {block['type']} block without {key}", run, line)
        fail_rule_if(not isinstance(block.get("type"), str), "a block without a type", run, line)
    return (
        f"{len(blocks)} blocks: {', '.join(sorted({str(block['type']) for _, _, block in blocks}))}"
    )


@RULES.register_must_rule(
    "S7",
    "A tool result is a separate user line after its call, with a tool_use_id and content.",
)
def _results_follow_their_calls(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in observations.get_turns_of_runs():
        call_ids: set[object] = set()
        for line in turn.lines:
            blocks = list_content_blocks(line)
            call_ids.update(call.get("id") for call in list_tool_calls(line))
            results = [block for block in blocks if block.get("type") == "tool_result"]
            if not results:
                continue
            count += 1
            if line.get("type") != "user" or len(blocks) > 1:
                raise RuleViolationError(
                    "a tool result that shares its user line with other blocks", turn.run, line
                )
            if results[0].get("tool_use_id") not in call_ids:
                raise RuleViolationError(
                    "a tool result that does not follow its call", turn.run, line
                )
            fail_rule_if(
                "content" not in results[0], "a tool result without content", turn.run, line
            )
    skip_rule_if(not count, "no tool was called")
    return f"{count} results"


@RULES.register_must_rule("S16c", "Every call has its result before the turn ends.")
def _every_call_is_answered(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in observations.get_turns_of_runs():
        calls = {call.get("id"): line for line, call in turn.list_tool_calls()}
        answered_ids = {result.get("tool_use_id") for _, result in turn.list_tool_results()}
        count += len(calls)
        for call_id, line in calls.items():
            if turn.result and call_id not in answered_ids:
                raise RuleViolationError("a call without a result", turn.run, line)
    skip_rule_if(not count, "no tool was called")
    return pluralize(count, "call")


@RULES.register_should_rule(
    "S8",
    "`tool_use_result` describes what Bash, Write and Edit did. It is a string if the call failed.",
)
def _results_tell_more(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in observations.get_turns_of_runs():
        names = {call.get("id"): call.get("name") for _, call in turn.list_tool_calls()}
        for line, result in turn.list_tool_results():
            keys = TOOL_RESULT_FIELDS.get(str(names.get(result.get("tool_use_id"))))
            if keys is None or get_parent_call_id(line):
                continue
            count += 1
            tool_result = line.get("tool_use_result")
            if (
                not isinstance(tool_result, str)
                if result.get("is_error")
                else not isinstance(tool_result, dict) or _list_missing(tool_result, keys)
            ):
                raise RuleViolationError("`tool_use_result` lacks some fields", turn.run, line)
    skip_rule_if(not count, "neither Bash, Write nor Edit was called")
    return f"{count} results"

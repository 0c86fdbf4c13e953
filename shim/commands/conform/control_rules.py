"""Defines conformance rules about the control protocol: control requests and responses, messages,
and permission prompts (contract 3).
"""

import json

from shim.commands.conform.observations import (
    DROP_IN,
    ConformanceRuleSet,
    ObservedCommandRuns,
    ObservedTurn,
    RuleNotObservedError,
    RuleViolationError,
    check_field_types,
    describe_missing_output,
    fail_rule_if,
    has_interrupt_text,
    list_turns_with_api_error,
    skip_rule_if,
    split_run_into_turns,
)
from shim.commands.conform.process import CommandRun, JsonObject, describe_awaited_control_response
from shim.commands.conform.scenarios import DENIAL_MESSAGE, MESSAGE_IDS, REQUESTS, UNKNOWN_SUBTYPE
from shim.core.claude.grammar import is_permission_request, list_tool_calls
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_dict

INITIALIZE_FIELDS = {
    "commands": list,
    "agents": list,
    "output_style": str,
    "available_output_styles": list,
    "models": list,
    "account": dict,
}
# An interrupted turn may still succeed, but only within this time after the response to `interrupt`.
MAX_INTERRUPT_SECONDS = 5.0

RULES = ConformanceRuleSet()


def _list_answers(run: CommandRun) -> list[tuple[str, JsonObject | None]]:
    """Return the subtype and the response of every control request in a run. The response is None
    if the request was not answered.
    """
    answers = []
    for stdin_write in run.stdin_writes:
        for raw in stdin_write.data.split(b"\n"):
            if b'"control_request"' in raw and b'"request"' in raw:
                value = json.loads(raw)
                if "request_id" in value:
                    answers.append(
                        (
                            value["request"]["subtype"],
                            run.find_control_response(value["request_id"]),
                        )
                    )
    return answers


def _get_answer(run: CommandRun, subtype: str) -> JsonObject:
    """Return the response to the first control request with this subtype.

    Raise RuleViolationError if the request was not answered, and RuleNotObservedError if no such
    request was sent.
    """
    for request_subtype, response in _list_answers(run):
        if request_subtype == subtype:
            if response is None:
                raise RuleViolationError(
                    f"{subtype} was not answered{describe_missing_output(run)}", run
                )
            return response
    raise RuleNotObservedError(f"the run ended before this check{describe_missing_output(run)}")


def _get_answer_body(run: CommandRun, subtype: str) -> JsonObject:
    """Return the body of the response to a control request. Raise RuleViolationError if the
    response is an error.
    """
    response = _get_answer(run, subtype)
    fail_rule_if(
        response.get("subtype") != "success", f"{subtype} was answered with an error", run, response
    )
    return as_dict(response.get("response"))


@RULES.register_must_rule("C1", "initialize is answered with `success`.")
def _initialize(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    _get_answer_body(run, "initialize")
    return "success"


@RULES.register_must_rule(
    "C2",
    "initialize is answered at any time and repeatedly: before the first message, before "
    "queued messages, and after a message.",
)
def _initialize_at_any_time(observations: ObservedCommandRuns) -> str:
    for name in ("control", "queue", "conversation"):
        run = observations.get_run(name)
        responses = [
            response for subtype, response in _list_answers(run) if subtype == "initialize"
        ]
        if name == "conversation" and len(responses) < 2:
            raise RuleNotObservedError(
                f"the conversation ended before this check{describe_missing_output(run)}"
            )
        for response in responses:
            if response is None or response.get("subtype") != "success":
                raise RuleViolationError("initialize was not answered", run, response)
            if "models" not in as_dict(response.get("response")):
                raise RuleViolationError("the second answer has fewer fields", run, response)
    return "each request was answered"


@RULES.register_must_rule(
    "C3",
    "The answer to initialize has commands, agents, output styles, an account and at least one model.",
)
def _initialize_is_complete(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    body = _get_answer_body(run, "initialize")
    check_field_types(run, body, INITIALIZE_FIELDS)
    if not body["models"] or any(
        not {"value", "displayName", "description"} <= set(model) for model in body["models"]
    ):
        raise RuleViolationError(
            "no model, or a model that lacks value, displayName or description", run, body["models"]
        )
    return f"{len(body['models'])} models"


@RULES.register_must_rule(
    "C4",
    "Every answer has the request_id of its request, and is a `success`, or an `error` with a message.",
)
def _envelope(observations: ObservedCommandRuns) -> str:
    runs = [
        run
        for run in observations.get_runs("control", "conversation", "queue", "interrupt", "tools")
        if run.lines
    ]
    count = 0
    for run in runs:
        for value in run.find_lines("control_response"):
            count += 1
            response = value.get("response")
            if not isinstance(response, dict) or response.get("subtype") not in (
                "success",
                "error",
            ):
                raise RuleViolationError(
                    "the answer is not a control_response with `success` or `error`", run, value
                )
            if response["subtype"] == "error" and not isinstance(response.get("error"), str):
                raise RuleViolationError("an error answer without a message", run, value)
        for subtype, response in _list_answers(run):
            if response is None and (
                run.exit_status is not None
                or run.timed_out_on == describe_awaited_control_response(subtype)
            ):
                raise RuleViolationError(f"{subtype} was not answered with its request_id", run)
    if not count:
        raise RuleViolationError("no request was answered", runs[0] if runs else None)
    return f"{count} answers"


@RULES.register_must_rule("C5", "An unknown request is answered with an error that names it.")
def _unknown_request(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    response = _get_answer(run, UNKNOWN_SUBTYPE)
    expected = f"Unsupported control request subtype: {UNKNOWN_SUBTYPE}"
    if response.get("subtype") != "error" or response.get("error") != expected:
        raise RuleViolationError("the answer is not as expected", run, response)
    return expected


@RULES.register_must_rule(
    "C6",
    "An interrupt is answered with `success`. If no turn is running, nothing else is printed.",
)
def _idle_interrupt(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    _get_answer_body(run, "interrupt")
    for line in run.find_lines("user", "assistant", "result"):
        raise RuleViolationError("something was printed although there was no turn", run, line)
    return "the answer was a success, and nothing else was printed"


def _find_arrival_s(run: CommandRun, line_value: JsonObject | None) -> float:
    """Return the arrival time of a line, or of the line that contains a `response`. Return 0 if the
    line did not arrive.
    """
    for line in run.lines:
        if line_value and line_value in (line.value, as_dict(line.value).get("response")):
            return line.time_s
    return 0.0


def _get_interrupted_turn(observations: ObservedCommandRuns) -> ObservedTurn:
    run = observations.get_run("interrupt")
    fail_rule_if(
        "interrupted" not in run.line_counts,
        f"the turn printed nothing{describe_missing_output(run)}",
        run,
    )
    turn = observations.get_finished_turn("interrupt")
    if turn.result.get("subtype") == "success":
        delay_s = _find_arrival_s(run, turn.result) - _find_arrival_s(
            run, run.find_control_response("conform_2_interrupt")
        )
        fail_rule_if(
            delay_s > MAX_INTERRUPT_SECONDS,
            f"the turn was not stopped: it ran for another {delay_s:.0f} s and then completed",
            run,
            turn.result,
        )
        raise RuleNotObservedError(
            "the turn was over before the interrupt; a longer --long-prompt may help"
        )
    return turn


@RULES.register_must_rule(
    "C6",
    "An interrupted turn ends with `[Request interrupted by user]` and an `error_during_execution` result.",
)
def _interrupt(observations: ObservedCommandRuns) -> str:
    turn = _get_interrupted_turn(observations)
    _get_answer_body(turn.run, "interrupt")
    fail_rule_if(
        turn.result.get("subtype") != "error_during_execution",
        "the result is not as expected",
        turn.run,
        turn.result,
    )
    if not has_interrupt_text(turn.lines):
        raise RuleViolationError(
            "the line that reports the interrupt is missing", turn.run, turn.result
        )
    return "both"


@RULES.register_must_rule("C6", "After an interrupt the process accepts the next message.")
def _life_after_an_interrupt(observations: ObservedCommandRuns) -> str:
    _get_interrupted_turn(observations)
    turn = observations.get_finished_turn("interrupt", 1)
    skip_rule_if(
        turn in list_turns_with_api_error(observations),
        "the next turn's request to the model failed",
    )
    fail_rule_if(
        turn.result.get("subtype") != "success",
        "the next turn did not succeed",
        turn.run,
        turn.result,
    )
    return "the next message was answered"


@RULES.register_must_rule("C7", "set_model is answered with the model, and the next init shows it.")
def _set_model(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("conversation")
    model = _get_answer_body(run, "set_model").get("model")
    if not isinstance(model, str):
        raise RuleViolationError("the answer has no model", run, _get_answer(run, "set_model"))
    init_model = observations.get_finished_turn("conversation", 1).init_line.get("model")
    fail_rule_if(
        init_model != model, f"the answer has {model} and the next init line has {init_model}", run
    )
    return model


@RULES.register_must_rule(
    "C7",
    "The response to set_permission_mode contains the new mode. A status line and the next "
    "init line also report the new mode.",
)
def _set_permission_mode(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("conversation")
    response = _get_answer(run, "set_permission_mode")
    if response.get("subtype") == "error" and "Unsupported control" not in str(
        response.get("error")
    ):
        raise RuleNotObservedError(f"the command refuses acceptEdits: {response.get('error')}")
    if _get_answer_body(run, "set_permission_mode").get("mode") != "acceptEdits":
        raise RuleViolationError("the answer has another mode", run, response)
    status_lines = [line for line in run.find_lines("system") if line.get("subtype") == "status"]
    fail_rule_if(
        not any(line.get("permissionMode") == "acceptEdits" for line in status_lines),
        "no status line reports the new mode",
        run,
    )
    if (
        observations.get_finished_turn("conversation", 1).init_line.get("permissionMode")
        != "acceptEdits"
    ):
        raise RuleViolationError(
            "the next init shows another mode",
            run,
            observations.get_finished_turn("conversation", 1).init_line,
        )
    return "acceptEdits"


@RULES.register_must_rule("C7", "A permission mode that does not exist is answered with an error.")
def _bad_mode(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    response = _get_answer(run, "set_permission_mode")
    fail_rule_if(response.get("subtype") != "error", "the unknown mode was accepted", run, response)
    return str(response.get("error"))


@RULES.register_should_rule("C8", "Other requests get the same answers as from the real claude.")
def _requests(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    for subtype, (_, expected) in REQUESTS.items():
        if isinstance(expected, str):
            if _get_answer(run, subtype).get("error") != expected:
                raise RuleViolationError(
                    f"{subtype} is not answered with the error {expected!r}",
                    run,
                    _get_answer(run, subtype),
                )
            continue
        body = _get_answer_body(run, subtype)
        for key, kind in expected.items():
            fail_rule_if(
                not isinstance(body.get(key), kind),
                f"the answer to {subtype} has no {key}",
                run,
                body,
            )
    return f"{len(REQUESTS)} requests"


# -- permission prompts and hooks ------------------------------------------------------------------


def _list_permission_requests(turn: ObservedTurn) -> list[JsonObject]:
    requests = [line for line in turn.lines if line.get("type") == "control_request"]
    return [line for line in requests if is_permission_request(line["request"])]


def _get_requested_result(
    observations: ObservedCommandRuns, index: int
) -> tuple[ObservedTurn, JsonObject]:
    """Return a turn of the run "tools" with the result of its first tool call that requested
    permission.
    """
    turn = observations.get_finished_turn("tools", index)
    permission_requests = _list_permission_requests(turn)
    if not permission_requests:
        raise RuleNotObservedError(
            "the command did not ask for permission"
            + ("" if turn.list_tool_calls() else ": no tool was called")
        )
    for _, result in turn.list_tool_results():
        if result.get("tool_use_id") == permission_requests[0]["request"].get("tool_use_id"):
            return turn, result
    raise RuleViolationError("the call has no result", turn.run, permission_requests[0])


@RULES.register_must_rule(
    "C9",
    "A permission prompt is sent only with --permission-prompt-tool stdio. It follows its tool call "
    "and has all required fields.",
)
def _questions_stand_behind_their_calls(observations: ObservedCommandRuns) -> str:
    count = 0
    for turn in observations.get_turns_of_runs():
        calls: dict[object, JsonObject] = {}
        for line in turn.lines:
            calls |= {call.get("id"): call for call in list_tool_calls(line)}
            if line not in _list_permission_requests(turn):
                continue
            count += 1
            request = line["request"]
            if "--permission-prompt-tool" not in turn.run.argv:
                raise RuleViolationError(
                    "a permission prompt that cannot be answered", turn.run, line
                )
            if not isinstance(line.get("request_id"), str) or not isinstance(
                request.get("input"), dict
            ):
                raise RuleViolationError(
                    "a permission prompt without request_id or input", turn.run, line
                )
            call = calls.get(request.get("tool_use_id"))
            if call is None or call.get("name") != request.get("tool_name"):
                raise RuleViolationError(
                    "a permission prompt that precedes its tool call, or names another call",
                    turn.run,
                    line,
                )
    skip_rule_if(not count, "the command did not ask for permission")
    return f"{count} questions"


@RULES.register_must_rule("C9", "A denied call has an error result with the user's message.")
def _denied(observations: ObservedCommandRuns) -> str:
    turn, block = _get_requested_result(observations, 0)
    has_message = DENIAL_MESSAGE in json.dumps(block.get("content"))
    if block.get("is_error") is not True or not has_message:
        raise RuleViolationError("the result is not as expected", turn.run, block)
    return "an error with the user's message"


@RULES.register_must_rule("C9", "An allowed call runs.")
def _allowed(observations: ObservedCommandRuns) -> str:
    turn, block = _get_requested_result(observations, 1)
    is_denied = DENIAL_MESSAGE in json.dumps(block.get("content"))
    fail_rule_if(is_denied, "the call was denied although it was allowed", turn.run, block)
    return "the call has a result"


@RULES.register_should_rule(
    "C10", "An interrupt withdraws an open permission prompt with control_cancel_request."
)
def _questions_are_taken_back(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("tools")
    skip_rule_if(
        "held" not in run.line_counts, "no permission prompt was open when the turn was interrupted"
    )
    requests = run.find_lines("control_request")
    open_request = [line for line in requests if is_permission_request(line["request"])][-1]
    for line in run.find_lines("control_cancel_request"):
        if line.get("request_id") == open_request.get("request_id"):
            return "the permission prompt was withdrawn"
    raise RuleViolationError("the permission prompt was not withdrawn", run, open_request)


@RULES.register_should_rule(
    "C11",
    "The hooks in the initialize request are called: PreToolUse before a call runs, Stop "
    "before the result.",
)
def _hooks(observations: ObservedCommandRuns) -> str:
    turn = observations.get_finished_turn("tools")
    requests = [line["request"] for line in turn.lines if line.get("type") == "control_request"]
    callback_ids = [
        request.get("callback_id")
        for request in requests
        if request.get("subtype") == "hook_callback"
    ]
    if turn.list_tool_calls() and "conform_before" not in callback_ids:
        raise RuleViolationError("PreToolUse was not called", turn.run)
    if "conform_stop" not in callback_ids and not turn.is_failed:
        raise RuleViolationError("Stop was not called", turn.run)
    for request in requests:
        if request.get("subtype") == "hook_callback" and "hook_event_name" not in request.get(
            "input", {}
        ):
            raise RuleViolationError("a hook callback without hook_event_name", turn.run, request)
    return f"{len(callback_ids)} hook callbacks"


# -- messages --------------------------------------------------------------------------------------


@RULES.register_must_rule(
    "C13",
    "Unknown types, blank lines and messages that need no answer are ignored. The last "
    "line needs no newline.",
)
def _odd_lines(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("odd-lines")
    fail_rule_if(
        run.exit_status != 0,
        f"exit {run.exit_status}{describe_missing_output(run)}",
        run,
    )
    _get_answer_body(run, "initialize")
    fail_rule_if(
        run.find_control_response("conform_last") is None,
        "the last line, which has no newline, was not read",
        run,
    )
    return "ignored"


@RULES.register_must_rule("C13", "A request without a request_id is answered, and is not fatal.")
def _request_without_id(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("odd-lines")
    _get_answer_body(run, "initialize")
    matched_responses = [response for _, response in _list_answers(run)]
    answers = [value.get("response") for value in run.find_lines("control_response")]
    fail_rule_if(
        not any(answer not in matched_responses for answer in answers),
        "the request was not answered",
        run,
    )
    return "the request was answered"


@RULES.register_must_rule(
    "C13",
    "A line that is not JSON, a message without content, or a request without a body is not fatal.",
    DROP_IN,
)
def _bad_lines(observations: ObservedCommandRuns) -> str:
    for name in ("not-json", "no-message", "no-request"):
        run = observations.get_run(name)
        fail_rule_if(
            run.exit_status != 0, f"exit {run.exit_status}{describe_missing_output(run)}", run
        )
        _get_answer_body(run, "initialize")
    return "the process continued after each line"


@RULES.register_must_rule(
    "C14", "The content of a message may be text or blocks, and its session_id is not checked."
)
def _messages(observations: ObservedCommandRuns) -> str:
    for index, content_kind in enumerate(("text", "blocks")):
        turn = observations.get_finished_turn("conversation", index)
        skip_rule_if(turn.is_failed, f"the turn of the message with {content_kind} failed")
    return "both messages were answered"


@RULES.register_must_rule(
    "C15", "With --replay-user-messages, each message is repeated with its uuid, in its own turn."
)
def _replayed(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("queue")
    for turn, message_id in zip(split_run_into_turns(run), MESSAGE_IDS, strict=False):
        replays = [
            line for line in turn.lines if line.get("isReplay") and line.get("uuid") == message_id
        ]
        if len(replays) != 1 or replays[0].get("message", {}).get("role") != "user":
            raise RuleViolationError(
                f"the message {message_id} was repeated {len(replays)} times within its own turn",
                run,
            )
        if turn.lines.index(replays[0]) < turn.lines.index(turn.init_line):
            raise RuleViolationError(
                "the repeated message is before the init line of its turn", run, replays[0]
            )
    fail_rule_if(
        not split_run_into_turns(run), f"there is no turn{describe_missing_output(run)}", run
    )
    return "each message was repeated once, in its own turn"


@RULES.register_must_rule("C16", "Queued messages get one turn each, in order.")
def _queued(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("queue")
    turns = [turn for turn in split_run_into_turns(run) if turn.result and turn.init_line]
    fail_rule_if(
        len(turns) != len(MESSAGE_IDS), f"{len(turns)} turns for {len(MESSAGE_IDS)} messages", run
    )
    order = [line.get("uuid") for line in run.find_lines("user") if line.get("isReplay")]
    if [message_id for message_id in order if message_id in MESSAGE_IDS] != list(MESSAGE_IDS):
        raise RuleViolationError("the messages were not handled in order", run, order)
    return pluralize(len(turns), "turn")

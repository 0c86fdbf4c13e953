"""Rules of the control protocol: requests and answers, messages and questions on stdin and stdout
(contract 3).
"""

import json

from shim.commands.conform.process import Object, Run, answer_to
from shim.commands.conform.runs import DENIAL, MESSAGES, REQUESTS, UNKNOWN_SUBTYPE
from shim.commands.conform.seen import (
    DROP_IN,
    Book,
    BrokenError,
    Seen,
    Turn,
    UnseenError,
    api_failures,
    broken_if,
    turns_of,
    unseen_if,
    waited,
)
from shim.core.reading.account import counted

INITIALIZE = {
    "commands": list,
    "agents": list,
    "output_style": str,
    "available_output_styles": list,
    "models": list,
    "account": dict,
}
# between the answer to an interrupt and the good end of the turn, which was not over before
IGNORED_SECONDS = 5.0

BOOK = Book()


def _answers(run: Run) -> list[tuple[str, Object | None]]:
    """Every request that a run was sent, by subtype, with the `response` that it got."""
    found = []
    for sent in run.sent:
        for raw in sent.data.split(b"\n"):
            if b'"control_request"' in raw and b'"request"' in raw:
                value = json.loads(raw)
                if "request_id" in value:
                    found.append((value["request"]["subtype"], run.answer_to(value["request_id"])))
    return found


def _answer(run: Run, subtype: str) -> Object:
    """The first answer to a request. BrokenError without an answer, UnseenError if it was not
    asked.
    """
    for asked, response in _answers(run):
        if asked == subtype:
            if response is None:
                raise BrokenError(f"{subtype} was not answered{waited(run)}", run)
            return response
    raise UnseenError(f"it did not get that far{waited(run)}")


def _body(run: Run, subtype: str) -> Object:
    """The body of the answer to a request. BrokenError if the answer is an error."""
    response = _answer(run, subtype)
    broken_if(
        response.get("subtype") != "success", f"{subtype} was answered with an error", run, response
    )
    body = response.get("response")
    return body if isinstance(body, dict) else {}


@BOOK.must("C1", "initialize is answered with a success.")
def _initialize(seen: Seen) -> str:
    run = seen.run("control")
    _body(run, "initialize")
    return "success"


@BOOK.must(
    "C2",
    "initialize is answered before any message, in front of queued ones, behind one, and again.",
)
def _initialize_at_any_time(seen: Seen) -> str:
    for name in ("control", "queue", "conversation"):
        run = seen.run(name)
        asked = [response for subtype, response in _answers(run) if subtype == "initialize"]
        unseen_if(
            name == "conversation" and len(asked) < 2,
            f"the conversation did not get that far{waited(run)}",
        )
        for response in asked:
            if response is None or response.get("subtype") != "success":
                raise BrokenError("initialize was not answered", run, response)
            if "models" not in (response.get("response") or {}):
                raise BrokenError("it was answered with less than the first time", run, response)
    return "each was answered"


@BOOK.must(
    "C3",
    "The answer to initialize has commands, agents, output styles, an account and at least one model.",
)
def _initialize_is_complete(seen: Seen) -> str:
    run = seen.run("control")
    body = _body(run, "initialize")
    for key, kind in INITIALIZE.items():
        if not isinstance(body.get(key), kind):
            raise BrokenError(
                f"{key} is {'missing' if key not in body else 'of another type'}", run, body
            )
    if not body["models"] or any(
        not {"value", "displayName", "description"} <= set(model) for model in body["models"]
    ):
        raise BrokenError(
            "no model, or one without value, displayName and description", run, body["models"]
        )
    return f"{len(body['models'])} models"


@BOOK.must(
    "C4", "Every answer repeats the request_id and is a `success`, or an `error` with its text."
)
def _envelope(seen: Seen) -> str:
    made = [
        run
        for run in seen.made("control", "conversation", "queue", "interrupt", "tools")
        if run.lines
    ]
    count = 0
    for run in made:
        for value in run.of_type("control_response"):
            count += 1
            response = value.get("response")
            if not isinstance(response, dict) or response.get("subtype") not in (
                "success",
                "error",
            ):
                raise BrokenError("the envelope is another", run, value)
            if response["subtype"] == "error" and not isinstance(response.get("error"), str):
                raise BrokenError("an error without its text", run, value)
        for subtype, response in _answers(run):
            if response is None and (run.exit is not None or run.stuck == answer_to(subtype)):
                raise BrokenError(f"{subtype} was not answered under its request_id", run)
    if not count:
        raise BrokenError("nothing was answered", made[0] if made else None)
    return f"{count} answers"


@BOOK.must("C5", "A request that it does not know is answered with an error that names it.")
def _unknown_request(seen: Seen) -> str:
    run = seen.run("control")
    response = _answer(run, UNKNOWN_SUBTYPE)
    wanted = f"Unsupported control request subtype: {UNKNOWN_SUBTYPE}"
    if response.get("subtype") != "error" or response.get("error") != wanted:
        raise BrokenError("the answer is another", run, response)
    return wanted


@BOOK.must("C6", "An interrupt is answered with a success; without a turn nothing else happens.")
def _idle_interrupt(seen: Seen) -> str:
    run = seen.run("control")
    _body(run, "interrupt")
    for line in run.of_type("user", "assistant", "result"):
        raise BrokenError("something was said although there was no turn", run, line)
    return "success, and nothing else"


def _arrival(run: Run, what: Object | None) -> float:
    """The time at which a line, or the line with a `response`, came; 0 if it never came."""
    for line in run.lines:
        if (
            what is not None
            and isinstance(line.value, dict)
            and what in (line.value, line.value.get("response"))
        ):
            return line.at
    return 0.0


def _interrupted(seen: Seen) -> Turn:
    run = seen.run("interrupt")
    broken_if("interrupted" not in run.marks, f"no word of a turn came{waited(run)}", run)
    turn = seen.done("interrupt")
    if turn.result.get("subtype") == "success":
        later = _arrival(run, turn.result) - _arrival(run, run.answer_to("conform_2_interrupt"))
        broken_if(
            later > IGNORED_SECONDS,
            f"the turn went on for {later:.0f} s to its end",
            run,
            turn.result,
        )
        raise UnseenError("the turn was over before the interrupt; a longer --long-prompt may help")
    return turn


@BOOK.must(
    "C6",
    "An interrupted turn ends with `[Request interrupted by user]` and error_during_execution.",
)
def _interrupt(seen: Seen) -> str:
    turn = _interrupted(seen)
    _body(turn.run, "interrupt")
    broken_if(
        turn.result.get("subtype") != "error_during_execution",
        "the result is another",
        turn.run,
        turn.result,
    )
    if not any(
        "[Request interrupted by user" in json.dumps(line)
        for line in turn.lines
        if line.get("type") == "user"
    ):
        raise BrokenError("the line of the interrupt is missing", turn.run, turn.result)
    return "both"


@BOOK.must("C6", "After an interrupt the process takes the next message.")
def _life_after_an_interrupt(seen: Seen) -> str:
    _interrupted(seen)
    turn = seen.done("interrupt", 1)
    unseen_if(turn in api_failures(seen), "the request of the next turn failed")
    broken_if(
        turn.result.get("subtype") != "success",
        "the next turn is no success",
        turn.run,
        turn.result,
    )
    return "it was answered"


@BOOK.must("C7", "set_model is answered with the model, and the next init shows it.")
def _set_model(seen: Seen) -> str:
    run = seen.run("conversation")
    model = _body(run, "set_model").get("model")
    if not isinstance(model, str):
        raise BrokenError("the answer has no model", run, _answer(run, "set_model"))
    shown = seen.done("conversation", 1).init.get("model")
    broken_if(shown != model, f"the answer says {model} and the next init {shown}", run)
    return model


@BOOK.must(
    "C7",
    "set_permission_mode is answered with the mode, said in a status line, and shown by the next init.",
)
def _set_permission_mode(seen: Seen) -> str:
    run = seen.run("conversation")
    response = _answer(run, "set_permission_mode")
    if response.get("subtype") == "error" and "Unsupported control" not in str(
        response.get("error")
    ):
        raise UnseenError(f"it refuses acceptEdits: {response.get('error')}")
    if _body(run, "set_permission_mode").get("mode") != "acceptEdits":
        raise BrokenError("the answer has another mode", run, response)
    said = [line for line in run.of_type("system") if line.get("subtype") == "status"]
    broken_if(
        not any(line.get("permissionMode") == "acceptEdits" for line in said),
        "no status line says so",
        run,
    )
    if seen.done("conversation", 1).init.get("permissionMode") != "acceptEdits":
        raise BrokenError("the next init shows another", run, seen.done("conversation", 1).init)
    return "acceptEdits"


@BOOK.must("C7", "A permission mode that does not exist is answered with an error.")
def _bad_mode(seen: Seen) -> str:
    run = seen.run("control")
    response = _answer(run, "set_permission_mode")
    broken_if(response.get("subtype") != "error", "it was taken", run, response)
    return str(response.get("error"))


@BOOK.should("C8", "The other requests are answered as the real one answers them.")
def _requests(seen: Seen) -> str:
    run = seen.run("control")
    for subtype, (_, wanted) in REQUESTS.items():
        if isinstance(wanted, str):
            if _answer(run, subtype).get("error") != wanted:
                raise BrokenError(
                    f"{subtype} is not answered with the error {wanted!r}",
                    run,
                    _answer(run, subtype),
                )
            continue
        body = _body(run, subtype)
        for key, kind in wanted.items():
            broken_if(
                not isinstance(body.get(key), kind),
                f"the answer to {subtype} has no {key}",
                run,
                body,
            )
    return f"{len(REQUESTS)} requests"


# -- questions and hooks ---------------------------------------------------------------------------


def _questions(turn: Turn) -> list[Object]:
    asked = [line for line in turn.lines if line.get("type") == "control_request"]
    return [line for line in asked if line["request"].get("subtype") == "can_use_tool"]


def _returned(seen: Seen, number: int) -> tuple[Turn, Object]:
    """The result of the call that was asked about first in a turn of the run with tools."""
    turn = seen.done("tools", number)
    questions = _questions(turn)
    if not questions:
        called = list(turn.blocks("assistant", "tool_use"))
        raise UnseenError("it asked for no permission" + ("" if called else ": no tool was called"))
    for _, block in turn.blocks("user", "tool_result"):
        if block.get("tool_use_id") == questions[0]["request"].get("tool_use_id"):
            return turn, block
    raise BrokenError("the call has no result", turn.run, questions[0])


@BOOK.must(
    "C9",
    "Permission is asked for only with --permission-prompt-tool stdio, behind its call, with all it needs.",
)
def _questions_stand_behind_their_calls(seen: Seen) -> str:
    count = 0
    for turn in seen.turns():
        called: dict[object, Object] = {}
        for line in turn.lines:
            if line.get("type") == "assistant":
                called |= {
                    block.get("id"): block
                    for _, block in Turn(turn.run, [line], {}, []).blocks("assistant", "tool_use")
                }
            if line not in _questions(turn):
                continue
            count += 1
            request = line["request"]
            if "--permission-prompt-tool" not in turn.run.argv:
                raise BrokenError("a question that nobody can answer", turn.run, line)
            if not isinstance(line.get("request_id"), str) or not isinstance(
                request.get("input"), dict
            ):
                raise BrokenError("a question without request_id or input", turn.run, line)
            call = called.get(request.get("tool_use_id"))
            if call is None or call.get("name") != request.get("tool_name"):
                raise BrokenError(
                    "a question in front of its call, or about another", turn.run, line
                )
    unseen_if(not count, "it asked for no permission")
    return f"{count} questions"


@BOOK.must("C9", "A denied call has a result that is an error and says the user's words.")
def _denied(seen: Seen) -> str:
    turn, block = _returned(seen, 0)
    said = DENIAL in json.dumps(block.get("content"))
    broken_if(
        block.get("is_error") is not True or not said, "the result is another", turn.run, block
    )
    return "an error with the user's words"


@BOOK.must("C9", "An allowed call runs.")
def _allowed(seen: Seen) -> str:
    turn, block = _returned(seen, 1)
    denied = DENIAL in json.dumps(block.get("content"))
    broken_if(denied, "it was denied although it was allowed", turn.run, block)
    return "it has a result"


@BOOK.should("C10", "An interrupt takes an open question back with control_cancel_request.")
def _questions_are_taken_back(seen: Seen) -> str:
    run = seen.run("tools")
    unseen_if("held" not in run.marks, "no question was open when the turn was interrupted")
    held = [line for line in run.objects if line.get("type") == "control_request"]
    open_one = [line for line in held if line["request"].get("subtype") == "can_use_tool"][-1]
    for line in run.of_type("control_cancel_request"):
        if line.get("request_id") == open_one.get("request_id"):
            return "it was taken back"
    raise BrokenError("the question was not taken back", run, open_one)


@BOOK.should(
    "C11",
    "Hooks that initialize names are called: PreToolUse before a call runs, Stop before the result.",
)
def _hooks(seen: Seen) -> str:
    turn = seen.done("tools")
    asked = [line["request"] for line in turn.lines if line.get("type") == "control_request"]
    called = [
        request.get("callback_id") for request in asked if request.get("subtype") == "hook_callback"
    ]
    if list(turn.blocks("assistant", "tool_use")) and "conform_before" not in called:
        raise BrokenError("PreToolUse was not called", turn.run)
    broken_if("conform_stop" not in called and not turn.failed, "Stop was not called", turn.run)
    for request in asked:
        if request.get("subtype") == "hook_callback" and "hook_event_name" not in request.get(
            "input", {}
        ):
            raise BrokenError(
                "a call of a hook that does not say which event it is", turn.run, request
            )
    return f"{len(called)} calls of hooks"


# -- messages --------------------------------------------------------------------------------------


@BOOK.must(
    "C13",
    "Unknown types, blank lines and messages that need no answer are ignored; a last line needs no newline.",
)
def _odd_lines(seen: Seen) -> str:
    run = seen.run("odd-lines")
    broken_if(run.exit is None or run.exit != 0, f"exit {run.exit}{waited(run)}", run)
    _body(run, "initialize")
    broken_if(
        run.answer_to("conform_last") is None, "a last line without its newline was not read", run
    )
    return "ignored"


@BOOK.must("C13", "A request without a request_id is answered, and is not fatal.")
def _request_without_id(seen: Seen) -> str:
    run = seen.run("odd-lines")
    _body(run, "initialize")
    known = [response for _, response in _answers(run)]
    answers = [value.get("response") for value in run.of_type("control_response")]
    broken_if(not any(answer not in known for answer in answers), "it was not answered", run)
    return "it was answered"


@BOOK.must(
    "C13",
    "A line that is no JSON, a message without its words, or a request without its body is not fatal.",
    DROP_IN,
)
def _bad_lines(seen: Seen) -> str:
    for name in ("not-json", "no-message", "no-request"):
        run = seen.run(name)
        broken_if(run.exit != 0, f"exit {run.exit}{waited(run)}", run)
        _body(run, "initialize")
    return "it went on behind each"


@BOOK.must("C14", "A message is text or blocks, with any session_id.")
def _messages(seen: Seen) -> str:
    for number, what in enumerate(("text", "blocks")):
        turn = seen.done("conversation", number)
        unseen_if(turn.failed, f"the turn of a message of {what} failed")
    return "both were answered"


@BOOK.must(
    "C15", "With --replay-user-messages each message is said again in its turn, with its uuid."
)
def _replayed(seen: Seen) -> str:
    run = seen.run("queue")
    for turn, identity in zip(turns_of(run), MESSAGES, strict=False):
        said = [
            line for line in turn.lines if line.get("isReplay") and line.get("uuid") == identity
        ]
        if len(said) != 1 or said[0].get("message", {}).get("role") != "user":
            raise BrokenError(
                f"the message {identity} was said again {len(said)} times in its turn", run
            )
        if turn.lines.index(said[0]) < turn.lines.index(turn.init):
            raise BrokenError("it stands before the init of its turn", run, said[0])
    broken_if(not turns_of(run), f"there is no turn{waited(run)}", run)
    return "each in its turn"


@BOOK.must("C16", "Messages that wait get a turn each, in their order.")
def _queued(seen: Seen) -> str:
    run = seen.run("queue")
    turns = [turn for turn in turns_of(run) if turn.result and turn.init]
    broken_if(len(turns) != len(MESSAGES), f"{len(turns)} turns for {len(MESSAGES)} messages", run)
    order = [line.get("uuid") for line in run.of_type("user") if line.get("isReplay")]
    if [identity for identity in order if identity in MESSAGES] != list(MESSAGES):
        raise BrokenError("they were not taken in their order", run, order)
    return counted(len(turns), "turn")

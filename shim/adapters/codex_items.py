"""Converts the items of codex's threads to Claude's tool calls. This is the form in which the
app-server sends the items, measured with 0.169.0:

    {"type":"commandExecution","id":C,"command":"/bin/bash -lc 'ls'","cwd":FOLDER,"status":…,
        "aggregatedOutput":…}
    {"type":"fileChange","id":C,"changes":[{"path":…,"kind":{"type":"update","move_path":…},"diff":…}],"status":…}
    {"type":"mcpToolCall","id":C,"server":…,"tool":…,"arguments":…,"result":{"content":[…]},"error":…}
    {"type":"collabAgentToolCall","id":C,"tool":"spawnAgent","prompt":…,"receiverThreadIds":[…],"agentsStates":…}
    {"type":"webSearch","id":C,"query":…}        {"type":"imageView","id":C,"path":…}

Statuses: inProgress, completed, failed, declined.
"""

from collections.abc import Collection, Mapping
from typing import Any

from shim.adapters.codex_approval_hook import NOOP_PREFIX
from shim.adapters.codex_rollout import ClaudeCall, build_file_change_tool_calls
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_list, as_str, get_text, list_dicts
from shim.profiles.run.values import unwrap_shell_command

COMPLETED = "completed"
SUBAGENT_TYPE = "general-purpose"  # Claude's default; codex does not report the role of a subagent
# Maximum number of completed items per turn. A long turn has several hundred.
MAX_ITEM_IDS = 10_000
# These keys do not change while an item runs, so they identify the item's subject.
SUBJECT_KEYS = (
    "type",
    "command",
    "changes",
    "server",
    "tool",
    "arguments",
    "prompt",
    "query",
    "path",
    "text",
)


class CompletedCodexItems:
    """The completed items of one turn. Another item with the same id and subject is
    a repetition.
    """

    def __init__(self) -> None:
        self._subjects: dict[str, int] = {}

    def clear(self) -> None:
        """Remove all items when a new turn starts."""
        self._subjects.clear()

    def has_item(self, item: Mapping[str, Any]) -> bool:
        """Return whether an item with this id and subject has already been completed."""
        item_id = item.get("id")
        if not isinstance(item_id, str):
            return False
        return self._subjects.get(item_id) == _hash_subject(item)

    def add_item(self, item: Mapping[str, Any]) -> None:
        """Add a completed item. An item without an id is not stored, so it never counts as a
        repetition.
        """
        item_id = item.get("id")
        if isinstance(item_id, str) and item_id and len(self._subjects) < MAX_ITEM_IDS:
            self._subjects[item_id] = _hash_subject(item)


def _hash_subject(item: Mapping[str, Any]) -> int:
    return hash(dump_json([item.get(key) for key in SUBJECT_KEYS]))


def build_command_tool_call(
    command_line: object, folder: object, working_dirs: Collection[str]
) -> ClaudeCall:
    """Return the tool call for a command, without the shell that runs it and without the prefix
    that makes codex ask.

    The command runs in `folder`. `working_dirs` are equivalent paths of the working directory.
    """
    command_text = ""
    if isinstance(command_line, str):
        command_text = unwrap_shell_command(command_line)
    arguments = {"command": command_text.removeprefix(NOOP_PREFIX)}
    if isinstance(folder, str) and folder not in working_dirs:
        arguments["directory"] = folder
    return "Bash", arguments


def build_patch_tool_calls(item: Mapping[str, Any]) -> list[ClaudeCall]:
    """Return one tool call for each file of a patch, and one more for the new path of a
    moved file.
    """
    calls: list[ClaudeCall] = []
    for change in item["changes"]:
        path = change["path"]
        kind = change["kind"]
        new_path = kind.get("move_path")
        key = "unified_diff"
        if kind["type"] == "add":
            key = "content"
        calls.append(
            _merge_edits(
                build_file_change_tool_calls(path, {"type": kind["type"], key: change.get("diff")})
            )
        )
        if isinstance(new_path, str) and new_path:
            calls.append(("Write", {"file_path": new_path}))
    return calls


def _merge_edits(calls: list[ClaudeCall]) -> ClaudeCall:
    """Return one tool call that contains all parts of a change."""
    if len(calls) == 1:
        return calls[0]
    edits = [{key: edit[key] for key in ("old_string", "new_string")} for _, edit in calls]
    return "MultiEdit", {"file_path": calls[0][1]["file_path"], "edits": edits}


def list_item_tool_calls(
    item: Mapping[str, Any], working_dirs: Collection[str]
) -> list[ClaudeCall]:
    """Return the tool calls for an item, or [] if the item's type has none."""
    kind = item.get("type")
    if kind == "commandExecution":
        return [build_command_tool_call(item.get("command"), item.get("cwd"), working_dirs)]
    if kind == "fileChange":
        return build_patch_tool_calls(item)
    if kind == "mcpToolCall":
        return [
            (
                f"mcp__{item['server']}__{item['tool']}",
                dict(as_dict(item.get("arguments"))),
            )
        ]
    if kind == "collabAgentToolCall":
        arguments = {"description": item.get("tool"), "prompt": get_text(item, "prompt")}
        return [("Task", {**arguments, "subagent_type": SUBAGENT_TYPE})]
    if kind == "webSearch":
        return [("WebSearch", {"query": get_text(item, "query")})]
    if kind == "imageView":
        return [("Read", {"file_path": item.get("path")})]
    return []


def read_item_tool_result(item: Mapping[str, Any]) -> tuple[object, bool]:
    """Return a tool call's output, and whether the call failed."""
    kind = item.get("type")
    status = item.get("status")
    failed = status not in (COMPLETED, None)
    if kind == "commandExecution":
        output = item.get("aggregatedOutput")
        if not output:
            output = ""
            if status == "declined":
                output = "declined"
        exit_code = item.get("exitCode")
        if exit_code is None:  # the command has succeeded only if its status is `completed`
            failed = status != COMPLETED
        elif exit_code != 0:
            failed = True
        return output, failed
    if kind == "mcpToolCall":
        error = item.get("error")
        if isinstance(error, dict):
            return get_text(error, "message"), True
        return item.get("result") or "", failed
    if kind == "collabAgentToolCall":
        return describe_agent_states(item.get("agentsStates")), failed
    return get_text(item, "status"), failed


def describe_agent_states(states: object) -> str:
    """Return a line for each subagent: its status, and its last message if it has written one."""
    lines = [
        (as_str(state.get("status")), as_str(state.get("message")))
        for state in map(as_dict, as_dict(states).values())
    ]
    return "\n".join(": ".join(filter(None, texts)) for texts in lines)


def convert_to_ask_user_question_input(raw_questions: object) -> dict[str, Any]:
    """Return the input for Claude's AskUserQuestion, built from a `request_user_input` request."""
    questions = []
    for question in as_list(raw_questions):
        options = [
            {"label": str(option.get("label")), "description": get_text(option, "description")}
            for option in question.get("options") or ()
        ]
        fields = {
            "question": str(question.get("question")),
            "header": get_text(question, "header"),
        }
        questions.append({**fields, "multiSelect": False, "options": options})
    return {"questions": questions}


def build_user_input_answers(
    request: Mapping[str, Any], answered_input: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answers to a `request_user_input` request, keyed by question id. Claude keys its
    answers by the text of the question.
    """
    answers_by_text = as_dict(answered_input.get("answers"))
    return {
        str(question.get("id")): {"answers": [str(answers_by_text[str(question.get("question"))])]}
        for question in list_dicts(request.get("questions"))
        if str(question.get("question")) in answers_by_text
    }

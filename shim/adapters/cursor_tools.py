"""Converts cursor's tool calls to Claude's, with one table entry for each kind of call.

cursor's arguments include internal ids and parsed commands, so only the listed keys are kept. Older
captures spell some keys with underscores.
"""

from shim.core.adapter.tools import (
    Arguments,
    ToolMapping,
    build_edit_list_converter,
    convert_to_claude_todos,
)
from shim.core.policy.policy import MCP_PREFIX
from shim.core.reading.typed import Any
from shim.core.reading.values import as_dict, list_dicts

_RESHAPE_EDITS = build_edit_list_converter("oldText", "newText", "replaceAll")


def _reshape_edit(arguments: Arguments) -> tuple[str, Arguments]:
    """Return Claude's tool call for an edit. cursor has four forms of edits: one replacement,
    several replacements, a patch, or a complete file.
    """
    path = {"file_path": arguments.get("file_path", "")}
    if isinstance(replacement := arguments.get("strReplace"), dict):
        return _RESHAPE_EDITS(path | {"edits": [replacement]})
    if isinstance(replacements := arguments.get("multiStrReplace"), dict):
        return _RESHAPE_EDITS(path | {"edits": replacements.get("edits")})
    if isinstance(patch := arguments.get("applyPatch"), dict):
        return "Edit", path | {"old_string": "", "new_string": patch.get("patchContent", "")}
    return "Write", path | {"content": arguments.get("streamContent", "")}


def _reshape_task(arguments: Arguments) -> tuple[str, Arguments]:
    kind = arguments.pop("subagentType", None)
    custom = as_dict(kind).get("custom")
    if isinstance(custom, dict):
        arguments["subagent_type"] = custom.get("name")
    else:
        arguments["subagent_type"] = "general-purpose"
    return "Task", arguments


def _reshape_question(arguments: Arguments) -> tuple[str, Arguments]:
    """Return the questions as Claude's AskUserQuestion."""
    title = arguments.get("title", "")
    questions = [
        {
            "question": question.get("prompt", ""),
            "header": title,
            "multiSelect": bool(question.get("allowMultiple")),
            "options": [
                {"label": option.get("label", ""), "description": ""}
                for option in question.get("options", ())
            ],
        }
        for question in list_dicts(arguments.get("questions"))
    ]
    return "AskUserQuestion", {"questions": questions}


def _reshape_mcp(arguments: Arguments) -> tuple[str, Arguments]:
    server = arguments.get("providerIdentifier")
    if not server:
        server = arguments.get("provider_identifier")
    if not server:
        server = "unknown"
    tool = arguments.get("toolName")
    if not tool:
        tool = arguments.get("tool_name")
    if not tool:
        tool = arguments.get("name")
    tool_input = arguments.get("args")
    return f"mcp__{server}__{tool}", as_dict(tool_input)


def _map_keys(*keys: str, **renamed: str) -> dict[str, str]:
    return {key: key for key in keys} | renamed


_PATH = {"path": "file_path"}
_GREP = _map_keys(
    "pattern",
    "path",
    "glob",
    "type",
    "multiline",
    outputMode="output_mode",
    output_mode="output_mode",
) | {
    "caseInsensitive": "-i",
    "contextBefore": "-B",
    "contextAfter": "-A",
    "context": "-C",
    "headLimit": "head_limit",
    "glob_filter": "glob",
}

TOOLS = {
    "shellToolCall": ToolMapping(
        "Bash",
        _map_keys("command", "description", "timeout", isBackground="run_in_background"),
        only_renamed=True,
    ),
    "readToolCall": ToolMapping("Read", _PATH | _map_keys("offset", "limit"), only_renamed=True),
    "editToolCall": ToolMapping(
        "Edit",
        _PATH | _map_keys("strReplace", "multiStrReplace", "applyPatch", "streamContent"),
        only_renamed=True,
        reshape=_reshape_edit,
    ),
    "writeToolCall": ToolMapping(
        "Write",
        _PATH
        | {
            "fileText": "content",
            "contents": "content",
            "content": "content",
            "fileContent": "content",
        },
        only_renamed=True,
    ),
    "deleteToolCall": ToolMapping("Delete", _PATH, only_renamed=True),
    "grepToolCall": ToolMapping("Grep", _GREP, only_renamed=True),
    "globToolCall": ToolMapping(
        "Glob",
        {
            "globPattern": "pattern",
            "glob_pattern": "pattern",
            "targetDirectory": "path",
            "target_directory": "path",
        },
        only_renamed=True,
    ),
    "lsToolCall": ToolMapping("LS", _map_keys("path", "ignore"), only_renamed=True),
    "updateTodosToolCall": ToolMapping(
        "TodoWrite",
        _map_keys("todos"),
        only_renamed=True,
        convert={"todos": convert_to_claude_todos},
    ),
    "readTodosToolCall": ToolMapping("TodoRead", only_renamed=True),
    "mcpToolCall": ToolMapping("mcp", reshape=_reshape_mcp),
    "webFetchToolCall": ToolMapping(
        "WebFetch", _map_keys("url"), only_renamed=True, extra={"prompt": ""}
    ),
    "fetchToolCall": ToolMapping(
        "WebFetch", _map_keys("url"), only_renamed=True, extra={"prompt": ""}
    ),
    "webSearchToolCall": ToolMapping(
        "WebSearch", {"searchTerm": "query", "search_term": "query"}, only_renamed=True
    ),
    "taskToolCall": ToolMapping(
        "Task",
        _map_keys("description", "prompt", "subagentType"),
        only_renamed=True,
        reshape=_reshape_task,
    ),
    "askQuestionToolCall": ToolMapping(
        "AskUserQuestion",
        _map_keys("title", "questions"),
        only_renamed=True,
        reshape=_reshape_question,
    ),
    "createPlanToolCall": ToolMapping("ExitPlanMode", _map_keys("plan"), only_renamed=True),
    "semSearchToolCall": ToolMapping("Grep", {"query": "pattern"}, only_renamed=True),
}

# The tools that cursor can run in print mode. MCP tools are unknown until they are called.
LISTED_TOOLS = (
    *(
        "Bash",
        "Read",
        "Edit",
        "MultiEdit",
        "Write",
        "Delete",
        "Grep",
        "Glob",
        "LS",
        "TodoWrite",
        "WebFetch",
    ),
    *("WebSearch", "Task"),
)
# The tools that cursor allows in its mode `plan`: they read files and change nothing. In this mode,
# cursor asks before it uses the web.
PLAN_TOOLS = ("Read", "Grep", "Glob", "LS", "TodoWrite", "Task")
# Print mode always skips these calls. They are not permission denials.
SKIPPED_TOOLS = ("AskUserQuestion",)

_SUCCESS_KEYS = ("success", "approved")


def parse_tool_result(name: str, result: dict[str, Any]) -> tuple[object, bool, bool]:
    """Return a tool call's result: its text or MCP content blocks, whether the call failed, and
    whether it was refused.
    """
    key = "success"
    body = as_dict(result.get("success"))
    for outcome_key, outcome_body in result.items():
        if isinstance(outcome_body, dict):
            key = outcome_key
            body = outcome_body
            break
    is_denied = key in ("rejected", "permissionDenied")
    if key in _SUCCESS_KEYS:
        return _read_content(name, body), bool(body.get("isError") or body.get("exitCode")), False
    if key == "failure":
        return _read_shell_output(body), True, False
    if key == "timeout":
        return f"Timed out after {body.get('timeoutMs')} ms", True, False
    error_texts = (
        body.get(word)
        for word in ("reason", "error", "errorMessage", "message", "modelVisibleError")
    )
    text: str = next(
        (candidate for candidate in error_texts if isinstance(candidate, str) and candidate), ""
    )
    if is_denied and not text:
        text = "Rejected"
    return text or _dump_json({key: body}), True, is_denied


def _read_shell_output(body: dict[str, Any]) -> str:
    text = body.get("interleavedOutput")
    if not isinstance(text, str) or not text:
        text = str(body.get("stdout", "")) + str(body.get("stderr", ""))
    if text:
        return text
    if body.get("exitCode"):
        return f"Exit code {body['exitCode']}"
    return ""


def _read_content(name: str, body: dict[str, Any]) -> object:
    """Return the content of a successful call: MCP blocks if the call used an MCP tool or its
    result includes an image or a file, otherwise a text.
    """
    parts = body.get("content")
    if isinstance(parts, list):
        blocks = [_convert_part(part) for part in parts]
        if name.startswith(MCP_PREFIX) or not all(block["type"] == "text" for block in blocks):
            return blocks
    if name == "Read" and isinstance(body.get("data"), str):
        return [{"type": "image", "data": body["data"]}]
    return _read_text(name, body)


def _convert_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return one part of an MCP result as an MCP content block. cursor writes `{"image": {…}}`
    instead of `{"type": "image", …}`.
    """
    kind = next(iter(part), "text")
    content = part.get(kind)
    if kind == "resource" or not isinstance(content, dict):
        return {"type": kind, kind: content}
    return {**content, "type": "resource_link" if kind == "resourceLink" else kind}


def _read_text(name: str, body: dict[str, Any]) -> str:
    """Return the text of a successful call. The fields of the call's result determine how the text
    is read.
    """
    if name == "Bash" or "exitCode" in body:
        return _read_shell_output(body)
    if "workspaceResults" in body:
        return _format_matches(body["workspaceResults"])
    if "directoryTreeRoot" in body:
        return _format_tree(body["directoryTreeRoot"])
    for key in ("content", "markdown", "results", "message", "resultForModel", "diffString"):
        if isinstance(body.get(key), str):
            return str(body[key])
    if isinstance(files := body.get("files"), list):
        return "\n".join(map(str, files))
    if isinstance(parts := body.get("content"), list):
        return "\n".join(str(as_dict(part.get("text")).get("text", "")) for part in parts)
    if isinstance(references := body.get("references"), list):
        return "\n\n".join(
            f"{item.get('title')}\n{item.get('url')}\n{item.get('chunk', '')}"
            for item in references
        )
    if isinstance(steps := body.get("conversationSteps"), list):
        texts = (as_dict(step.get("assistantMessage")).get("text") for step in steps)
        return "\n".join(text for text in texts if text)
    if isinstance(items := body.get("todos"), list):
        return "\n".join(
            f"[{item['status']}] {item['content']}" for item in convert_to_claude_todos(items)
        )
    if body:
        return _dump_json(body)
    return ""


def _format_matches(workspaces: dict[str, Any]) -> str:
    """Return search matches as `file:line:text`, as a list of files, or as `file:count`."""
    lines: list[str] = []
    for workspace in workspaces.values():
        for file in as_dict(workspace.get("content")).get("matches", ()):
            for match in file.get("matches", ()):
                separator = ":"
                if match.get("isContextLine"):
                    separator = "-"
                lines.append(
                    f"{file.get('file')}{separator}{match.get('lineNumber')}{separator}{match.get('content')}"
                )
        lines += map(str, as_dict(workspace.get("files")).get("files", ()))
        lines += [
            f"{item['file']}:{item['count']}"
            for item in as_dict(workspace.get("count")).get("counts", ())
        ]
    return "\n".join(lines)


MAX_TREE_LINES = 2000


def _format_tree(root: dict[str, Any]) -> str:
    """Return a directory listing with one path per line. After 2,000 lines, no more folders are
    listed.
    """
    lines: list[str] = []
    pending = [root]
    while pending and len(lines) < MAX_TREE_LINES:
        directory = pending.pop()
        path = str(directory.get("absPath", "")).rstrip("/")
        lines.append(path + "/")
        lines += [f"{path}/{file.get('name')}" for file in directory.get("childrenFiles", ())]
        pending += directory.get("childrenDirs", ())
    return "\n".join(lines)


def _dump_json(value: object) -> str:
    from shim.core.reading.json_text import dump_json

    return dump_json(value).decode()

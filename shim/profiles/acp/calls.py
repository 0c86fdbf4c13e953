"""Collects an agent's updates about a tool call, and translates the call to Claude's tools.

ACP has no field for the name of a tool. The profile defines where the agent reports the name: in
the first title of the call (before a colon), at the start of the call id, or nowhere. If the name
is not reported, the call's kind and input keys identify the tool.

The tool's input is in `rawInput`, or it is JSON in the content until the call has ended. Some
agents use neither. They report the same data in the title, the locations and the content, depending
on the call's kind.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from re import Pattern

import orjson

from shim.core.adapter.tools import Tools, translate_tool_call
from shim.core.policy.policy import UNNAMED_TOOL
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, get_text, list_dicts

# ACP call kind → Claude's tool name, for tools that are missing in the profile.
TOOL_BY_KIND = {
    "execute": "Bash",
    "read": "Read",
    "edit": "Edit",
    "delete": "Delete",
    "search": "Grep",
    "fetch": "WebFetch",
}
# The raw output keys that may contain text.
OUTPUT_KEYS = ("output", "content", "error", "message")
# Content block kind → the key that holds the block's value.
VALUE_KEY_BY_KIND = {
    "text": "text",
    "image": "data",
    "audio": "data",
    "resource": "resource",
    "resource_link": "uri",
}
REFUSED_CODE = "denied"  # copilot's error code of a call that a hook refused
FILE_KINDS = ("read", "edit", "delete")
MAX_SEARCHED_ERROR_CHARS = 4000  # the start of an error text, which is searched for a file path
PATH_KEYS = ("oldPath", "path")  # the keys for the path of a changed file
PATH_KEY = "path"  # the key for the path to search, in permission requests and Claude's tools
FILE_KEY = "fileName"  # the key for the file in copilot's permission requests about a change
DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.S)
NEUTRAL_INPUT_KEYS = frozenset(("cwd",))  # keys of `rawInput` that are not tool input
# The text that gemini appends to a command: its folder and description. The folder follows `in`
# if the call names the folder.
COMMAND_NOTES = re.compile(r"\[(in|current working directory) ([^\]]*)\](?: \(([^\]]*)\))?", re.S)
BACKGROUND_SUFFIX = " [background]"  # appended after the folder or the description
FOLDER_NOTE_START = "[in "  # the start of the text that names the folder


class AcpToolCallPattern(NamedTuple):
    """A pattern that identifies the calls to one tool by their kind, the start of their title, and
    keys of their input.
    """

    kind: str
    title_start: str = ""
    keys: tuple[str, ...] = ()


class AcpToolCallFormat(NamedTuple):
    """Defines where an agent reports the tool call data that ACP has no field for.

    name_source       where the tool name is: "title", "id", or "kind" if the agent reports no name
    signatures        if name_source is "kind": the patterns that identify each tool; the first
                      match applies
    question_keys     if name_source is "kind": call kind → the input keys that a permission request
                      must have; if keys are missing, the tool is unknown
    input_in_content  whether the input is JSON in the content until the call has ended
    error_path        pattern for the error of a call without a location; its first group is the
                      file path
    missing_tool      the title of the tool that the agent runs in place of a tool that does not
                      exist, or ""
    """

    name_source: str = "title"
    signatures: Mapping[str, AcpToolCallPattern] = {}
    question_keys: Mapping[str, tuple[str, ...]] = {}
    input_in_content: bool = False
    error_path: "Pattern[str] | None" = None
    missing_tool: str = ""


class AcpToolCall:
    """The state of one tool call, as the agent has reported it. `start_count` counts the call's
    `tool_call` updates. Each update after the first may belong to a different call.
    """

    def __init__(self, call_id: str, call_format: AcpToolCallFormat) -> None:
        self.call_id = call_id  # unique among the open calls
        self.agent_id = call_id  # the id that the agent uses; several open calls may share it
        self.vendor_tool = ""
        self.kind = ""
        self.title = ""
        self.input: dict[str, Any] = {}
        self.content: list[Any] = []
        self.output: list[Any] = []  # the latest content, used for the tool result
        self.raw_output: Any = None
        self.paths: list[str] = []
        self.is_written = False
        # The input in the call's first permission request.
        self.requested_input: dict[str, Any] | None = None
        self.is_running = False
        self.is_missing = False  # the model called a tool that does not exist
        self.start_count = 0
        self.requested_file: object = None  # the file that a permission request is about
        self._requested_path: object = None  # a path that only the permission request contains
        self._format = call_format

    def apply_update(self, update: Mapping[str, Any]) -> None:
        """Apply an update to the call. New values replace earlier ones, and values that are missing
        in the update stay unchanged.
        """
        title = update.get("title")
        kind = update.get("kind")
        raw_input = update.get("rawInput")
        if title and title == self._format.missing_tool:
            self.is_missing = True
        if isinstance(title, str) and not self.is_missing:
            self.title = title
        self.start_count += update.get("sessionUpdate") == "tool_call"
        if isinstance(kind, str):
            self.kind = kind
        content = update.get("content")
        if self._format.input_in_content and update.get("status") == "in_progress":
            raw_input = parse_json_if_complete(join_content_text(content))
            content = None
        if self.is_missing:  # the input describes the error
            raw_input = None
        if isinstance(raw_input, dict) and not NEUTRAL_INPUT_KEYS.issuperset(raw_input):
            self.input = raw_input
        if isinstance(content, list):
            # If the new content is empty, the earlier content is kept for a permission request.
            if content:
                self.content = content
            self.output = content
        if update.get("rawOutput") is not None:
            self.raw_output = update["rawOutput"]
        if isinstance(locations := update.get("locations"), list) and locations:
            self.paths = [
                location["path"]
                for location in locations
                if isinstance(location, dict) and isinstance(location.get("path"), str)
            ]
        if not self.vendor_tool:
            self.vendor_tool = self._resolve_vendor_tool()

    def _resolve_vendor_tool(self) -> str:
        """Return the agent's tool name, or "" if the tool is unknown."""
        if self._format.name_source == "title":
            return self.title.partition(": ")[0]
        if self._format.name_source == "id":
            return self.call_id.rpartition("__")[0]
        signatures = self._format.signatures.items()
        input_keys = self.input.keys()
        matches = (
            vendor_tool
            for vendor_tool, signature in signatures
            if signature.kind == self.kind
            and self.title.startswith(signature.title_start)
            and input_keys >= {*signature.keys}
        )
        if self.has_input:
            return next(matches, "")
        return ""

    def build_call_from_permission_request(
        self, request_call: Mapping[str, Any], working_dir: str = ""
    ) -> "AcpToolCall":
        """Return the tool call as a permission request describes it. Drop input keys that the call
        itself does not have.

        opencode adds keys to the input of a request, for display to the user (`filepath`, `diff`).
        """
        requested = AcpToolCall(self.call_id, self._format)
        requested.apply_update(request_call)
        requested.requested_file = requested._find_requested_file()
        if not self._is_tool_certain(requested):
            requested.vendor_tool = requested.kind = ""
        elif self._is_request_for_changed_file(requested, working_dir):
            requested.vendor_tool = self.vendor_tool
            requested.kind = self.kind
            requested.input = self.input
        elif request_call.get("kind") in TOOL_BY_KIND and requested.kind != self.kind:
            return requested  # the request describes a different action from the reported call
        else:
            requested.vendor_tool = self.vendor_tool or requested.vendor_tool
            requested.kind = self.kind or requested.kind
        requested.title = requested.title or self.title
        if self.has_input:
            if PATH_KEY in self._format.question_keys.get(str(request_call.get("kind")), ()):
                requested._requested_path = requested.input.get(PATH_KEY)
            requested.input = self.input | {
                key: value for key, value in requested.input.items() if key in self.input
            }
        requested.content = requested.content or self.content
        requested.paths = requested.paths or self.paths
        return requested

    def _find_requested_file(self) -> object:
        """Return the file that a permission request names, or None.

        The file is only needed for an agent that reports no tool names. Such a request is matched
        to its call by the file.
        """
        if self._format.name_source != "kind":
            return None
        return self.input.get(PATH_KEY, self.input.get(FILE_KEY))

    def _is_request_for_changed_file(self, requested: "AcpToolCall", working_dir: str) -> bool:
        """Return whether a permission request asks to access the file that this call changes.

        copilot asks two questions about a change outside its folders: whether it may access the
        path, and whether it may change the file. The first one is a question about the complete
        call if the call was reported once, with this file.
        """
        path = self.input.get(PATH_KEY)
        if (requested.kind, self.kind, self.start_count) != ("read", "edit", 1):
            return False
        if (
            not self.vendor_tool
            or requested.input.keys() != {PATH_KEY}
            or not isinstance(path, str)
        ):
            return False
        file = posixpath.normpath(posixpath.join(working_dir, path))
        return file == requested.requested_file

    def _is_tool_certain(self, requested: "AcpToolCall") -> bool:
        """Return whether a permission request identifies its tool with certainty.

        An MCP tool may have any name, kind and input. Its permission request arrives before its
        call is reported.
        """
        keys = self._format.question_keys.get(requested.kind)
        if self._format.name_source != "kind":
            return True
        if self.start_count <= 0:
            return False
        if keys is None:
            return False
        return requested.input.keys() >= {*keys}

    @property
    def has_input(self) -> bool:
        """Return whether the call's input is known."""
        return not NEUTRAL_INPUT_KEYS.issuperset(self.input)

    def translate_to_claude_tool(self, tools: Tools) -> tuple[str, dict[str, Any]]:
        """Return Claude's tool name and the arguments for the call.

        copilot may ask permission for a different path than the call's own path, because it splits
        one text into several paths. In this case, the path argument is a list of the two paths. No
        path rule and no permission mode matches a list.
        """
        name, tool_input = self._translate_input(tools)
        path = tool_input.get(PATH_KEY)
        requested_path = self._requested_path
        if path is None and PATH_KEY in self.input:  # Claude's argument has a different name
            return name, tool_input
        if (
            requested_path is None
            or requested_path == path
            or (isinstance(path, list) and requested_path in path)
        ):
            return name, tool_input
        return name, tool_input | {
            PATH_KEY: requested_path if path is None else [path, requested_path]
        }

    def _translate_input(self, tools: Tools) -> tuple[str, dict[str, Any]]:
        tool = tools.get(self.vendor_tool)
        if self.has_input:
            vendor_input = {
                key: value
                for key, value in self.input.items()
                if key not in NEUTRAL_INPUT_KEYS or self.kind != "execute"
            }
            if tool is not None or self.kind not in TOOL_BY_KIND:
                title = {}
                if not self.vendor_tool and self._format.name_source == "kind":
                    title = {"title": self.title}
                translated = translate_tool_call(tools, self._fallback_name, title | vendor_input)
                command = vendor_input.get("command")
                is_repeated = isinstance(translated[1].get("command"), list)
                # If the translated input lacks the command, the name belongs to a different tool,
                # which does not run the command.
                if (
                    self.kind != "execute"
                    or is_repeated
                    or command in (None, *translated[1].values())
                ):
                    return translated
            return TOOL_BY_KIND[self.kind], self._build_kind_input(vendor_input)
        if tool is None:
            name = TOOL_BY_KIND.get(self.kind, self._fallback_name)
        else:
            name = tool.name
        if self.kind == "edit" and (edit_call := self._build_edit_call()):
            return edit_call
        return name, self._build_kind_input({})

    @property
    def _fallback_name(self) -> str:
        """The name for a tool that is missing in the profile. The call's title is only used if the
        agent reports tool names. Otherwise the model may have written the title.
        """
        if self.vendor_tool:
            return self.vendor_tool
        if self.title and self._format.name_source != "kind":
            return self.title
        return UNNAMED_TOOL

    def _build_kind_input(self, vendor_input: Mapping[str, Any]) -> dict[str, Any]:
        kind = self.kind
        path = None
        if len(self.paths) == 1:
            path = self.paths[0]
        if kind == "execute":
            command = vendor_input.get("command", self.title)
            tool_input = {
                "command": command if isinstance(command, str) else " ".join(map(str, command))
            }
            notes = join_content_text(self.content)
            if match := COMMAND_NOTES.fullmatch(notes.replace(BACKGROUND_SUFFIX, "", 1)):
                if match[1] == "in":
                    tool_input["directory"] = match[2]
                notes = match[3] or ""
            elif notes.startswith(FOLDER_NOTE_START):
                # The folder in this text cannot be parsed. The resulting path is outside of the
                # turn's folders.
                tool_input["directory"] = f"/{notes}"
            return tool_input | ({"description": notes} if notes else {})
        if kind in FILE_KINDS and path is None and not self.paths:
            path = self._find_path()
        if kind in FILE_KINDS and path is not None:
            return {"file_path": path, **vendor_input}
        return {"title": self.title, **vendor_input}

    @property
    def has_refused_path(self) -> bool:
        """Whether the call failed because the agent refused its file without asking."""
        return self.kind in FILE_KINDS and not self.paths and self._find_path() is not None

    def _find_path(self) -> str | None:
        """Return the file path in the error text of a failed call, or None."""
        if self._format.error_path is None:
            return None
        match = self._format.error_path.search(
            join_content_text(self.content)[:MAX_SEARCHED_ERROR_CHARS]
        )
        if match is None:
            return None
        return match[1]

    def _build_edit_call(self) -> tuple[str, dict[str, Any]] | None:
        """Return the Claude tool call for the diffs in the content, or None if there is no diff.

        Write is for a new file, Edit for one change, and MultiEdit for several changes to one file.
        For several files, Edit has a list of their paths.
        """
        diffs = [
            item for item in self.content if isinstance(item, dict) and item.get("type") == "diff"
        ]
        if not diffs:
            return None
        first_diff = diffs[0]
        changes = [change for diff in diffs for change in list_dicts(diff.get("changes"))]
        if changes:  # version 2 lists the changed files; its patch is only for display
            files = list(
                dict.fromkeys(
                    change[key] for change in changes for key in PATH_KEYS if change.get(key)
                )
            )
            patch = {}
            if isinstance(first_diff.get("patch"), dict):
                patch = {"patch": first_diff["patch"]["text"]}
            return "Edit", (
                {"file_path": files[0]} if len(files) == 1 else {"files": files}
            ) | patch
        path = first_diff.get("path")
        old = first_diff.get("oldText")
        new = first_diff.get("newText")
        if len({diff.get("path") for diff in diffs}) > 1:
            return "Edit", {"files": [diff.get("path") for diff in diffs]}
        if len(diffs) > 1:
            edits = [
                {"old_string": diff.get("oldText"), "new_string": diff.get("newText")}
                for diff in diffs
            ]
            return "MultiEdit", {"file_path": path, "edits": edits}
        if not old:
            return "Write", {"file_path": path, "content": new}
        return "Edit", {"file_path": path, "old_string": old, "new_string": new}


def format_content_block(block: Mapping[str, Any]) -> str | None:
    """Return a content block as text. A link is formatted as Markdown. Return None for an image or
    audio.
    """
    kind = block.get("type")
    resource = block.get("resource")
    if kind == "resource_link":
        return f"[{block.get('title') or block.get('name')}]({block.get('uri')})"
    if kind == "resource" and isinstance(resource, dict):
        text = resource.get("text")
    else:
        text = block.get("text")
    if kind in ("text", "resource") and isinstance(text, str):
        return text
    return None


def list_content_blocks(content: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a tool call. ACP uses the content block format of MCP."""
    blocks = [
        item.get("content")
        for item in content
        if isinstance(item, dict) and item.get("type") == "content"
    ]
    return [
        block for block in blocks if isinstance(block, dict) and isinstance(block.get("type"), str)
    ]


def list_raw_output_blocks(raw_output: Any) -> list[dict[str, Any]]:
    """Return the content blocks in a call's raw output, or [] if the content already has the same
    data.

    copilot sends result text as content, and images only in the raw output. Kimi Code sends the
    list of blocks in the raw output, and the same list as JSON in the content.
    """
    contents = raw_output
    if isinstance(raw_output, dict):
        contents = raw_output.get("contents")
    blocks = [
        _convert_to_mcp(item) for item in list_dicts(contents) if isinstance(item.get("type"), str)
    ]
    complete_blocks = [block for block in blocks if is_valid_content_block(block)]
    if isinstance(raw_output, list) or any(block["type"] != "text" for block in complete_blocks):
        return complete_blocks
    return []


def _convert_to_mcp(block: dict[str, Any]) -> dict[str, Any]:
    """Return a content block in MCP's format. The data URL of an image is split into media type and
    data.
    """
    image_url = block.get("imageUrl")
    match = None
    if isinstance(image_url, dict):
        match = DATA_URL.fullmatch(str(image_url.get("url")))
    if match is None:
        return block
    return {"type": "image", "mimeType": match[1], "data": match[2]}


def is_valid_content_block(block: Mapping[str, Any]) -> bool:
    """Return whether the protocol defines the block's kind and the block has the value that its
    kind requires.
    """
    return isinstance(block.get(VALUE_KEY_BY_KIND.get(block["type"], "")), (str, dict))


def join_text_blocks_and_strip_trailer(
    blocks: Iterable[dict[str, Any]], trailer_pattern: Pattern[str] | None = None
) -> list[dict[str, Any]]:
    """Return the content blocks without empty text and without the agent's `trailer`. Adjacent text
    blocks are joined.
    """
    joined: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "text" and joined and joined[-1]["type"] == "text":
            joined[-1]["text"] += f"\n{get_text(block, 'text')}"
        elif block["type"] == "text":
            joined.append({"type": "text", "text": get_text(block, "text")})
        else:
            joined.append(block)
    if trailer_pattern is not None:
        for block in joined:
            if block["type"] == "text":
                block["text"] = trailer_pattern.sub("", block["text"])
    return [block for block in joined if block["type"] != "text" or block["text"]]


def join_content_text(content: object) -> str:
    """Return all text in a call's content as one string."""
    blocks = [item.get("content") for item in list_dicts(content) if item.get("type") == "content"]
    return "\n".join(
        block["text"] for block in list_dicts(blocks) if isinstance(block.get("text"), str)
    )


def parse_json_if_complete(text: str) -> object:
    """Return the JSON value of `text`, or None while the JSON is incomplete."""
    try:
        if text.endswith("}"):
            return orjson.loads(text)
        return None
    except orjson.JSONDecodeError:
        return None


def format_raw_output(raw_output: Any) -> str:
    """Return a call's raw output as text."""
    if isinstance(raw_output, dict):
        raw_output = next(
            (raw_output[key] for key in OUTPUT_KEYS if isinstance(raw_output.get(key), str)),
            raw_output,
        )
    if isinstance(raw_output, str):
        return raw_output
    if raw_output is None:
        return ""
    return dump_json(raw_output).decode()


def build_todos(plan_entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an agent's plan as a Claude todo list."""
    states = ((entry.get("content"), entry.get("status")) for entry in plan_entries)
    return [
        {"content": content, "status": status, "activeForm": content} for content, status in states
    ]


def was_refused(raw_output: Any) -> bool:
    """Return whether the raw output of a failed call says that a rule refused the call. copilot
    reports this if a hook refused it.
    """
    return as_dict(raw_output).get("code") == REFUSED_CODE


def find_exit_code(raw_output: Any) -> object:
    """Return a command's exit code from the call's raw output, or 0 if it is missing. opencode and
    copilot report exit codes.
    """
    fields = as_dict(raw_output)
    metadata = fields.get("metadata")
    contents = fields.get("contents")
    items = []
    if isinstance(contents, list):
        items = [item for item in contents if isinstance(item, dict)]
    codes = [item.get("exitCode") for item in items if item.get("type") == "shell_exit"]
    if isinstance(metadata, dict):
        code = metadata.get("exit")
    elif codes:
        code = codes[-1]
    else:
        code = None
    if code is None:
        return 0
    return code

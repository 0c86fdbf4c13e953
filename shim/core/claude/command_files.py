"""Claude's commands and skills that are Markdown files (`.claude/commands`, `.claude/skills`), and
messages that invoke them. The behavior was measured with version 2.1.332.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from shim.core.claude.markdown_header import HeaderValue, parse_markdown_file
from shim.core.claude.messages import MessageBlock, UserMessage, split_command_text
from shim.core.reading.typed import Any, NamedTuple

USER_SOURCE = "user"
PROJECT_SOURCE = "project"
DEFAULT_DESCRIPTION = "Custom command"
MAX_DERIVED_DESCRIPTION_CHARS = 100  # the limit if the file's first line is the description
MAX_DESCRIPTION_CHARS = 10_000  # longer descriptions in a header are shortened
MAX_ARGUMENTS = 1000  # the limit for the words of the arguments; further words are not inserted

# Matches shell code that is replaced by its output: a code span after white space, or a fenced code
# block.
_SHELL_CODE = re.compile(r"(?<!\S)!`([^`]+)`|^```![ \t]*\r?\n(.*?)\r?\n```[ \t]*$", re.M | re.S)
_INDEX_PLACEHOLDER = r"\$ARGUMENTS\[(?P<index>\d{1,9})\]|\$ARGUMENTS|\$(?P<digits>\d{1,9})(?!\w)"
_COMMAND_HEADER = re.compile(
    r"<command-message>.*</command-message>\n<command-name>(.*)</command-name>"
    r"(?:\n<command-args>(.*)</command-args>)?",
    re.S,
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FALSE_TEXTS = ("false", "no", "off")


class CommandFile(NamedTuple):
    """A command or skill that a Markdown file defines.

    name            the name that a message invokes; subfolders are separated by colons
    source          USER_SOURCE or PROJECT_SOURCE
    description     from the header, or the first line of the body
    argument_names  names for the words of the arguments
    allowed_tools   the rules in the header that allow tool calls
    model           the model in the header, or ""
    skill_folder    the folder of a skill; "" for a command
    display_name    the name in a skill's header, if it differs from the folder's name
    can_be_invoked  a message may invoke the command; if not, only the model may
    """

    name: str
    source: str
    body: str
    description: str = DEFAULT_DESCRIPTION
    argument_hint: str = ""
    argument_names: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    model: str = ""
    skill_folder: str = ""
    display_name: str = ""
    can_be_invoked: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the command's entry in the answer to `initialize`."""
        description = f"{self.description} ({self.source})"
        entry: dict[str, Any] = {
            "name": self.display_name or self.name,
            "description": description.replace("<", "&lt;").replace(">", "&gt;"),
            "argumentHint": self.argument_hint,
        }
        if self.display_name:
            entry["aliases"] = [self.name]
        return entry


CommandFiles = tuple[CommandFile, ...]


class CommandCall(NamedTuple):
    """The invocation of a command file by a message. `arguments` is the text after the name."""

    file: CommandFile
    arguments: str

    @property
    def header(self) -> str:
        """The text that stands for the invocation in transcripts and in the model's context."""
        lines = [
            f"<command-message>{self.file.name}</command-message>",
            f"<command-name>/{self.file.name}</command-name>",
        ]
        if self.arguments:
            lines.append(f"<command-args>{self.arguments}</command-args>")
        return "\n".join(lines)

    def name_invocation(self, message: UserMessage) -> UserMessage:
        """Return a copy of the message. Transcripts and echoes show the header of the invocation in
        place of the message.
        """
        return message._replace(raw_message={"role": "user", "content": self.header})

    def expand_message(self, message: UserMessage, text: str) -> UserMessage:
        """Return a copy of the message in which the command is replaced by its text."""
        block = MessageBlock("text", f"{self.header}\n{text}")
        if not message.blocks:
            return message._replace(text=block.text)
        blocks = (*message.blocks[:-1], block)
        texts = [block.text for block in blocks if block.kind == "text" and not block.problem]
        return message._replace(text="\n".join(texts), blocks=blocks)


class CommandPiece(NamedTuple):
    """A part of a command's text. Shell code is replaced by its output."""

    text: str
    is_shell_code: bool = False


# -- files -----------------------------------------------------------------------------------------


def parse_command_file(text: str, name: str, source: str, *, skill_folder: str = "") -> CommandFile:
    """Parse a Markdown file that defines a command, or a skill in `skill_folder`."""
    fields, body = parse_markdown_file(text)
    display_name = ""
    if skill_folder:
        display_name = _join_texts(fields.get("name"))
    if display_name == name:
        display_name = ""
    return CommandFile(
        name,
        source,
        body,
        _choose_description(fields, body),
        _join_texts(fields.get("argument-hint")),
        tuple(_list_names(fields.get("arguments"))),
        tuple(_list_rules(fields.get("allowed-tools"))),
        _parse_model(fields.get("model")),
        skill_folder,
        display_name,
        _join_texts(fields.get("user-invocable")).lower() not in _FALSE_TEXTS,
    )


def _choose_description(fields: Mapping[str, HeaderValue], body: str) -> str:
    description = fields.get("description")
    if isinstance(description, str) and description.strip():
        return description.strip()[:MAX_DESCRIPTION_CHARS]
    lines = (line.strip().lstrip("#").strip() for line in body.splitlines())
    line = next(filter(None, lines), DEFAULT_DESCRIPTION)
    if len(line) > MAX_DERIVED_DESCRIPTION_CHARS:
        return line[: MAX_DERIVED_DESCRIPTION_CHARS - 3] + "..."
    return line


def _join_texts(value: HeaderValue | None) -> str:
    if isinstance(value, list):
        return ",".join(value)
    if value is None:
        return ""
    return value.strip()


def _list_names(value: HeaderValue | None) -> list[str]:
    """Return the valid names in a list, or in a text with spaces."""
    if value is None:
        return []
    if isinstance(value, str):
        value = value.split()
    return [name for name in value if _NAME.fullmatch(name)]


def _list_rules(value: HeaderValue | None) -> list[str]:
    if isinstance(value, list):
        return [rule for rule in value if rule]
    if not value:
        return []
    from shim.core.claude.argv.flags import split_tool_rules

    return split_tool_rules(value)


def _parse_model(value: HeaderValue | None) -> str:
    model = _join_texts(value)
    if model == "inherit":
        return ""
    return model


def merge_command_files(
    skills: Iterable[CommandFile], commands: Iterable[CommandFile]
) -> CommandFiles:
    """Return the files in the real claude's order: skills first, then the commands by name. If
    several files have the same name, only the first file is returned.
    """
    ordered = (*skills, *sorted(commands, key=lambda file: file.name.lower()))
    files: dict[str, CommandFile] = {}
    for file in ordered:
        files.setdefault(file.name, file)
    return tuple(files.values())


# -- messages --------------------------------------------------------------------------------------


def find_command_call(message: UserMessage, files: CommandFiles) -> CommandCall | None:
    """Return the command file that a message invokes, or None. The last block of the message must
    be a text that begins with the command.
    """
    text = find_command_text(message)
    name, arguments = split_command_text(text)
    for file in files:
        if name and name in (file.name, file.display_name):
            return CommandCall(file, arguments)
    return None


def find_command_text(message: UserMessage) -> str:
    """Return the text of a message that begins with a slash and a name, or ""."""
    text = message.text
    if message.blocks:
        last_block = message.blocks[-1]
        text = last_block.text
        if last_block.kind != "text" or last_block.problem:
            text = ""
    if text[:1] == "/" and text[1:2].strip():
        return text
    return ""


def format_typed_command(header: str) -> str:
    """Return a command as a person typed it. `header` is the header of the command's invocation."""
    match = _COMMAND_HEADER.match(header)
    if match is None:
        return header
    return " ".join(match.groups("")).strip()


# -- the text of a command -------------------------------------------------------------------------


def split_command_body(call: CommandCall, session_id: str) -> list[CommandPiece]:
    """Return the text of a command with its arguments, split into text and shell code.

    Shell code is found before the arguments are inserted, so the arguments cannot add shell code.
    If the text has no placeholder for the arguments, they are added at its end.
    """
    file = call.file
    body = file.body.replace("${CLAUDE_SESSION_ID}", session_id)
    if file.skill_folder:
        body = body.replace("${CLAUDE_SKILL_DIR}", file.skill_folder)
    inserter = _ArgumentInserter(call)
    pieces = [piece._replace(text=inserter.insert(piece.text)) for piece in _split_shell_code(body)]
    if file.skill_folder:
        pieces.insert(0, CommandPiece(f"Base directory for this skill: {file.skill_folder}\n\n"))
    if call.arguments and not inserter.has_placeholders:
        pieces.append(CommandPiece(f"\n\nARGUMENTS: {call.arguments}"))
    return pieces


def _split_shell_code(body: str) -> Iterator[CommandPiece]:
    end = 0
    for match in _SHELL_CODE.finditer(body):
        yield CommandPiece(body[end : match.start()])
        yield CommandPiece("".join(match.groups("")).strip(), is_shell_code=True)
        end = match.end()
    yield CommandPiece(body[end:])


class _ArgumentInserter:
    """Inserts a command's arguments into its text. `$0` is the first word. A placeholder for a
    missing word is not replaced. A placeholder after a backslash only loses the backslash.
    """

    def __init__(self, call: CommandCall) -> None:
        self._arguments = call.arguments
        self._values = _split_arguments(call.arguments)
        self._names = call.file.argument_names
        names = "|".join(sorted(map(re.escape, self._names), key=len, reverse=True))
        pattern = _INDEX_PLACEHOLDER
        if names:
            pattern = rf"{pattern}|\$(?P<name>{names})(?!\w)"
        self._pattern = re.compile(rf"(?P<escape>\\?)(?:{pattern})")
        self.has_placeholders = False

    def insert(self, text: str) -> str:
        return self._pattern.sub(self._replace_placeholder, text)

    def _replace_placeholder(self, match: re.Match[str]) -> str:
        groups = match.groupdict("")
        placeholder = match[0]
        if groups["escape"]:
            return placeholder[1:]
        index_text = groups["index"] + groups["digits"]
        if name := groups.get("name"):
            index_text = str(self._names.index(name))
        value: str | None = self._arguments
        if index_text:
            value = self._get_value(int(index_text))
        if value is None:
            return placeholder
        self.has_placeholders = True
        return value

    def _get_value(self, index: int) -> str | None:
        if index < len(self._values):
            return self._values[index]
        return None


def _split_arguments(text: str) -> list[str]:
    """Split arguments into words, like a shell."""
    try:
        values = shlex.split(text)
    except ValueError:  # a quotation mark is missing
        values = text.split()
    return values[:MAX_ARGUMENTS]

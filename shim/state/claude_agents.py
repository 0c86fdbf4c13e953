"""Reads the files that define Claude's subagents."""

import os
from collections.abc import Mapping, Sequence

from shim.core.claude.argv.flags import Invocation
from shim.core.errors import CliArgumentError
from shim.core.reading.typed import TYPE_CHECKING
from shim.io.stderr import warn
from shim.state.claude_settings import AGENTS_FLAG

if TYPE_CHECKING:
    from shim.core.claude.agent_definitions import AgentDefinition

# The environment variable that is set in a subagent's process. A subagent cannot start subagents.
AGENT_RUN_VARIABLE = "SHIM_AGENT_RUN"
# The flags with which the real claude reads neither the user's files nor the project's files.
FILELESS_FLAGS = frozenset(("--bare", "--safe-mode"))
FILE_SUFFIX = ".md"
MAX_AGENT_FILE_BYTES = 1024 * 1024  # a prompt of this size does not fit into a model's context
MAX_AGENT_FILES = 1000  # in one folder; the limit for the number of definitions is the same


def load_agents(
    invocation: Invocation, environment: Mapping[str, str], folders: Sequence[tuple[str, str]]
) -> "dict[str, AgentDefinition]":
    """Return the subagents from Claude's folders and from `--agents`, by name. `folders` is the
    result of `find_agent_folders`. Raise CliArgumentError if the flag's value is invalid.

    The flag has the highest precedence, followed by the nearest folder of the project, the folders
    of `--add-dir`, and the user's folder.
    """
    if environment.get(AGENT_RUN_VARIABLE):
        return {}
    flags = dict(invocation.other_flags)
    if not FILELESS_FLAGS.isdisjoint(flags):
        folders = ()
    flag_text = flags.get(AGENTS_FLAG)
    if not (folders or flag_text):
        return {}
    from shim.core.claude.agent_definitions import merge_agents

    sources = [_load_folder(folder, label) for folder, label in folders]
    if flag_text:
        sources.append(_parse_flag(flag_text))
    return merge_agents(*sources)


def _load_folder(folder: str, label: str) -> "dict[str, AgentDefinition]":
    """Return the definitions in a folder and its subfolders. A file that cannot be read, or that
    defines no agent, is skipped, as by the real claude.
    """
    from shim.core.claude.agent_definitions import parse_agent_file
    from shim.state.files import read_text_file

    agents = {}
    for path in _list_files(folder):
        try:
            text = read_text_file(path, MAX_AGENT_FILE_BYTES)
        except (OSError, ValueError) as error:
            warn(f"the agent in {path} is skipped: {error}\n")
            continue
        agent = parse_agent_file(text, label)
        if agent is not None:
            agents[agent.name] = agent
    return agents


def _list_files(folder: str) -> list[str]:
    paths: list[str] = []
    for parent, _, names in os.walk(folder):
        paths += [os.path.join(parent, name) for name in names if name.endswith(FILE_SUFFIX)]
        if len(paths) > MAX_AGENT_FILES:
            break
    return sorted(paths)[:MAX_AGENT_FILES]


def _parse_flag(text: str) -> "dict[str, AgentDefinition]":
    """Return the definitions in the value of `--agents`. Raise CliArgumentError if it is invalid."""
    import orjson

    from shim.core.claude.agent_definitions import parse_agent_definitions

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CliArgumentError(
            f"Error: Invalid {AGENTS_FLAG} configuration:\ninvalid JSON: {error}"
        ) from None
    try:
        return parse_agent_definitions(value, AGENTS_FLAG)
    except ValueError as error:
        raise CliArgumentError(f"Error: Invalid {AGENTS_FLAG} configuration:\n{error}") from None

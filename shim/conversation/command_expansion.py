"""Expands a message that invokes one of Claude's command files: its arguments, the output of its
shell code, and the files that it refers to.

Shell code runs only if the turn's permissions allow the same call of the Bash tool without a
prompt. Rules in the header of a project's command file are ignored here, because a cloned
repository must not choose which programs run.
"""

import copy
import os
import re
import shutil
from collections.abc import Iterable

from shim.conversation.drivers.hook_runner import run_program
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.claude.command_files import (
    USER_SOURCE,
    CommandCall,
    CommandPiece,
    split_command_body,
)
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import (
    Policy,
    PolicyDecision,
    UnsupportedRule,
    parse_permission_rules,
)
from shim.state.files import read_text_file

# Each piece of shell code runs as a process of its own.
MAX_SHELL_PIECES = 50
SHELL_TIMEOUT_S = 120.0  # the real claude's limit for a call of the Bash tool
MAX_OUTPUT_CHARS = 30_000  # the real claude's limit for the output of a Bash call
NO_OUTPUT_TEXT = "(Bash completed with no output)"
IGNORED_FIELD_REASON = "the vendor does not receive the fields of a command's header"
DISABLED_TEXT = "[shell command execution disabled by policy]"

_REFERENCE = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))')
MAX_REFERENCES = 50
MAX_REFERENCED_BYTES = 256 * 1024  # all files of one command; a longer text fills the context


class CommandRefusedError(Exception):
    """A command that is not sent to the vendor. The text is the answer to the user."""


async def expand_command(call: CommandCall, launcher: ChildLauncher) -> str:
    """Return the command's text. Raise CommandRefusedError if the command has shell code that must
    not run or that fails.
    """
    if not call.file.can_be_invoked:
        raise CommandRefusedError(
            f"/{call.file.name} cannot be invoked by a message: its header has "
            "`user-invocable: false`"
        )
    session_id = launcher.session_state.options.session_id
    pieces = split_command_body(call, session_id)
    references = _read_references(
        (piece.text for piece in pieces if not piece.is_shell_code), launcher
    )
    texts = await _run_shell_pieces(call, pieces, launcher)
    return "".join((*texts, *references))


def list_ignored_fields(call: CommandCall) -> tuple[UnsupportedRule, ...]:
    """Return the fields of a command's header that have no effect on the vendor's calls."""
    file = call.file
    fields = {"allowed-tools": ", ".join(file.allowed_tools), "model": file.model}
    return tuple(
        UnsupportedRule(f"{name}: {value}", f"/{file.name}", IGNORED_FIELD_REASON)
        for name, value in fields.items()
        if value
    )


# -- shell code ------------------------------------------------------------------------------------


async def _run_shell_pieces(
    call: CommandCall, pieces: list[CommandPiece], launcher: ChildLauncher
) -> list[str]:
    """Return the texts of the pieces, with shell code replaced by its output. If one of the pieces
    must not run, no shell code runs.
    """
    codes = [piece.text for piece in pieces if piece.is_shell_code]
    if not codes:
        return [piece.text for piece in pieces]
    is_disabled = launcher.session_state.claude_settings.forbids_command_shell
    if not is_disabled:
        _check_shell_codes(call, codes, launcher)
    texts = []
    for piece in pieces:
        text = piece.text
        if piece.is_shell_code and is_disabled:
            text = DISABLED_TEXT
        elif piece.is_shell_code:
            text = await _run_shell_code(call, piece.text, launcher)
        texts.append(text)
    return texts


def _check_shell_codes(call: CommandCall, codes: list[str], launcher: ChildLauncher) -> None:
    """Raise CommandRefusedError if shell code needs a prompt, or must not run."""
    if len(codes) > MAX_SHELL_PIECES:
        raise CommandRefusedError(
            f"/{call.file.name} was not sent: it has more than {MAX_SHELL_PIECES} shell commands"
        )
    prefix = launcher.program.command_prefix
    if prefix:
        raise CommandRefusedError(
            f"/{call.file.name} was not sent: its shell commands cannot run where "
            f"{launcher.adapter.display_name} runs, because {prefix[0]} starts it"
        )
    evaluator = PolicyEvaluator(_build_command_policy(call, launcher))
    mode = launcher.session_state.mode
    for code in codes:
        decision = evaluator.evaluate_tool_call("Bash", {"command": code}, mode)
        if decision.outcome != "allow":
            raise CommandRefusedError(
                f"/{call.file.name} was not sent: its shell command `{code}` "
                f"{_explain_decision(decision)}"
            )


def _explain_decision(decision: PolicyDecision) -> str:
    """Return why shell code does not run."""
    source = f"the permission mode {decision.reason}"
    if decision.is_by_rule:
        source = f"the rule {decision.reason}"
    if decision.outcome == "deny":
        return f"is denied by {source}"
    return f"needs a permission prompt, which a command cannot show ({source})"


def _build_command_policy(call: CommandCall, launcher: ChildLauncher) -> Policy:
    """Return the turn's policy. If the command file is in the user's own folder, the policy also
    contains the allow rules from the file's header.
    """
    policy = launcher.policy
    file = call.file
    if not file.allowed_tools or file.source != USER_SOURCE:
        return policy
    policy = copy.copy(policy)
    rules = parse_permission_rules(file.allowed_tools, source=f"/{file.name}")
    policy.allow = (*policy.allow, *rules)
    return policy


async def _run_shell_code(call: CommandCall, code: str, launcher: ChildLauncher) -> str:
    """Run shell code, and return its output. Raise CommandRefusedError if the code fails."""
    environment = launcher.child_environment
    shell = shutil.which("bash", path=environment.get("PATH"))
    if shell is None:
        shell = "/bin/sh"
    result = await run_program(
        (shell, "-c", code), environment, launcher.context.cwd, timeout_s=SHELL_TIMEOUT_S
    )
    outputs = [result.stdout.strip(), result.stderr.strip()]
    output = "\n".join(filter(None, outputs))[:MAX_OUTPUT_CHARS]
    if result.code != 0:
        reason = output
        if not reason:
            reason = result.error
        raise CommandRefusedError(
            f"/{call.file.name} was not sent: its shell command `{code}` failed: {reason}"
        )
    if not output:
        return NO_OUTPUT_TEXT
    return output


# -- references to files ---------------------------------------------------------------------------


def _read_references(texts: Iterable[str], launcher: ChildLauncher) -> list[str]:
    """Return the contents of the files that texts refer to as `@path`. A file that the model could
    not read without a prompt, and a file that does not exist, are left out.
    """
    names = [
        match[1] or match[2] for text in texts if "@" in text for match in _REFERENCE.finditer(text)
    ]
    evaluator = PolicyEvaluator(launcher.policy)
    mode = launcher.session_state.mode
    cwd = launcher.context.cwd
    sections = []
    remaining_bytes = MAX_REFERENCED_BYTES
    for name in list(dict.fromkeys(names))[:MAX_REFERENCES]:
        path = os.path.join(cwd, name)
        decision = evaluator.evaluate_tool_call("Read", {"file_path": path}, mode)
        if decision.outcome != "allow":
            continue
        content = _read_text(path, remaining_bytes)
        if content is not None:
            remaining_bytes -= len(content)
            sections.append(f"\n\nContent of {name}:\n{content}")
    return sections


def _read_text(path: str, max_bytes: int) -> str | None:
    """Return a text file's content. Return None for other files, and for files that are too large."""
    try:
        text = read_text_file(path, max_bytes)
    except (OSError, ValueError):
        return None
    if "\0" in text:
        return None
    return text

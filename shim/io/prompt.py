"""Reads the prompt for a turn: the first positional argument, followed by the text on stdin
(contract P7, P20, F4).
"""

import os
import select

from shim.core.claude.argv.flags import Invocation
from shim.core.errors import CliArgumentError, FrontendError
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.typed import TYPE_CHECKING
from shim.io.stderr import warn

if TYPE_CHECKING:
    from shim.io.record_sinks import RunRecordSink

# How long to wait for data on an open stdin if the command line has a prompt (contract P20).
OPTIONAL_STDIN_TIMEOUT_S = 3.0
REQUIRED_STDIN_TIMEOUT_S = 600.0  # if the prompt must come from stdin
CHUNK_BYTES = 256 * 1024
LIMIT_HINT = "raise max_inbound_bytes in config.toml"
MAX_SYSTEM_PROMPT_BYTES = 1024 * 1024

NO_PROMPT_ERROR = (
    "Error: Input must be provided either through stdin or as a prompt argument when using --print"
)
SLOW_STDIN_WARNING = (
    "Warning: no stdin data received in 3s, proceeding without it. If piping from a slow command, redirect stdin "
    "explicitly: < /dev/null to skip, or wait longer.\n"
)


def read_prompt(
    invocation: Invocation,
    descriptor: int = 0,
    max_bytes: int = MAX_LINE_BYTES,
    recorder: "RunRecordSink | None" = None,
) -> str:
    """Return the prompt. Raise CliArgumentError if the prompt is empty, and FrontendError if it
    cannot be passed to a program.
    """
    prompt_argument = invocation.prompt
    if not prompt_argument:
        prompt_argument = ""
    piped_text = _read_piped_text(descriptor, bool(prompt_argument), max_bytes, recorder)
    prompt = "\n".join(part for part in (prompt_argument, piped_text) if part.strip())
    if not prompt:
        if invocation.swallowed_prompt:
            flag, value = invocation.swallowed_prompt
            raise CliArgumentError(
                f'{NO_PROMPT_ERROR}\n"{value}" was read as a value of {flag}, not as a prompt',
                hint=f"put a prompt before {flag} or after --",
            )
        raise CliArgumentError(NO_PROMPT_ERROR)
    _check_text(prompt)
    return prompt


def _check_text(prompt: str) -> None:
    if "\0" in prompt:
        raise FrontendError(
            "the prompt contains a NUL character, which cannot be passed to a program"
        )


def read_background_prompt(invocation: Invocation, descriptor: int, max_bytes: int) -> str:
    """Return the prompt for a background session, or "". If stdin is open but has no input, wait
    only briefly.
    """
    prompt_argument = invocation.prompt
    if not prompt_argument:
        prompt_argument = ""
    piped_text = _read_piped_text(descriptor, True, max_bytes, None).rstrip("\r\n")
    prompt = "\n".join(part for part in (prompt_argument, piped_text) if part.strip())
    _check_text(prompt)
    return prompt


def load_system_prompt_files(invocation: Invocation) -> Invocation:
    """Return the invocation with the contents of `--system-prompt-file` and
    `--append-system-prompt-file`. Raise FrontendError if a file cannot be read or is too large.
    """
    if invocation.system_prompt_file is not None:
        invocation = invocation._replace(
            system_prompt=_load_text(invocation.system_prompt_file), system_prompt_file=None
        )
    if invocation.append_system_prompt_file is not None:
        text = _load_text(invocation.append_system_prompt_file)
        invocation = invocation._replace(append_system_prompt=text, append_system_prompt_file=None)
    return invocation


def _load_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SYSTEM_PROMPT_BYTES + 1)
    except OSError as error:
        raise FrontendError(f"the file {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_SYSTEM_PROMPT_BYTES:
        raise FrontendError(f"the file {path} is larger than {MAX_SYSTEM_PROMPT_BYTES} bytes")
    return data.decode("utf-8", "replace")


def _read_piped_text(
    descriptor: int, has_prompt: bool, max_bytes: int, recorder: "RunRecordSink | None"
) -> str:
    """Return the text on stdin. Return "" if stdin is a terminal or closed, or if stdin is optional
    and has no input.
    """
    try:
        if os.isatty(descriptor):
            return ""
        os.fstat(descriptor)
    except OSError:
        return ""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        timeout_s = REQUIRED_STDIN_TIMEOUT_S
        if has_prompt and not parts:
            timeout_s = OPTIONAL_STDIN_TIMEOUT_S
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        if not ready:
            if parts:
                raise FrontendError(
                    f"stdin was silent for {timeout_s:g} s in the middle of the prompt"
                )
            warn(SLOW_STDIN_WARNING)
            break
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except OSError:
            break
        if recorder is not None:
            recorder.record_stream("i", chunk)
        if not chunk:
            break
        parts.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise FrontendError(
                f"the prompt on stdin is larger than {max_bytes} bytes", hint=LIMIT_HINT
            )
    return b"".join(parts).decode("utf-8", "replace")

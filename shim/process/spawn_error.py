"""Why a program could not be started: whose fault it was, in a sentence, and what to do about it.

The system's own words are about a system call: a script without its interpreter "does not exist",
and a prompt that is too long is an argument list.
"""

import errno
import os
from collections.abc import Mapping, Sequence

from shim.core.errors import FrontendError, MachineError, ShimError, VendorError

MACHINE_ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MAX_FIRST_LINE_BYTES = 256  # what the kernel reads of a script to find its interpreter


def create_spawn_error(
    command: Sequence[str], environment: Mapping[str, str], cwd: str, error: OSError | ValueError
) -> ShimError:
    """The error to raise for a child that could not be started."""
    program = command[0]
    if not isinstance(error, OSError):
        return FrontendError(f"{program} could not be started: an argument holds a NUL character")
    said = error.strerror or str(error)
    if error.errno in MACHINE_ERRNOS:
        return MachineError(
            f"{program} could not be started: {said}",
            hint="this machine has no processes, open files or memory left for it (`ulimit -a` lists the limits)",
        )
    if error.errno == errno.E2BIG:
        return _create_too_long_error(command, environment)
    if not os.access(cwd, os.X_OK):
        return FrontendError(
            f"{program} could not be started: the working directory {cwd} is gone or may not be entered",
            hint="start from another directory",
        )
    reason, hint = _explain_failure(program, error.errno, said)
    return VendorError(f"{program} could not be started: {reason}", hint=hint)


def _create_too_long_error(command: Sequence[str], environment: Mapping[str, str]) -> FrontendError:
    """The error has the sizes, because systems have different limits."""
    sizes = [len(os.fsencode(word)) for word in command]
    at = max(range(len(sizes)), key=sizes.__getitem__)
    before = command[at - 1] if at and command[at - 1].startswith("-") else ""
    flag = command[at].partition("=")[0] if command[at].startswith("--") else before
    held = sum(
        len(os.fsencode(name)) + len(os.fsencode(value)) for name, value in environment.items()
    )
    return FrontendError(
        f"{command[0]} could not be started: its command line is too long for this machine "
        f"({sum(sizes)} bytes, {sizes[at]} of them in {flag or 'one argument'}; {held} bytes of environment)",
        hint="shorten the longest of them; a message of the user's may be as long as you like, given on stdin",
    )


def _explain_failure(program: str, number: int | None, said: str) -> tuple[str, str]:
    """What is wrong with the program, and what to do."""
    if os.sep not in program:
        return "there is no such program on PATH", "install it, or name it by its absolute path"
    if os.path.isdir(program):
        return "it is a directory", "name the program inside of it"
    first = _read_first_line(program)
    if number == errno.ENOENT and first.startswith(b"#!"):
        interpreter = first[2:].strip().partition(b" ")[0].decode("utf-8", "replace")
        if first.endswith(b"\r"):
            return "its lines end in CR LF", "save the script with Unix line ends"
        return (
            f"its interpreter {interpreter} does not exist",
            "install that, or correct the first line of the script",
        )
    if number == errno.ENOENT and os.path.exists(program):
        return (
            "what loads it does not exist here",
            "install the build that is meant for this machine",
        )
    if number == errno.ENOENT:
        return "it does not exist", "install it, or name it with SHIM_BIN"
    if number == errno.EACCES:
        return (
            said,
            f"make it executable (chmod +x {program}), and its folder one that programs may run from",
        )
    if number == errno.ENOEXEC and not os.path.getsize(program):
        return f"{said}: it is empty", "install it again"
    if number == errno.ENOEXEC and b"\0" not in first and not first.startswith(b"\x7fELF"):
        return (
            f"{said}: it is text without a #! line",
            "name the program itself, or give the script its first line",
        )
    return said, "install the build that is meant for this machine"


def _read_first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return b""

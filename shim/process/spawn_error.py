"""Explains why a program could not be started, and how to fix the problem.

The system's error messages describe a failed system call, which can be misleading. If a script's
interpreter is missing, they say that the script does not exist. If a prompt is too long, they say
"Argument list too long".
"""

import errno
import os
from collections.abc import Mapping, Sequence

from shim.core.errors import FrontendError, ShimError, SystemResourceError, VendorError

MACHINE_ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MAX_FIRST_LINE_BYTES = 256  # the part of a script in which the kernel looks for an interpreter


def create_spawn_error(
    command: Sequence[str], environment: Mapping[str, str], cwd: str, error: OSError | ValueError
) -> ShimError:
    """Create the error for a child process that could not be started."""
    program = command[0]
    if not isinstance(error, OSError):
        return FrontendError(
            f"{program} could not be started: an argument contains a NUL character"
        )
    system_message = error.strerror
    if not system_message:
        system_message = str(error)
    if error.errno in MACHINE_ERRNOS:
        return SystemResourceError(
            f"{program} could not be started: {system_message}",
            hint="this machine has no free processes, open files or memory (`ulimit -a` lists "
            "the limits)",
        )
    if error.errno == errno.E2BIG:
        return _create_too_long_error(command, environment)
    if not os.access(cwd, os.X_OK):
        return FrontendError(
            f"{program} could not be started: the working directory {cwd} does not exist "
            "or is not accessible",
            hint="start from another directory",
        )
    reason, hint = _explain_failure(program, error.errno, system_message)
    return VendorError(f"{program} could not be started: {reason}", hint=hint)


def _create_too_long_error(command: Sequence[str], environment: Mapping[str, str]) -> FrontendError:
    """Create the error for arguments that are too long. The error states the sizes, because the
    limit depends on the system.
    """
    sizes = [len(os.fsencode(arg)) for arg in command]
    longest_index = max(range(len(sizes)), key=sizes.__getitem__)
    argument_name = "one argument"
    if command[longest_index].startswith("--"):
        argument_name = command[longest_index].partition("=")[0]
    elif longest_index and command[longest_index - 1].startswith("-"):
        argument_name = command[longest_index - 1]
    environment_bytes = sum(
        len(os.fsencode(name)) + len(os.fsencode(value)) for name, value in environment.items()
    )
    return FrontendError(
        f"{command[0]} could not be started: its command line is too long for this machine "
        f"({sum(sizes)} bytes, {sizes[longest_index]} of them in {argument_name}; "
        f"{environment_bytes} bytes of environment)",
        hint="shorten the longest argument; a user's message can be of any length on stdin",
    )


def _explain_failure(
    program: str, error_number: int | None, system_message: str
) -> tuple[str, str]:
    """Return why the program cannot be started, and how to fix the problem."""
    if os.sep not in program:
        return "the program was not found on PATH", "install the program, or use its absolute path"
    if os.path.isdir(program):
        return "the path is a directory", "use the path of the program in this directory"
    first_line = _read_first_line(program)
    if error_number == errno.ENOENT and first_line.startswith(b"#!"):
        interpreter = first_line[2:].strip().partition(b" ")[0].decode("utf-8", "replace")
        if first_line.endswith(b"\r"):
            return "the script's lines end in CR LF", "save the script with Unix line endings (LF)"
        return (
            f"the script's interpreter {interpreter} does not exist",
            "install the interpreter, or correct the first line of the script",
        )
    if error_number == errno.ENOENT and os.path.exists(program):
        return (
            "the program's loader does not exist on this machine",
            "install a build of the program for this machine",
        )
    if error_number == errno.ENOENT:
        return "the file does not exist", "install the program, or set SHIM_BIN to its path"
    if error_number == errno.EACCES:
        return (
            system_message,
            f"make the file executable (chmod +x {program}), and check that its file system is not "
            "mounted with `noexec`",
        )
    if error_number == errno.ENOEXEC and not os.path.getsize(program):
        return f"{system_message}: the file is empty", "reinstall the program"
    if (
        error_number == errno.ENOEXEC
        and b"\0" not in first_line
        and not first_line.startswith(b"\x7fELF")
    ):
        return (
            f"{system_message}: the file is text without a #! line",
            "use the path of the program itself, or add a #! line to the script",
        )
    return system_message, "install a build of the program for this machine"


def _read_first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return b""

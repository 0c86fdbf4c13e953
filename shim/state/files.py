"""Writes and reads files safely, including small files in the state directory.

A new file never replaces an existing file, and is never written through a symbolic link. To replace
a file, a complete new file is written and then renamed. Only regular files are read, because a read
from a pipe or a device could block.

The state directory must belong to the current user and have mode 0700. Otherwise nothing is stored.
There is no fallback location.
"""

import os
import stat
from collections.abc import Callable, Iterator
from errno import EINVAL
from io import BytesIO

from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.typed import TYPE_CHECKING
from shim.io.stderr import warn

if TYPE_CHECKING:
    from shim.core.reading.lines import OpenSpillFile, SpillFile

NOT_PRIVATE_TEXT = "{path} must be owned by you and private (chmod 700)"


def ensure_private_dir(path: str) -> bool:
    """Create the folder `path` in the state directory, if necessary. Return whether the folder and
    the state directory belong to the current user and are private.
    """
    try:
        for folder in (os.path.dirname(path), path):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not is_private_dir(folder):
                return False
        return True
    except OSError:
        return False


def is_private_dir(path: str) -> bool:
    """Return whether `path` is a folder that only the current user can access. Raise OSError if it
    does not exist.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return False
    if status.st_uid != os.getuid():
        return False
    return not status.st_mode & 0o077


_warned_dirs: set[str] = set()


def ensure_usable_dir(path: str) -> bool:
    """Do the same as `ensure_private_dir`. If nothing can be stored in the folder, print one line
    on stderr.
    """
    if ensure_private_dir(path):
        return True
    _warn_once(path)
    return False


def can_others_write_dir(path: str) -> bool:
    """Return whether other users could have written files to the folder `path` in the state
    directory. If so, print one line on stderr.

    A missing folder is not created.
    """
    if not (_is_foreign(os.path.dirname(path)) or _is_foreign(path)):
        return False
    _warn_once(path)
    return True


def _is_foreign(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return True
    if status.st_uid != os.getuid():
        return True
    return bool(status.st_mode & 0o022)


def _warn_once(path: str) -> None:
    state_dir = os.path.dirname(path)
    if state_dir not in _warned_dirs:
        _warned_dirs.add(state_dir)
        warn(f"{explain_unusable_dir(path)}\n")


def explain_unusable_dir(path: str) -> str:
    """Return why nothing can be stored in the folder `path` in the state directory."""
    folder, error = find_unusable_dir(path)
    if error is None:
        reason = NOT_PRIVATE_TEXT.format(path=folder)
    else:
        reason = f"{folder} cannot be created: {error.strerror}"
    return f"state is not stored: {reason}"


def find_unusable_dir(path: str) -> tuple[str, OSError | None]:
    """Return which folder must be fixed, `path` or the state directory, and the error.

    The error explains why the folder cannot be created. The error is None if the folder exists but
    is not private.
    """
    for folder in (os.path.dirname(path), path):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            return folder, None if os.path.lexists(folder) else error
        if not is_private_dir(folder):
            break
    return folder, None


# -- any file --------------------------------------------------------------------------------------


def open_new_file(path: str, mode: int = 0o600) -> int:
    """Create a file, and return a descriptor for writing. Raise OSError, for example if the file
    exists.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor. Raise OSError on failure."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_new_file(path: str, write_content: Callable[[int], None], mode: int = 0o600) -> None:
    """Create a file, and call `write_content` with its descriptor. If an error occurs, remove the
    file.

    Raise OSError, and any error from `write_content`.
    """
    descriptor = open_new_file(path, mode)
    try:
        try:
            write_content(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove_file(path)
        raise


def replace_file(path: str, write_content: Callable[[int], None], mode: int = 0o600) -> None:
    """Write a new file next to `path`, and rename it to `path`. The old file remains until the new
    file is complete.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    remove_file(temporary)  # a killed process with the same process id may have left this file
    write_new_file(temporary, write_content, mode)
    try:
        os.replace(temporary, path)
    except OSError:
        remove_file(temporary)
        raise


def overwrite_file(path: str, data: bytes) -> None:
    """Overwrite a file in place, without creating a new file. A concurrent reader may see partly
    new content.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def open_regular_file(path: str, *, follow_links: bool = True) -> int:
    """Return a descriptor for reading a regular file. Raise OSError for other file types, and for
    symbolic links unless `follow_links` is set.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(EINVAL, "not a regular file", path)


def read_text_file(path: str, max_bytes: int) -> str:
    """Return the text of a regular file. Raise OSError if it cannot be read, and ValueError if it
    is larger than `max_bytes`.
    """
    with open(open_regular_file(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"the file is larger than {max_bytes} bytes")
    return data.decode("utf-8", "replace")


def remove_file(path: str) -> bool:
    """Remove a file. Return False if that fails."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


# -- files in the state directory ------------------------------------------------------------------


def read_state_file(directory: str, name: str, max_bytes: int) -> bytes | None:
    """Return the first `max_bytes` bytes of a file in the state directory, or None if the file does
    not exist.
    """
    if ensure_usable_dir(directory):
        return _read_regular(os.path.join(directory, name), max_bytes)
    return None


def _read_regular(path: str, max_bytes: int) -> bytes | None:
    try:
        descriptor = open_regular_file(path, follow_links=False)
    except OSError:
        return None
    try:
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def read_newest_state_files(
    directory: str, suffix: str, max_count: int, max_bytes: int
) -> Iterator[tuple[str, bytes]]:
    """Return the newest files in the state directory whose names end with `suffix`, newest first.

    At most `max_count` files are returned, each with its first `max_bytes` bytes.
    """
    entries = []
    if ensure_usable_dir(directory):
        entries = list_modification_times_and_paths(directory)
    for _, path in [entry for entry in reversed(entries) if entry[1].endswith(suffix)][:max_count]:
        data = _read_regular(path, max_bytes)
        if data is not None:
            yield os.path.basename(path), data


def list_modification_times_and_paths(directory: str) -> list[tuple[float, str]]:
    """Return the modification time and the path of each entry in a folder, oldest first. Times are
    in seconds since 1970.
    """
    entries = []
    try:
        with os.scandir(directory) as scan:
            for entry in scan:
                try:
                    entries.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
                except OSError:
                    continue  # another process has removed the file
    except OSError:
        pass
    return sorted(entries)


def write_state_file(directory: str, name: str, data: bytes) -> bool:
    """Write or replace a file in the state directory. Return False if the file cannot be stored."""
    if not ensure_usable_dir(directory):
        return False
    try:
        replace_file(os.path.join(directory, name), lambda file: write_all(file, data))
    except OSError:
        return False
    return True


def select_spill_file_opener(max_line_bytes: int) -> "OpenSpillFile":
    """Return a function that opens unnamed storage for a long input line that may never end.

    The storage is a temporary file. If the user raised the line limit, the storage is in memory.
    Such a user has the memory for long lines, and would otherwise wait for the disk.
    """
    if max_line_bytes > MAX_LINE_BYTES:
        return BytesIO
    return _open_temporary_file


def _open_temporary_file() -> "SpillFile":
    from tempfile import TemporaryFile

    return TemporaryFile(buffering=0)

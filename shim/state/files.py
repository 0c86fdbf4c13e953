"""Small files in the state directory: ours alone, replaced whole, never through a link.

A directory must be ours and 0700, files are created with O_EXCL and O_NOFOLLOW and 0600, then renamed over the old
one (threats: settings of another user, symlinks). Where that cannot be had nothing is kept; there is no fallback.
"""

import os
import stat
from collections.abc import Iterator
from io import BytesIO

from shim.channels.raw_output import tell
from shim.core.reading.lines import INBOUND_BYTES, Aside, AsideFile

NOT_PRIVATE = "state is not kept: {path} is not a directory of yours that only you may enter (chmod 700)\n"


def private_directory(path: str) -> bool:
    """Make `path`, a folder in the state directory, if needed; whether both are ours and only we may enter them."""
    try:
        for folder in (os.path.dirname(path), path):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not _private(folder):
                return False
        return True
    except OSError:
        return False


def _private(path: str) -> bool:
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


_warned: set[str] = set()


def usable(path: str) -> bool:
    """`private_directory`, with one line on stderr when nothing can be kept there."""
    if private_directory(path):
        return True
    state = os.path.dirname(path)
    if state not in _warned:
        _warned.add(state)
        tell(NOT_PRIVATE.format(path=fault(path)))
    return False


def fault(path: str) -> str:
    """Of a folder that is not private and the state directory above it, the one that has to be changed."""
    try:
        return path if _private(os.path.dirname(path)) else os.path.dirname(path)
    except OSError:
        return os.path.dirname(path)


def read_file(directory: str, name: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a file of ours, None when there is none."""
    return _read(os.path.join(directory, name), limit) if usable(directory) else None


def _read(path: str, limit: int) -> bytes | None:
    descriptor = regular_file(path)
    if descriptor is None:
        return None
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def regular_file(path: str) -> int | None:
    """A descriptor to read a file with; None for what is none, a link or a pipe, at which nobody waits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def newest_files(directory: str, suffix: str, count: int, limit: int) -> Iterator[tuple[str, bytes]]:
    """At most `count` files of ours that end in `suffix`, the last written first, each with its first `limit` bytes."""
    if not usable(directory):
        return
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.name.endswith(suffix):
                        found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
                except OSError:
                    continue  # another process forgot it just now
    except OSError:
        return
    for _, name in sorted(found, reverse=True)[:count]:
        data = _read(os.path.join(directory, name), limit)
        if data is not None:
            yield name, data


def remove(path: str) -> bool:
    """Remove a file of ours; False when that cannot be, and nothing else stops over it."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def write_file(directory: str, name: str, data: bytes) -> bool:
    """Replace a file of ours; False when it could not be kept."""
    if not usable(directory):
        return False
    path = os.path.join(directory, name)
    temporary = f"{path}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(temporary, flags, 0o600)
        except FileExistsError:  # of a process that had our number and was killed while it wrote
            os.unlink(temporary)
            descriptor = os.open(temporary, flags, 0o600)
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        return False
    return True


def aside_for(limit: int) -> Aside:
    """Where a long line waits for its end, which may never come: a file that nobody else can find.

    Who raised the limit has the memory for it, and would wait for the disk.
    """
    return BytesIO if limit > INBOUND_BYTES else _aside_file


def _aside_file() -> AsideFile:
    from tempfile import TemporaryFile

    return TemporaryFile(buffering=0)

"""Casts in folders: which files are meant, and what the strict reader finds in one."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from shim.cast import CastError
from shim.cast_verify import verify

CHUNK_BYTES = 256 * 1024
SUFFIX = ".cast"


def cast_paths(given: Iterable[str]) -> Iterator[str]:
    """The files that are meant: a folder stands for the casts in it, by name. CastError when it has none."""
    for path in given:
        if not os.path.isdir(path):
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX) and entry.is_file())
        except OSError as error:
            raise CastError(f"{path} cannot be read: {error.strerror}") from None
        if not names:
            raise CastError(f"{path} has no casts: no file in it is called *{SUFFIX}")
        yield from (os.path.join(path, name) for name in names)


def verify_cast(path: str) -> dict[str, Any]:
    """What the strict reader finds: file, state, lines, the last proved line, findings. JSON-ready.

    A file that cannot be read has the state `unreadable`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            verifier = verify(lambda: os.read(descriptor, CHUNK_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
        finding = {"first": 0, "last": 0, "severity": "damage", "kind": "unreadable", "text": text}
        return {"file": path, "state": "unreadable", "lines": 0, "proved": 0, "findings": [finding], "left_out": 0}
    return {
        "file": path,
        "state": verifier.state,
        "lines": verifier.count,
        "proved": verifier.proved,
        "findings": [finding._asdict() for finding in verifier.findings],
        "left_out": verifier.left_out,
    }

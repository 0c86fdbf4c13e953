"""Casts in files: finding them, checking one, and blanking more secrets in one."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.cast.records import DAMAGE, SUFFIX, CastError
from shim.core.cast.verify import CastFinding, verify
from shim.recording.rewrite import Rewritten, rewrite
from shim.recording.search import Search
from shim.state.files import open_regular

CHUNK_BYTES = 256 * 1024


def cast_paths(given: Iterable[str]) -> Iterator[str]:
    """The files that a person named; a folder stands for its casts, sorted by name. CastError if it has none."""
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


class VerifiedCast(NamedTuple):
    """What `verify` found in a file, JSON-ready.

    `state` is intact, damaged, cut off or unreadable. `chained`: every checkpoint in the file matches. `cut`: the last
    checkpoint is missing. `proved` is the last line that a checkpoint covers. `left_out` counts further findings.
    """

    file: str
    state: str
    chained: bool = False
    cut: bool = False
    lines: int = 0
    proved: int = 0
    findings: Sequence[Mapping[str, Any]] = ()
    left_out: int = 0


def verify_cast(path: str) -> VerifiedCast:
    try:
        descriptor = open_regular(path)
        try:
            verifier = verify(lambda: os.read(descriptor, CHUNK_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        finding = CastFinding(0, 0, DAMAGE, "unreadable", f"cannot be read: {error.strerror}")
        return VerifiedCast(path, "unreadable", findings=[finding._asdict()])
    return VerifiedCast(
        path,
        verifier.state,
        verifier.chained,
        verifier.cut,
        verifier.count,
        verifier.proved,
        [finding._asdict() for finding in verifier.findings],
        verifier.left_out,
    )


def redact_cast(
    path: str, target: str | None, patterns: Sequence[str], texts: Sequence[str], *, force: bool = False
) -> Rewritten:
    """Write a cast anew, without known secrets and without what these expressions and texts match.

    Without a `target` the new file replaces the old one, which must not be a link. Two cases need `force`: a new chain
    would hide damage, and a recorder that still runs would go on writing into the old file.
    """
    search = Search(patterns, texts)
    if target is None and os.path.islink(path):
        raise CastError(f"{path} is a link", hint=f"name the file itself, {os.path.realpath(path)}")
    checked = verify_cast(path)
    if not force and checked.state != "unreadable" and not checked.chained:
        raise CastError(f"{path} is damaged; new checksums would hide that", hint="--force writes it nevertheless")
    if not force and checked.cut and target is None:
        raise CastError(
            f"{path} is cut off, or still being recorded: what is recorded later would be lost",
            hint="-o FILE leaves it as it is; --force if nobody records it any more",
        )
    if not patterns and not texts:
        return rewrite(path, target)
    with search.bounded():
        return rewrite(path, target, search)

"""The fixtures in `fixtures/` as test cases, and their translation."""

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.adapter.child_stream import ChildStream
from shim.core.turn.outcome import ChildExit
from shim.process.exit_status import parse_exit_status

ROOT = Path(__file__).resolve().parents[2]

FIXTURES = ROOT / "fixtures"

SEEDS = ("acai", "cake", "cursor", "pi", "qwen")


@dataclass(frozen=True)
class Case:
    """One folder of `fixtures/`: the vendor's bytes, and the metadata in case.toml."""

    name: str
    folder: Path
    vendor: str
    metadata: dict[str, Any] = field(hash=False, compare=False)

    @cached_property
    def data(self) -> bytes:
        return (self.folder / "vendor.ndjson").read_bytes()

    @property
    def golden(self) -> Path:
        return self.folder / "claude.ndjson"

    @property
    def partial(self) -> bool:
        return bool(self.metadata.get("partial", False))

    @property
    def stderr(self) -> str:
        return str(self.metadata.get("stderr", ""))

    @property
    def exit(self) -> ChildExit | None:
        """How the program ended, or None if that is unknown."""
        value = self.metadata.get("exit")
        return None if value is None else parse_exit_status(str(value))

    @property
    def passthrough(self) -> bool:
        return self.vendor == "claude"

    def parse_events(self) -> list[Any]:
        """Return the vendor's lines as objects, parsed without the shim. Lines that are not JSON
        are left out.
        """
        events = []
        for line in self.data.split(b"\n"):
            try:
                events.append(json.loads(line.decode("utf-8", "replace"), strict=False))
            except (ValueError, RecursionError):
                continue
        return events


@cache
def list_fixture_cases(*vendors: str) -> tuple[Case, ...]:
    """Return every fixture, ordered by name, or those of `vendors`. A torture fixture belongs to
    the vendor that reads it.

    Fixtures from fuzzing belong to no vendor, because no program printed them. They are only tested
    for rules that hold for any bytes.
    """
    if not vendors:
        return tuple(read_cases(FIXTURES))
    return tuple(
        case
        for case in list_fixture_cases()
        if case.vendor in vendors and not case.folder.name.startswith("fuzz-")
    )


def read_cases(fixtures: Path) -> Iterator[Case]:
    """Yield the cases of a folder with the layout of `fixtures/`."""
    for data in sorted(fixtures.glob("*/*/vendor.ndjson")):
        folder = data.parent
        metadata = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
        yield Case(
            f"{folder.parent.name}/{folder.name}",
            folder,
            metadata.get("vendor", folder.parent.name),
            metadata,
        )


@cache
def find_case(name: str) -> Case:
    """Return the fixture called `<vendor>/<case>`."""
    (match,) = (case for case in list_fixture_cases() if case.name == name)
    return match


class _FromCase:
    """A placeholder for the value in case.toml. None is not usable, because it is a valid exit."""


FROM_CASE = _FromCase()


def translate_case(
    case: Case,
    partial: bool | None = None,
    child_exit: ChildExit | _FromCase | None = FROM_CASE,
    data: bytes | None = None,
    chunks: Iterable[bytes] | None = None,
    redact: bool = False,
) -> tuple[bytes, ChildStream]:
    """Return the shim's output for a case, with stable ids. Each argument replaces a value of the
    case.
    """
    partial = case.partial if partial is None else partial
    translation = create_standalone_child_stream(
        case.vendor, include_partial_messages=partial, stable_ids=True, redact=redact
    )
    if chunks is None:
        chunks = (case.data if data is None else data,)
    output = [translation.feed(chunk)[0] for chunk in chunks]
    ending = case.exit if isinstance(child_exit, _FromCase) else child_exit
    output.append(translation.close(ending, case.stderr)[0])
    return b"".join(output), translation


def split_bytes(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of `data` one by one."""
    return (data[position : position + 1] for position in range(len(data)))

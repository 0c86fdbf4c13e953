"""Generates `tests/golden/recorded.json`, the fields of the events in the fixtures, for `make
accept`.
"""

import json
from collections.abc import Iterable
from typing import Any

from drift import format_kind, list_fields, list_rules
from fixture_cases import Case, list_fixture_cases

from shim.adapters import get_adapter


def list_real_cases(*vendors: str) -> list[Case]:
    """Return the fixtures whose lines come from a program or a document."""
    return [
        case
        for case in list_fixture_cases(*vendors)
        if not case.name.startswith("torture") and not case.folder.name.startswith("fuzz-")
    ]


def collect_fields(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Return kind of event → paths of its fields."""
    paths_by_kind: dict[str, set[str]] = {}
    for case in cases:
        for event in case.parse_events():
            if isinstance(event, dict):
                paths_by_kind.setdefault(format_kind(event), set()).update(
                    field.path for field in list_fields(event)
                )
    return paths_by_kind


def _get_reader(name: str) -> Any:
    """Return what reads a vendor's events: the rules of a profile, or a class."""
    translator = get_adapter(name).translator_class
    return list_rules(translator) or translator


def encode_recorded_fields() -> bytes:
    """Return the content of the file. Vendors that share a translator or its rules share the
    recorded fields.

    A real claude and the demo are left out. The lines of the former are passed through, and the
    latter belongs to the shim, so they cannot drift.
    """
    names = sorted({case.vendor for case in list_real_cases()} - {"claude", "demo"})
    table: dict[str, Any] = {}
    for vendor in names:
        sharing_vendors = [name for name in names if _get_reader(name) == _get_reader(vendor)]
        fields = collect_fields(list_real_cases(*sharing_vendors))
        table[vendor] = {kind: " ".join(sorted(paths)) for kind, paths in sorted(fields.items())}
    return (json.dumps(table, indent=1) + "\n").encode()

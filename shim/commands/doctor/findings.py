"""Defines the findings of a diagnosis, each with a level and a suggested fix."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from shim.core.reading.values import escape_control_chars

OK = "ok"
NOTE = "note"
WARNING = "warning"
PROBLEM = "problem"


class DiagnosisFinding(NamedTuple):
    """The result of one check. `level` is ok, note, warning, or problem. A problem means that
    something the user needs does not work.

    `text` is the result. `fix` is the suggested fix, or "". Both may contain text from other
    programs and are escaped before printing.
    """

    level: str
    text: str
    fix: str = ""

    def build_json(self) -> dict[str, str]:
        return {
            "level": self.level,
            "text": escape_control_chars(self.text),
            "fix": escape_control_chars(self.fix),
        }


def has_no_problem(findings: Iterable[DiagnosisFinding]) -> bool:
    """Return whether no finding is a problem."""
    return all(finding.level != PROBLEM for finding in findings)


class VendorDiagnosis(NamedTuple):
    """The findings about one vendor. The fields before `findings` are the same as in the vendor's
    table row.
    """

    name: str
    program: str | None
    version: str | None
    tested: str
    place: str
    unattended: bool
    findings: list[DiagnosisFinding]

    def build_json(self) -> dict[str, Any]:
        return self._asdict() | {"findings": [finding.build_json() for finding in self.findings]}


class Diagnosis(NamedTuple):
    """A complete diagnosis: findings about the machine and its settings, and a report for each
    vendor.
    """

    machine: list[DiagnosisFinding]
    vendors: list[VendorDiagnosis]

    @property
    def has_no_problem(self) -> bool:
        return has_no_problem(
            [*self.machine, *(finding for vendor in self.vendors for finding in vendor.findings)]
        )

    def build_json(self) -> dict[str, Any]:
        return {
            "works": self.has_no_problem,
            "machine": [finding.build_json() for finding in self.machine],
            "vendors": [vendor.build_json() for vendor in self.vendors],
        }

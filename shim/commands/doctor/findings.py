"""What a diagnosis says: findings, each with how bad it is and what to do about it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


class Finding(NamedTuple):
    """One thing that was looked at. `level` is ok, note, warning or problem: something that was asked for fails.

    `text` is what was found, `fix` what to do, "" where nothing needs doing.
    """

    level: str
    text: str
    fix: str = ""

    def report(self) -> dict[str, str]:
        """JSON-ready."""
        return self._asdict()


def works(findings: Iterable[Finding]) -> bool:
    """Whether nothing must be fixed."""
    return all(finding.level != PROBLEM for finding in findings)


class VendorReport(NamedTuple):
    """What was found of one vendor; the fields before `findings` are facts as `shim vendors` has them."""

    name: str
    program: str | None
    version: str | None
    tested: str
    place: str
    unattended: bool
    findings: list[Finding]

    def report(self) -> dict[str, Any]:
        """JSON-ready."""
        return self._asdict() | {"findings": [finding.report() for finding in self.findings]}


class Diagnosis(NamedTuple):
    """A whole diagnosis: of this machine and its settings, of each vendor, and the drift in the recordings."""

    machine: list[Finding]
    vendors: list[VendorReport]
    drift: list[dict[str, Any]]

    @property
    def works(self) -> bool:
        """Whether nothing must be fixed."""
        return works([*self.machine, *(finding for vendor in self.vendors for finding in vendor.findings)])

    def report(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "works": self.works,
            "machine": [finding.report() for finding in self.machine],
            "vendors": [vendor.report() for vendor in self.vendors],
            "drift": self.drift,
        }

"""A launcher that says what it would start: no program is asked anything, and no file or folder is
made.
"""

import os
from collections.abc import Callable

from shim.conversation.drivers.launcher import Launcher
from shim.conversation.drivers.setup import Setup
from shim.core.claude.facts import Facts
from shim.core.reading.typed import TYPE_CHECKING
from shim.state.config import state_directory

if TYPE_CHECKING:
    from shim.core.turn.terms import Pen
    from shim.state.store import Session


class DryLauncher(Launcher):
    """Plans a child. `files` are the texts that the child would be given, by the paths of their
    files.
    """

    dry = True
    remembers_only = True

    def __init__(
        self,
        setup: Setup,
        *,
        facts: Facts,
        pen: "Callable[[], Pen]",
        known: "Session | None" = None,
    ) -> None:
        super().__init__(setup, facts=facts, pen=pen, known=known)
        self.files: dict[str, str] = {}
        self.keep = self._noted
        self.program.remembered = self.remembers_only

    def _noted(self, text: str, suffix: str = ".txt") -> str:
        path = os.path.join(self._folder, f"{len(self.files) + 1}{suffix}")
        self.files[path] = text
        return path

    def report_folder(self) -> str | None:
        """The name that the folder of the child's report could have."""
        wanted = self.vendor.surroundings.report is not None and not self.program.launcher
        return os.path.join(self._folder, "report") if wanted else None

    @property
    def _folder(self) -> str:
        return os.path.join(
            state_directory(self.setup.environment), "spill", self.facts.rules.session_id
        )


class CheckingLauncher(DryLauncher):
    """Plans a child for a process that will start it. Its program is asked for its version and its
    help.
    """

    remembers_only = False

"""Launchers that plan a child process without starting it."""

import os

from shim.conversation.drivers.context import ConversationContext
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.reading.typed import Any
from shim.state.config import get_state_dir


class DryRunLauncher(ChildLauncher):
    """Plans a child without asking the vendor's program and without creating files or folders.

    `planned_files` maps the paths of the child's files to their contents.
    """

    is_dry = True
    uses_remembered_help = True

    def __init__(self, context: ConversationContext, **parts: Any) -> None:
        super().__init__(context, **parts)
        self.planned_files: dict[str, str] = {}
        self.store_text = self._note_file

    def _note_file(self, text: str, suffix: str = ".txt") -> str:
        path = os.path.join(self._spill_folder, f"{len(self.planned_files) + 1}{suffix}")
        self.planned_files[path] = text
        return path

    def prepare_vendor_run_report_folder(self) -> str | None:
        """Return an example path for the folder of the child's report. Return None if the child
        writes no report.
        """
        is_reported = False
        if self.adapter.environment.run_report is not None:
            is_reported = not self.program.command_prefix
        if is_reported:
            return os.path.join(self._spill_folder, "report")
        return None

    @property
    def _spill_folder(self) -> str:
        return os.path.join(
            get_state_dir(self.context.environment), "spill", self.session_state.options.session_id
        )


class ProgramProbingLauncher(DryRunLauncher):
    """Plans a child that another process will start. The vendor's program is asked for its version
    and its help text.
    """

    uses_remembered_help = False

"""A launcher that only plans. It asks no program and creates no file or folder."""

import os

from shim.conversation.drivers.context import ConversationContext
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.reading.typed import Any
from shim.state.config import get_state_dir


class DryRunLauncher(ChildLauncher):
    """Plans a child. `planned_files` are the contents of the child's files, by path."""

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
        """Return a possible name of the folder for the child's report, or None if the child writes
        no report.
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
    """Plans a child for a process that will start it. The program is asked for its version and its
    help.
    """

    uses_remembered_help = False

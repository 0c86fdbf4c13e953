"""Lists the files that `shim uninstall` leaves on the machine. With `--purge`, the shim's own files
are removed.
"""

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError
from shim.io.transcript import get_projects_dir
from shim.state.config import get_config_dir, get_state_dir, load_shim_settings

# Folders that the shim creates in its state folder.
STATE_ENTRIES = ("probes", "versions", "promises", "profiles", "sessions", "spill")
SETTINGS_ENTRIES = ("config.toml", "vendors")


class UninstallLeftover(NamedTuple):
    """A file or folder that remains after uninstalling. `owned_entries` are the names in the folder
    that only the shim uses and that may be removed.
    """

    path: str
    description: str
    owned_entries: tuple[str, ...] = ()


def list_uninstall_leftovers(
    environment: Mapping[str, str], record_folder: str = ""
) -> list[UninstallLeftover]:
    """Return the remaining files and folders of the shim. `record_folder` is the folder of the
    drop-in's recordings, or "".
    """
    try:
        if not record_folder:
            record_folder = environment.get("SHIM_RECORD", "")
        if not record_folder:
            record_folder = load_shim_settings(Invocation(), environment).record
    except FrontendError:
        pass  # settings that contain errors are removed too
    entries = (
        UninstallLeftover(
            get_state_dir(environment),
            "stored sessions and program versions",
            STATE_ENTRIES,
        ),
        UninstallLeftover(
            get_config_dir(environment), "your settings and custom vendors", SETTINGS_ENTRIES
        ),
        UninstallLeftover(record_folder, "your recordings"),
        UninstallLeftover(
            get_projects_dir(environment, ""),
            "session histories, next to those of the real claude",
        ),
    )
    return [leftover for leftover in entries if leftover.path and os.path.exists(leftover.path)]


def remove_uninstall_leftover(leftover: UninstallLeftover) -> bool:
    """Remove the shim's files from a leftover. Return whether nothing remains at its path. Links
    are not followed, and files of other programs are kept.
    """
    for name in leftover.owned_entries:
        path = os.path.join(leftover.path, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    if leftover.owned_entries and not os.listdir(leftover.path):
        os.rmdir(leftover.path)
    return not os.path.exists(leftover.path)

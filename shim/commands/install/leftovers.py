"""What `shim uninstall` leaves on the machine, and how `--purge` removes what is the shim's own."""

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError
from shim.io.transcript import get_projects_dir
from shim.state.config import get_config_dir, get_state_dir, load_config

# The folders that the shim makes in its state folder.
STATE_ENTRIES = ("probes", "versions", "promises", "profiles", "sessions", "spill")
SETTINGS_ENTRIES = ("config.toml", "vendors")


class Leftover(NamedTuple):
    """What is still there. `owned` are the entries of the folder that only the shim uses, which may
    be removed.
    """

    path: str
    description: str
    owned_entries: tuple[str, ...] = ()


def list_leftovers(environment: Mapping[str, str], recorded: str = "") -> list[Leftover]:
    """What is there of the shim's. `recorded` is where the drop-in recorded its runs, "" where it
    did not say.
    """
    try:
        recorded = (
            recorded
            or environment.get("SHIM_RECORD", "")
            or load_config(Invocation(), environment).record
        )
    except FrontendError:
        pass  # settings with a mistake are removed like others
    places = (
        Leftover(
            get_state_dir(environment),
            "what the shim remembers of sessions and programs",
            STATE_ENTRIES,
        ),
        Leftover(
            get_config_dir(environment), "your settings and your own vendors", SETTINGS_ENTRIES
        ),
        Leftover(recorded, "your recordings"),
        Leftover(
            get_projects_dir(environment, ""),
            "the histories of sessions, beside those of the real claude",
        ),
    )
    return [one for one in places if one.path and os.path.exists(one.path)]


def remove_leftover(one: Leftover) -> bool:
    """Remove what the shim owns of it; whether nothing of it is left. No link is followed, no
    foreign file touched.
    """
    for name in one.owned_entries:
        path = os.path.join(one.path, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    if one.owned_entries and not os.listdir(one.path):
        os.rmdir(one.path)
    return not os.path.exists(one.path)

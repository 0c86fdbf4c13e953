"""Shell completion for the paths of recordings."""

import os

from shim.core.cast.format import CAST_SUFFIX
from shim.core.errors import ShimError
from shim.recording.folders import get_recording_folder

MAX_RECORDINGS = 50  # the longest list of completions


def complete_recording(incomplete: str) -> list[str]:
    """Return the recordings whose paths start with `incomplete`.

    If nothing is typed yet and the working directory has no recordings, return the recordings in
    the folder of the `record` setting. If the list is empty, the shell completes file names
    instead.
    """
    folder, prefix = os.path.split(incomplete)
    paths = [
        os.path.join(folder, name) for name in _list_recordings(folder) if name.startswith(prefix)
    ]
    if paths or incomplete:
        return paths[:MAX_RECORDINGS]
    try:
        record_folder = get_recording_folder(os.environ)
    except (ShimError, OSError):
        return []
    names = _list_recordings(record_folder)
    return [os.path.join(record_folder, name) for name in reversed(names[-MAX_RECORDINGS:])]


def _list_recordings(folder: str) -> list[str]:
    """Return the sorted names of the recordings in a folder. The names start with the recording
    time.
    """
    try:
        names = os.listdir(os.path.expanduser(folder or "."))
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(CAST_SUFFIX))

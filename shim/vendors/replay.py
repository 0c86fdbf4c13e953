"""replay: a recording in the place of a vendor. It speaks as the recorded vendor did, and runs nothing.

So it is that vendor, driven and translated as ever; but it is found nowhere, every permission mode may pass, and no
warning is needed if it never asks. `shim.recording.replay` is its program.
"""

from collections.abc import Callable

from shim.core.claude.policy import MODES
from shim.core.vendor.vendor import Launch, Request, Vendor

NAME = "replay"


def stand_in(recorded: Vendor, launch: Callable[[Request], Launch], place: Callable[[], str]) -> Vendor:
    """The vendor that plays recordings of another; `launch` chooses what is played, `place` says where it is."""
    return recorded._replace(
        name=NAME,
        plays=recorded.name,
        programs=(),
        bundled="shim.recording.replay",
        launch=launch,
        place=place,
        modes=dict.fromkeys((*MODES, *recorded.modes), ()),
        unattended=False,
        resumes=True,
        probe=None,
        variants=(),
        keys=(),
        home=None,
    )

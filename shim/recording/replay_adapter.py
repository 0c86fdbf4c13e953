"""Builds the adapter that replays recordings of a vendor."""

from shim.adapters import get_adapter
from shim.core.adapter.adapter import Adapter, ReplaySource
from shim.core.policy.policy import PERMISSION_MODES


def build_replay_adapter(
    name: str, replay: ReplaySource, *, persistent: bool, without_passthrough: bool
) -> Adapter:
    """Return an adapter that replays recordings of a vendor. The vendor's program is not started.

    The adapter starts `shim.recording.player`, and translates its output in the same way as the
    vendor's adapter. It accepts every permission mode, because no tools run. `persistent` is set
    if the recorded child received its messages through stdin.
    """
    adapter = get_adapter(name, without_passthrough=without_passthrough)
    if persistent and adapter.cli.has_two_way:
        adapter = adapter.build_two_way()
    child_input_ref = ""
    if persistent:
        child_input_ref = adapter.child_input_ref
    return adapter.copy_with(
        name="replay",
        programs=(),
        child_input_ref=child_input_ref,
        modes=dict.fromkeys((*PERMISSION_MODES, *adapter.modes), ()),
        unattended=False,
        abilities=adapter.abilities._replace(
            can_resume=True, has_auto_mode="auto" in adapter.modes
        ),
        cli=adapter.cli._replace(
            bundled_module="shim.recording.player",
            has_two_way=False,
            variants={},
            replayed_vendor=adapter.name,
            replay=replay,
        ),
        environment=adapter.environment._replace(visible_variables=(), data_dir=None),
    )

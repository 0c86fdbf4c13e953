"""Members of a fleet that are removed and invited again, over a real NATS server."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from sandbox import wait_until
from test_fleet import AWAY_SECONDS, Home, home, read_copied_lines, run_connected
from test_machines import LOOK_SECONDS, TURN_SECONDS, list_agents, read_lines, run_shim

from shim.core.fleet.roles import MACHINE, WATCH
from shim.fleet.connection import FleetUnavailableError
from shim.fleet.folder import require_join_file, store_join_file
from shim.fleet.membership import load_process_status

pytestmark = pytest.mark.e2e

__all__ = ["home"]  # the fixture
LOGINS = 30


def test_revoked_machine_is_away_until_its_next_invitation(home: Home) -> None:
    session = home.start_session()
    uuid = session["sessionId"]
    lines = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == lines, TURN_SECONDS, LOOK_SECONDS)
    old_join = require_join_file(home.build)
    revoked = run_shim(home.here, "fleet", "revoke", "build", "--dir", home.lab.admin_folder)
    assert revoked.returncode == 0, revoked.stderr
    home.lab.reload_server()

    def is_refused() -> bool:
        status = load_process_status(home.build)
        return status is not None and "Authorization Violation" in status.problem

    assert wait_until(is_refused, TURN_SECONDS, LOOK_SECONDS)
    assert run_shim(home.build, "fleet", "status").returncode == 1
    assert [each["state"] for each in list_agents(home.build)] == ["done"]

    def is_away() -> bool:
        return "away" in list_agents(home.here, "--all")[0]

    assert wait_until(is_away, AWAY_SECONDS + TURN_SECONDS, LOOK_SECONDS)
    assert read_lines(home.here, f"build:{uuid}", None) == lines
    refused = run_shim(home.here, "bridge", "say", f"build:{uuid}", "more")
    assert (refused.returncode, "build" in refused.stderr) == (1, True)

    def has_new_copy() -> bool:
        with suppress(AssertionError):  # the lines of the old key are still there
            return read_copied_lines(home, uuid) == lines
        return False

    # The machine has another key now. What it has signed with the old one is replaced.
    process = home.lab.processes.pop("build")
    process.terminate()
    assert process.wait(TURN_SECONDS) == 0
    store_join_file(home.lab.invite("build", MACHINE), home.build)
    home.lab.run_machine("build", home.build)
    assert wait_until(lambda: not is_away(), TURN_SECONDS, LOOK_SECONDS)
    assert list_agents(home.here, "--all") == [session]
    assert read_lines(home.here, f"build:{uuid}", None) == lines
    assert wait_until(has_new_copy, TURN_SECONDS, LOOK_SECONDS)
    with pytest.raises(FleetUnavailableError):
        run_connected(old_join, None)


def test_reason_of_a_refused_login_is_never_lost(home: Home) -> None:
    """The server closes the connection at once, while the client library still writes."""
    expired = home.lab.forge_member(home.lab.invite("guest", WATCH), expires_s=int(time.time()) - 5)
    reasons = []
    for _ in range(LOGINS):
        with pytest.raises(FleetUnavailableError) as raised:
            run_connected(expired, None)
        reasons.append(raised.value.reason)
    assert reasons == ["Authorization Violation"] * LOGINS

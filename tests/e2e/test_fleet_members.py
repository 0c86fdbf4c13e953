"""Members of a fleet that are removed and invited again, over a real NATS server."""

from __future__ import annotations

import time

import pytest
from fleet_home import (
    AWAY_SECONDS,
    Home,
    has_copied_messages,
    home,
    read_copied_lines,
    run_connected,
)
from sandbox import wait_until
from test_machines import LOOK_SECONDS, TURN_SECONDS, list_agents, read_lines, run_shim

from shim.core.fleet.roles import MACHINE, WATCH
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.folder import require_join_file, store_join_file
from shim.fleet.membership import load_process_status
from shim.fleet.view import FleetView

pytestmark = pytest.mark.e2e

__all__ = ["home"]  # the fixture
LOGINS = 30


def revoke_build(home: Home, *options: str) -> str:
    """Revoke the machine `build`. Return what the command prints."""
    done = run_shim(home.here, "fleet", "revoke", "build", *options, "--dir", home.lab.admin_folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def is_away(home: Home) -> bool:
    """Return whether the server has no lease of the machine `build`."""

    async def read(connection: FleetConnection) -> bool:
        view = FleetView(connection.join)
        await view.load(connection)
        return view.machines["build"].away_ms is not None

    return run_connected(require_join_file(home.here), read)


def rejoin_build(home: Home) -> None:
    """Restart the machine `build` with a new key."""
    assert home.lab.stop_machine("build") == 0
    store_join_file(home.lab.invite("build", MACHINE), home.build)
    home.lab.run_machine("build", home.build)


def test_copies_of_a_revoked_machine_stay_until_they_are_removed(home: Home) -> None:
    session = home.start_session()
    uuid = session["sessionId"]
    lines = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == lines, TURN_SECONDS, LOOK_SECONDS)
    old_join = require_join_file(home.build)
    revoke_build(home)
    home.lab.reload_server()

    def is_refused() -> bool:
        status = load_process_status(home.build)
        return status is not None and "Authorization Violation" in status.problem

    assert wait_until(is_refused, TURN_SECONDS, LOOK_SECONDS)
    assert run_shim(home.build, "fleet", "status").returncode == 1
    assert [each["state"] for each in list_agents(home.build)] == ["done"]
    assert [each["sessionId"] for each in list_agents(home.here, "--all")] == [uuid]
    assert read_lines(home.here, f"build:{uuid}", None) == lines
    assert wait_until(lambda: is_away(home), AWAY_SECONDS, LOOK_SECONDS)
    output = revoke_build(home, "--remove-sessions")
    assert "nats-server --signal reload" in output  # the server may not have read it yet
    assert output.endswith(
        "removed the sessions of build and the copies of their logs from the server\n"
    )
    assert list_agents(home.here, "--all") == []
    assert not has_copied_messages(home, uuid)
    assert run_shim(home.here, "claude", "logs", f"build:{uuid}").returncode == 1

    rejoin_build(home)

    def is_listed() -> bool:
        return list_agents(home.here, "--all") == [session]

    assert wait_until(is_listed, TURN_SECONDS, LOOK_SECONDS), list_agents(home.here, "--all")
    assert read_lines(home.here, f"build:{uuid}", None) == lines
    assert wait_until(lambda: read_copied_lines(home, uuid) == lines, TURN_SECONDS, LOOK_SECONDS)
    with pytest.raises(FleetUnavailableError):
        run_connected(old_join, None)


def test_machine_is_revoked_while_the_server_is_off(home: Home) -> None:
    session = home.start_session()
    home.lab.kill_server()
    revoke_build(home)
    done = run_shim(
        home.here, "fleet", "revoke", "build", "--remove-sessions", "--dir", home.lab.admin_folder
    )
    assert done.returncode != 0 and "the server of the fleet is not available" in done.stderr, (
        done.stderr
    )
    home.lab.start_server()
    assert wait_until(lambda: is_away(home), AWAY_SECONDS, LOOK_SECONDS)
    assert [each["sessionId"] for each in list_agents(home.here, "--all")] == [session["sessionId"]]
    revoke_build(home, "--remove-sessions")
    assert list_agents(home.here, "--all") == []


def test_sessions_of_a_connected_machine_are_not_removed(home: Home) -> None:
    """The machine would publish them again. It stays connected until the server reads its new
    configuration.
    """
    session = home.start_session()
    done = run_shim(
        home.here, "fleet", "revoke", "build", "--remove-sessions", "--dir", home.lab.admin_folder
    )
    assert done.returncode != 0
    assert "build is connected to the server, so it would publish its sessions again" in done.stderr
    assert "reload the server's configuration" in done.stderr
    assert list_agents(home.here, "--all") == [session]


def test_lines_that_a_revoked_key_has_signed_are_replaced(home: Home) -> None:
    uuid = home.start_session()["sessionId"]
    lines = read_lines(home.here, f"build:{uuid}", None)
    assert wait_until(lambda: read_copied_lines(home, uuid) == lines, TURN_SECONDS, LOOK_SECONDS)
    revoke_build(home)
    home.lab.reload_server()
    rejoin_build(home)

    def is_copied() -> bool:
        status = load_process_status(home.build)
        return status is not None and status.copies.get("complete") == 1

    # The old key has signed the stored lines, so a member that checks the new key refuses them.
    assert wait_until(is_copied, TURN_SECONDS, LOOK_SECONDS)
    assert read_copied_lines(home, uuid) == lines


def test_reason_of_a_refused_login_is_never_lost(home: Home) -> None:
    """The server closes the connection at once, while the client library still writes."""
    expired = home.lab.forge_member(home.lab.invite("guest", WATCH), expires_s=int(time.time()) - 5)
    reasons = []
    for _ in range(LOGINS):
        with pytest.raises(FleetUnavailableError) as raised:
            run_connected(expired, None)
        reasons.append(raised.value.reason)
    assert reasons == ["Authorization Violation"] * LOGINS

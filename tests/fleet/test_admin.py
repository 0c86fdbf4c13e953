"""The administration of a fleet, without a server."""

import stat

import pytest

from shim.core.errors import FrontendError
from shim.core.fleet.join_file import parse_join_file
from shim.core.fleet.roles import DRIVE
from shim.fleet import admin

URL = "tls://127.0.0.1:4222"


def read_join_file(path):
    with open(path, "rb") as file:
        return parse_join_file(file.read(), path)


@pytest.mark.parametrize("url", ["", "nats://h:1", "tls://", "tls://h:x", "tls://[h:1", "h:1"])
def test_invalid_url_of_the_server_is_refused(url):
    with pytest.raises(FrontendError, match="tls://HOST:PORT"):
        admin.parse_server_url(url)


def test_fleet_has_private_files_and_a_join_file_for_its_first_machine(tmp_path):
    folder = tmp_path / "fleet"
    join = read_join_file(admin.create_fleet(str(folder), "home", URL, "build"))
    assert (join.fleet, join.machine, join.role, join.expires) == ("home", "build", "machine", 0)
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with pytest.raises(FrontendError, match="already contains a fleet"):
        admin.create_fleet(str(folder), "home", URL, "build")


def test_name_of_a_member_can_be_used_again_after_its_removal(tmp_path):
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    guest = read_join_file(admin.invite_member(folder, "guest", DRIVE, days=2))
    with pytest.raises(FrontendError, match="already has a member guest"):
        admin.invite_member(folder, "guest", DRIVE)
    config = (tmp_path / "fleet" / admin.CONFIG_FILE).read_text()
    admin.revoke_member(folder, "guest")
    revoked_config = (tmp_path / "fleet" / admin.CONFIG_FILE).read_text()
    operator_lines = [line for line in config.splitlines() if line.startswith("operator")]
    assert operator_lines[0] in revoked_config
    assert config != revoked_config
    with pytest.raises(FrontendError, match="has no member guest"):
        admin.revoke_member(folder, "guest")
    assert read_join_file(admin.invite_member(folder, "guest", DRIVE)).seed != guest.seed


@pytest.mark.parametrize("name", ["", "a.b", "a b", "-a", "x" * 65, "*"])
def test_invalid_name_is_refused(name, tmp_path):
    with pytest.raises(FrontendError, match="must have 1 to 64"):
        admin.create_fleet(str(tmp_path / "fleet"), name, URL, "build")

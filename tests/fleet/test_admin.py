"""The administration of a fleet, without a server."""

import os
import stat
import threading

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
    assert (join.fleet, join.name, join.role, join.expires) == ("home", "build", "machine", 0)
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
    with pytest.raises(FrontendError, match="has no member ghost") as raised:
        admin.revoke_member(folder, "ghost")
    assert raised.value.hint == "the members are: build"
    admin.revoke_member(folder, "guest")  # again, after the server has read the configuration
    assert read_join_file(admin.invite_member(folder, "guest", DRIVE)).seed != guest.seed


def test_removed_members_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(admin, "MAX_MEMBERS", 2)
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    admin.invite_member(folder, "guest", DRIVE)
    with pytest.raises(FrontendError, match="at most 2 members") as raised:
        admin.invite_member(folder, "second", DRIVE)
    assert "shim fleet revoke" in raised.value.hint
    admin.revoke_member(folder, "guest")
    admin.invite_member(folder, "second", DRIVE)


def test_members_can_be_removed_even_if_no_other_can_be_invited(tmp_path, monkeypatch):
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    admin.invite_member(folder, "guest", DRIVE)
    state_path = tmp_path / "fleet" / admin.STATE_FILE
    state = state_path.read_bytes()
    monkeypatch.setattr(admin, "MAX_STATE_BYTES", len(state) + 2 * admin.REVOCATION_BYTES)
    with pytest.raises(FrontendError, match="no space for one more member"):
        admin.invite_member(folder, "second", DRIVE)
    assert state_path.read_bytes() == state
    for name in ("build", "guest"):
        admin.revoke_member(folder, name)
    assert len(state_path.read_bytes()) <= admin.MAX_STATE_BYTES


@pytest.mark.parametrize("name", ["", "a.b", "a b", "-a", "x" * 65, "*"])
def test_invalid_name_is_refused(name, tmp_path):
    with pytest.raises(FrontendError, match="must have 1 to 64"):
        admin.create_fleet(str(tmp_path / "fleet"), name, URL, "build")


def test_invalid_name_of_the_first_machine_leaves_no_files(tmp_path):
    folder = tmp_path / "fleet"
    with pytest.raises(FrontendError, match="must have 1 to 64"):
        admin.create_fleet(str(folder), "home", URL, "a.b")
    assert not folder.exists()


def raise_disk_full(*args):
    raise OSError(28, "No space left on device", "fleet.json")


def test_fleet_is_created_after_an_interruption(tmp_path, monkeypatch):
    folder = str(tmp_path / "fleet")
    with monkeypatch.context() as patch:
        patch.setattr(admin, "_store_fleet", raise_disk_full)
        with pytest.raises(FrontendError, match=r"fleet.json cannot be written: No space left"):
            admin.create_fleet(folder, "home", URL, "build")
    assert os.path.exists(os.path.join(folder, "ca.pem"))
    join = read_join_file(admin.create_fleet(folder, "home", URL, "build"))
    assert join.ca == (tmp_path / "fleet" / "ca.pem").read_text()
    assert list(admin.load_fleet(folder).members) == ["build"]


def test_certificates_of_others_are_not_replaced(tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir(mode=0o700)
    (folder / "ca.pem").write_text("of another program")
    with pytest.raises(FrontendError, match=r"ca.pem cannot be written: File exists"):
        admin.create_fleet(str(folder), "home", URL, "build")
    assert (folder / "ca.pem").read_text() == "of another program"


def test_member_that_cannot_be_stored_gets_no_join_file(tmp_path, monkeypatch):
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    monkeypatch.setattr(admin, "_store_fleet", raise_disk_full)
    with pytest.raises(FrontendError, match="No space left"):
        admin.invite_member(folder, "guest", DRIVE)
    assert not os.path.exists(os.path.join(folder, "guest.join"))
    with pytest.raises(FrontendError, match="there is no fleet"):
        admin.invite_member(str(tmp_path), "guest", DRIVE)
    assert not (tmp_path / "lock").exists()


def test_members_that_are_invited_at_the_same_time_are_all_stored(tmp_path):
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    names = [f"guest{number}" for number in range(8)]
    threads = [
        threading.Thread(target=admin.invite_member, args=(folder, name, DRIVE)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(admin.load_fleet(folder).members) == {"build", *names}


def test_fleet_that_another_process_changes_is_not_changed(tmp_path, monkeypatch):
    folder = str(tmp_path / "fleet")
    admin.create_fleet(folder, "home", URL, "build")
    monkeypatch.setattr(admin, "LOCK_TIMEOUT_S", 0.0)
    with (
        admin._change_fleet(folder),
        pytest.raises(FrontendError, match="another process changes the fleet"),
    ):
        admin.revoke_member(folder, "build")
    admin.revoke_member(folder, "build")

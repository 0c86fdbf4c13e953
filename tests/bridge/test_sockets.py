"""The path of the socket: any length, its permissions, and the identity of the peer."""

import os
import socket
import stat

import pytest

from shim.bridge import sockets


@pytest.fixture(params=[8, 200], ids=["short", "long"])
def folder(request, tmp_path):
    path = tmp_path / ("x" * request.param)
    path.mkdir()
    return str(path)


def test_socket_is_reachable_by_a_path_of_any_length(folder):
    with (
        sockets.open_host_listener(folder) as listening,
        sockets.connect_to_host(folder) as connection,
    ):
        other, _ = listening.accept()
        connection.sendall(b"hi")
        with other:
            assert other.recv(9) == b"hi"


def test_socket_file_has_mode_0600(folder):
    with sockets.open_host_listener(folder):
        assert stat.S_IMODE(os.lstat(os.path.join(folder, sockets.SOCKET_FILE)).st_mode) == 0o600


def test_second_listener_in_a_folder_is_refused(folder):
    with sockets.open_host_listener(folder), pytest.raises(OSError, match="in use"):
        sockets.open_host_listener(folder)


def test_host_is_listening_only_while_its_socket_is_open(folder):
    assert not sockets.is_host_listening(folder)
    with sockets.open_host_listener(folder):
        assert sockets.is_host_listening(folder)
    assert not sockets.is_host_listening(folder)
    with pytest.raises(ConnectionRefusedError):
        sockets.connect_to_host(folder)
    sockets.remove_host_socket(folder)
    assert os.listdir(folder) == []


def test_long_path_without_proc_uses_a_short_socket_directory(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd" and real(path))
    with sockets.open_host_listener(str(folder)) as listening, sockets.connect_to_host(str(folder)):
        aside = os.readlink(folder / sockets.SOCKET_FILE)
        assert listening.getsockname() == aside and stat.S_IMODE(os.stat(aside).st_mode) == 0o600
    sockets.remove_host_socket(str(folder))
    assert not os.path.exists(os.path.dirname(aside)) and not list(folder.iterdir())


def test_connection_to_a_socket_of_another_user_is_refused(folder, monkeypatch):
    with sockets.open_host_listener(folder):
        monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
        with pytest.raises(PermissionError, match="another user"):
            sockets.connect_to_host(folder)


def test_new_socket_at_the_same_path_has_a_new_file_id(folder):
    with sockets.open_host_listener(folder):
        first = sockets.find_socket_file_id(folder)
        assert first is not None and sockets.find_socket_file_id(folder) == first
    # Prevents reuse of the inode number.
    occupying_socket = socket.socket(socket.AF_UNIX)
    occupying_socket.close()
    os.rename(os.path.join(folder, sockets.SOCKET_FILE), os.path.join(folder, "old"))
    with sockets.open_host_listener(folder):
        assert sockets.find_socket_file_id(folder) not in (None, first)

"""The socket's name: paths of any length, rights, and who is at the other end."""

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


def test_a_socket_is_reached_by_a_path_of_any_length(folder):
    with sockets.listen(folder) as listening, sockets.connect(folder) as link:
        other, _ = listening.accept()
        link.sendall(b"hi")
        with other:
            assert other.recv(9) == b"hi"


def test_only_its_owner_may_enter(folder):
    with sockets.listen(folder):
        assert stat.S_IMODE(os.lstat(os.path.join(folder, sockets.NAME)).st_mode) == 0o600


def test_a_name_that_is_taken_is_not_taken_again(folder):
    with sockets.listen(folder), pytest.raises(OSError, match="in use"):
        sockets.listen(folder)


def test_a_socket_answers_while_its_process_lives(folder):
    assert not sockets.answers(folder)
    with sockets.listen(folder):
        assert sockets.answers(folder)
    assert not sockets.answers(folder)
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(folder)
    sockets.remove(folder)
    assert os.listdir(folder) == []


def test_without_proc_a_long_path_leads_to_a_short_folder(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd" and real(path))
    with sockets.listen(str(folder)) as listening, sockets.connect(str(folder)):
        aside = os.readlink(folder / sockets.NAME)
        assert listening.getsockname() == aside and stat.S_IMODE(os.stat(aside).st_mode) == 0o600
    sockets.remove(str(folder))
    assert not os.path.exists(os.path.dirname(aside)) and not list(folder.iterdir())


def test_a_socket_of_another_user_is_left_at_once(folder, monkeypatch):
    with sockets.listen(folder):
        monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
        with pytest.raises(PermissionError, match="another user"):
            sockets.connect(folder)


def test_a_later_socket_of_the_same_name_is_another_one(folder):
    with sockets.listen(folder):
        first = sockets.identity(folder)
        assert first is not None and sockets.identity(folder) == first
    held = socket.socket(socket.AF_UNIX)  # so that the number of the file is not used again
    held.close()
    os.rename(os.path.join(folder, sockets.NAME), os.path.join(folder, "old"))
    with sockets.listen(folder):
        assert sockets.identity(folder) not in (None, first)

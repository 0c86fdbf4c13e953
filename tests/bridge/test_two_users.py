"""Two users of one machine, each with their own processes: neither user can access the other's
sessions.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shim.bridge import registry

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two other users")

ALICE, BOB = 61_001, 61_002  # users that no machine has, so their files belong to no real user
TIMEOUT_S = 60.0
PYTHONS = (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info))
PROJECT = Path(__file__).parents[2]

# Everything that Bob can try with each path on stdin. It prints only what succeeded.
TRIES = """
import os, socket, sys
for path in sys.stdin.read().splitlines():
    for name, act in (
        ("list", os.listdir), ("read", lambda path: open(path, "rb")), ("write", lambda path: open(path, "ab")),
        ("connect", lambda path: socket.socket(socket.AF_UNIX).connect(path)), ("remove", os.remove),
        ("make", lambda path: os.mkdir(path + "/x")),
    ):
        try:
            act(path)
        except OSError:
            continue
        print(name, path)
"""
HOLDS = "import fcntl, sys; held = open(sys.argv[1]); fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB); "
SLEEPS = "import sys; print(flush=True); sys.stdin.read()"

# Run each command on stdin in a fork, because Python and the commands take long to load. Print the
# exit status, stdout and stderr of each.
COMMANDS = """
import json, os, sys, tempfile
from shim.__main__ import main

commands = json.loads(sys.stdin.read())
if any(words[0] != "claude" for words in commands):
    import typer
    from shim.commands.cli import app

    made = typer.main.get_command(app)
    typer.main.get_command = lambda app: made

def run(words):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["shim", *words]
            status = 0
            try:
                main()
            except SystemExit as ended:
                status = ended.code
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status or 0)  # the interpreter would take a tenth of a second to clean up
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, *(os.pread(file.fileno(), 100_000, 0).decode() for file in (out, err))

print(json.dumps([run(words) for words in commands]))
"""


class User:
    """One user: a home that others may enter, and a program that runs there as that user."""

    def __init__(self, number: int, python: str, folder: Path) -> None:
        self.number, self.python, self.home = number, python, folder
        folder.mkdir(mode=0o755)
        os.chown(folder, number, number)
        self.state = folder / ".local" / "state" / "shim"

    def start(self, *argv: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a program as this user. Its files are as open as the program makes them."""
        environment = {
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "SHIM_VENDOR": "demo",
        }
        return subprocess.Popen(
            [self.python, *argv], cwd=self.home, env={**environment, **variables}, umask=0, text=True,
            user=self.number, group=self.number, extra_groups=[], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, *argv: str, stdin_text: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user to its end."""
        with self.start(*argv, **variables) as process:
            out, err = process.communicate(stdin_text, TIMEOUT_S)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def shim(
        self, *commands: Sequence[str], **variables: str
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run each of these `shim` commands to its end."""
        done = self.run("-I", "-c", COMMANDS, stdin_text=json.dumps(commands), **variables)
        assert done.returncode == 0, done
        ended = zip(commands, json.loads(done.stdout), strict=True)
        return [subprocess.CompletedProcess(argv, *fields) for argv, fields in ended]

    def load_metadata(self) -> dict[str, Any]:
        """Return the metadata of this user's session."""
        (file,) = self.state.rglob(registry.METADATA_FILE)
        return json.loads(file.read_text())


@pytest.fixture(scope="module")
def users():
    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        top.chmod(0o755)
        python = a_python(top)
        alice, bob = (User(number, python, top / f"user-{number}") for number in (ALICE, BOB))
        try:
            for user in (alice, bob):
                assert user.run("-I", "-m", "shim", "claude", "--bg", "hi").returncode == 0
            yield alice, bob
        finally:
            ended = [user.shim(("claude", "daemon", "stop", "--any")) for user in (alice, bob)]
        assert [process.returncode for (process,) in ended] == [0, 0]


def is_up(process):
    """Return whether the process reported its start in time."""
    return bool(select.select([process.stdout], [], [], TIMEOUT_S)[0] and process.stdout.readline())


def a_python(top):
    """Create a Python with the shim that every user can run."""
    paths = "\n".join((str(PROJECT), sysconfig.get_path("purelib")))
    for python in PYTHONS:
        folder = top / f"venv-{PYTHONS.index(python)}"
        try:
            subprocess.run(
                [python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "shim.pth").write_text(paths)
        made = str(folder / "bin" / "python")
        try:
            subprocess.run([made, "-I", "-c", "import shim.bridge.host, orjson, anyio"], user=BOB, group=BOB,
                           extra_groups=[], check=True, capture_output=True)  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return made
    pytest.skip("no Python here that other users can run")


def test_session_files_and_environment_are_inaccessible_to_other_users(users):
    alice, bob = users
    (token,) = alice.shim(("bridge", "token"))
    assert token.stdout.strip()
    paths = [str(path) for path in (alice.state, *alice.state.rglob("*"))]
    assert {os.path.basename(path) for path in paths} > {
        "socket",
        "host.json",
        "start.json",
        "log",
        "tokens.json",
    }
    assert bob.run("-c", TRIES, stdin_text="\n".join(paths)).stdout == ""
    metadata = alice.load_metadata()
    assert (
        alice.run(
            "-c", "import sys; open(sys.argv[1], 'rb')", f"/proc/{metadata['pid']}/environ"
        ).returncode
        == 0
    )
    assert (
        bob.run(
            "-c", "import sys; open(sys.argv[1], 'rb')", f"/proc/{metadata['pid']}/environ"
        ).returncode
        == 1
    )


def test_commands_neither_list_nor_stop_sessions_of_another_user(users):
    alice, bob = users
    metadata = alice.load_metadata()
    name = metadata["id"]
    refused = [
        ("claude", "attach", name), ("claude", "logs", name), ("claude", "stop", name),
        ("bridge", "answer", name, "allow"), ("bridge", "token"),
    ]  # fmt: skip
    lists = [("claude", "agents", "--json", "--all"), ("bridge", "list")]
    agents, listed, *others = bob.shim(*lists, *refused, SHIM_STATE=str(alice.state))
    assert json.loads(agents.stdout) == [] and "must be owned by you and private" in listed.stderr
    assert {other.args: other.returncode for other in others} == dict.fromkeys(refused, 1)
    (agents,) = alice.shim(lists[0])
    assert json.loads(agents.stdout)[0]["pid"] == metadata["pid"] == alice.load_metadata()["pid"]


def test_forged_metadata_in_a_foreign_state_folder_is_ignored(users):
    """Even `stop` ignores it; it would end the process that the metadata names."""
    alice, bob = users
    shared = bob.home / "shared"
    shutil.copytree(bob.state, shared, ignore=shutil.ignore_patterns("socket"))
    (metadata_file,) = shared.rglob(registry.METADATA_FILE)
    with alice.start("-c", SLEEPS) as hers:
        assert is_up(hers)
        forged = json.loads(metadata_file.read_text()) | {
            "pid": hers.pid,
            "state": "working",
            "status": "busy",
        }
        metadata_file.write_text(json.dumps(forged))
        subprocess.run(["chmod", "-R", "a+rwX", shared], check=True)
        subprocess.run(["chown", "-R", f"{BOB}:{BOB}", shared], check=True)
        with bob.start("-c", HOLDS + SLEEPS, str(metadata_file.with_name("lock"))) as holder:
            assert is_up(holder)
            environment = {"SHIM_STATE": str(shared)}
            commands = ("claude", "stop", forged["id"]), ("claude", "agents", "--json", "--all")
            stopped, agents = alice.shim(*commands, **environment)
            assert hers.poll() is None and stopped.returncode == 1, stopped
            assert (
                "must be owned by you and private" in stopped.stderr
                and json.loads(agents.stdout) == []
            )
            holder.communicate(timeout=TIMEOUT_S)
        hers.communicate(timeout=TIMEOUT_S)
        assert hers.returncode == 0

"""Commands on other machines. Small programs stand in for `shim fleet dial`."""

import pytest

from shim.bridge import relay_process, remote
from shim.bridge.relay_process import MachineUnavailableError
from shim.core.errors import FrontendError
from shim.state.machines import Machine

MACHINE = Machine("build")
ARGV = ("claude", "logs", "x")


@pytest.fixture
def run_program(monkeypatch, tmp_path):
    """Return a function that runs a shell script in place of a command on another machine."""

    def run_script(script, **options):
        monkeypatch.setattr(relay_process, "FLEET_DIAL_ARGV", ("sh", "-c", script))
        environment = {"PATH": "/bin:/usr/bin", "SHIM_STATE": str(tmp_path)}
        return remote.run_command_on_machine(MACHINE, ARGV, environment, **options)

    return run_script


def test_output_and_status_of_a_command_are_returned(run_program, capfd):
    output = run_program("read line; cat; echo problem >&2; exit 3", input_text="text")
    assert output == ("text", 3)
    assert capfd.readouterr().err == "problem\n"


def test_input_that_is_not_read_is_ignored(run_program):
    assert run_program("echo done", input_text="x" * 10**6) == ("done\n", 0)


def test_output_without_an_end_is_refused(run_program, monkeypatch):
    monkeypatch.setattr(remote, "MAX_OUTPUT_BYTES", 1024**2)
    with pytest.raises(FrontendError, match="larger than 1 MiB"):
        run_program("yes")


@pytest.mark.parametrize("script", ["exec sleep 60", "exec > /dev/null; exec sleep 60"])
def test_command_that_does_not_end_is_stopped(run_program, monkeypatch, script):
    monkeypatch.setattr(remote, "COMMAND_TIMEOUT_S", 0.1)
    with pytest.raises(MachineUnavailableError, match="did not end within"):
        run_program(script)

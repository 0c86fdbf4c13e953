"""The table `[machines]` of the settings file."""

import pytest

from shim.core.errors import FrontendError
from shim.state.machines import MAX_MACHINES, Machine, find_machine, load_machines, parse_machines


def test_machine_is_a_destination_of_ssh_and_the_path_of_the_shim():
    table = {"build": "ssh:build01", "lab": "ssh:me@lab.example ~/bin/shim --x"}
    assert parse_machines("config.toml", table) == {
        "build": Machine("build", "build01", "shim"),
        "lab": Machine("lab", "me@lab.example", "~/bin/shim --x"),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("build", "build01"),
        ("build", "ssh:"),
        ("build", "ssh:-oProxyCommand=touch"),
        ("build", "ssh:host\nother"),
        ("build", 1),
        ("a:b", "ssh:host"),
        ("-a", "ssh:host"),
        ("", "ssh:host"),
    ],
)
def test_invalid_machine_is_refused(name, value, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("")
    with pytest.raises(FrontendError, match="machines"):
        parse_machines(str(config), {name: value})


def test_too_many_machines_are_refused(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("")
    table = {f"m{number}": "ssh:host" for number in range(MAX_MACHINES + 1)}
    with pytest.raises(FrontendError, match="at most 64 machines"):
        parse_machines(str(config), table)


def test_machines_are_loaded_from_the_settings_file(tmp_path):
    config = tmp_path / "config.toml"
    environment = {"SHIM_CONFIG": str(config), "SHIM_STATE": str(tmp_path)}
    config.write_text('[machines]\nbuild = "ssh:build01"\n')
    machines = load_machines(environment)
    assert find_machine("build", environment) == machines["build"] == Machine("build", "build01")
    with pytest.raises(FrontendError) as refused:
        find_machine("biuld", environment)
    assert str(refused.value) == "there is no machine 'biuld', did you mean `build`?"


def test_no_settings_file_means_no_machines(tmp_path):
    assert load_machines({"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) == {}

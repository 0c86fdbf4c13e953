"""The session that an argument selects (B23, B24)."""

import os

import pytest

from shim.bridge import registry, remote
from shim.bridge.listings import MachineListing
from shim.bridge.registry import SessionRecord
from shim.bridge.session_lookup import (
    NO_MATCH_WITH_HINT,
    resolve_session_id,
    resolve_session_reference,
)
from shim.core.errors import FrontendError


def session(short, name=None):
    return SessionRecord(f"{short}-0000-4000-8000-000000000000", "/nowhere", True, {"name": name})


SESSIONS = [
    session("1052b9da", "my job"),
    session("1daa75d6", "My job again"),
    session("9c582708", "write it"),
    session("beef0000"),
]


@pytest.mark.parametrize("query", ["9", "9c58", "9c582708", "9c582708-0000-4000-8000-000000000000"])
def test_session_resolves_by_short_id_prefix_or_uuid(query):
    assert (
        resolve_session_reference(query, sessions=SESSIONS)
        == resolve_session_id(query, sessions=SESSIONS)
        == SESSIONS[2]
    )


@pytest.mark.parametrize("query", ["write it", "WRITE", "again"])
def test_session_resolves_by_name_only_if_names_are_accepted(query):
    assert resolve_session_reference(query, sessions=SESSIONS).short_id == (
        "1daa75d6" if query == "again" else "9c582708"
    )
    with pytest.raises(FrontendError, match=rf"^No session matching '{query}'$"):
        resolve_session_id(query, sessions=SESSIONS)


def test_complete_uuid_resolves_to_an_unlisted_session(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIM_STATE", str(tmp_path))
    tmp_path.chmod(0o700)
    session = "0123abcd-0000-4000-8000-000000000001"
    registry.write_metadata(
        registry.create_session_folder(session, os.environ), {"session": session, "state": "done"}
    )
    assert (
        resolve_session_reference(session, sessions=SESSIONS).session_id
        == resolve_session_id(session, sessions=[]).session_id
        == session
    )


def test_ambiguous_id_prefix_is_rejected_with_the_matching_ids():
    for resolve in (resolve_session_reference, resolve_session_id):
        with pytest.raises(FrontendError) as refused:
            resolve("1", sessions=SESSIONS)
        assert str(refused.value) == "'1' matches more than one session: 1052b9da, 1daa75d6"


def test_exact_name_takes_precedence_over_partial_matches():
    assert resolve_session_reference("My Job", sessions=SESSIONS) == SESSIONS[0]
    twice = [*SESSIONS, session("7d000000", "MY JOB")]
    with pytest.raises(FrontendError, match=r"^2 sessions match 'my job':"):
        resolve_session_reference("my job", sessions=twice)


def test_ambiguous_name_is_rejected_with_a_list_of_matches():
    with pytest.raises(FrontendError) as refused:
        resolve_session_reference("My j", sessions=SESSIONS)
    assert str(refused.value).splitlines() == [
        "2 sessions match 'My j':",
        "  1052b9da  my job",
        "  1daa75d6  My job again",
        "Type more of the name, or the id.",
    ]


@pytest.mark.parametrize(
    ("query", "alone", "more"),
    [
        ("zz", True, []),
        ("12345678", True, []),
        ("9c582708-0000-4000-8000-00000000000f", True, []),
        (
            "77",
            True,
            [
                "Text that could be the start of an id is never used as a name. Type more of the name."
            ],
        ),
        (
            "write it",
            False,
            ["A name must be the only argument. Put a name with spaces in quotes."],
        ),
        (" ", True, []),
    ],
)
def test_unmatched_reference_is_rejected_with_the_reason(query, alone, more):
    with pytest.raises(FrontendError) as refused:
        resolve_session_reference(query, sessions=SESSIONS, is_only_arg=alone)
    assert str(refused.value).splitlines() == [NO_MATCH_WITH_HINT.format(word=query), *more]


def test_long_reference_is_truncated_in_the_error():
    with pytest.raises(FrontendError) as refused:
        resolve_session_reference("x" * 10**6, sessions=SESSIONS)
    assert len(str(refused.value)) < 400


# -- sessions of other machines --------------------------------------------------------------------

REMOTE = [
    session("1052b9da", "my job")._replace(
        session_id="build:77777777-0000-4000-8000-000000000000", folder=""
    ),
    session("x", "far away")._replace(
        session_id="build:88888888-0000-4000-8000-000000000000", folder=""
    ),
]


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Configure the machine `build`, which has the sessions REMOTE."""
    config = tmp_path / "config.toml"
    config.write_text('[machines]\nbuild = "ssh:build01"\n')
    monkeypatch.setenv("SHIM_CONFIG", str(config))
    monkeypatch.setenv("SHIM_STATE", str(tmp_path))
    requests = []

    def list_sessions(machine, environment, *, includes_ended):
        requests.append(machine.name)
        return MachineListing(machine, REMOTE)

    monkeypatch.setattr(remote, "list_machine_sessions", list_sessions)
    return requests


@pytest.mark.parametrize(
    ("query", "machine"),
    [
        ("build:7", "build"),
        ("build:77777777-0000-4000-8000-000000000000", "build"),
        ("build:my job", "build"),
        ("88888888", "build"),
        ("far", "build"),
        ("my job", ""),
        ("1052", ""),
    ],
)
def test_session_resolves_on_the_named_machine_or_on_any_machine(query, machine, machines):
    session_record = resolve_session_reference(query, sessions=SESSIONS)
    assert session_record.machine == machine
    assert machines == [machine] * bool(machine)


def test_session_of_this_machine_does_not_resolve_on_a_named_machine(machines):
    with pytest.raises(FrontendError, match=r"^No session matching 'build:9c582708'"):
        resolve_session_id("build:9c582708", sessions=SESSIONS)


def test_name_with_a_colon_needs_no_machine(machines):
    named = session("abcdef00", "fix: the tests")
    assert resolve_session_reference("fix: the", sessions=[named]) == named


def test_short_id_of_another_machine_starts_with_its_name():
    assert (REMOTE[0].short_id, REMOTE[0].machine) == ("build:77777777", "build")

"""The entries of the registry: machines, leases and sessions, sealed and signed by their machine."""

import json

import pytest

from shim.core.fleet.jwt import MemberClaims, build_member_jwt
from shim.core.fleet.keys import KeyKind, KeyPair
from shim.core.fleet.registry import (
    Lease,
    MachineEntry,
    open_lease,
    open_machine_entry,
)
from shim.core.fleet.roles import DRIVE, MACHINE
from shim.core.fleet.sealing import SealError, open_fields, seal, seal_fields
from shim.core.fleet.subjects import (
    MACHINE_ENTRY,
    MACHINES_BUCKET,
    SESSIONS_BUCKET,
    build_lease_subject,
    build_session_subject,
    parse_entry_subject,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
NONCE = bytes(24)
BUILD, MALLORY = (KeyPair(KeyKind.USER, bytes([number]) * 32) for number in (1, 2))
ISSUER, OTHER_ISSUER = (KeyPair(KeyKind.ISSUER, bytes([number]) * 32) for number in (3, 4))
SESSION = "0123abcd-0000-4000-8000-000000000001"
SUBJECT = build_session_subject("build", SESSION)
MACHINE_SUBJECT = build_session_subject("build", MACHINE_ENTRY)
LEASE_SUBJECT = build_lease_subject("build")
FIELDS = {"session": SESSION, "name": "ünïcödé", "questions": [{"id": "q1"}]}
# Contents that a machine has sealed and signed, but that are not the fields of an entry.
DAMAGED = (b"", b"{", b"\xff", b'{"session": NaN}')
NOT_AN_OBJECT = (b"null", b"[]", b'"text"', b"5")


def build_jwt(name="build", key_pair=BUILD, issuer=ISSUER, role=MACHINE):
    claims = MemberClaims("home", name, role, "", key_pair.public_key)
    return build_member_jwt(issuer, claims, 1_800_000_000)


def build_entry(**changes):
    entry = MachineEntry("build", build_jwt(), "0.1.0", 1_800_000_000_000)
    return entry._replace(**changes)


def seal_machine_entry(key, entry, sender):
    subject = build_session_subject(entry.name, MACHINE_ENTRY)
    return seal_fields(key, NONCE, entry._asdict(), subject, sender)


def seal_machine_fields(content, sender=BUILD, key=KEY):
    """Seal the content of a machine's entry, which may be damaged."""
    if isinstance(content, dict):
        content = json.dumps(content).encode()
    return seal(key, NONCE, content, MACHINE_SUBJECT, sender)


def test_machine_entry_is_unchanged():
    sealed = seal_machine_entry(KEY, build_entry(), BUILD)
    assert build_jwt().encode() not in sealed
    parsed = open_machine_entry(KEY, sealed, "build", ISSUER.public_key)
    assert parsed == (build_entry(), BUILD.public_key)


@pytest.mark.parametrize(
    ("sealed", "reason"),
    [
        # The JWT of the machine, without its private key.
        (seal_machine_entry(KEY, build_entry(), MALLORY), "not signed by its sender"),
        (seal_machine_entry(OTHER_KEY, build_entry(), BUILD), "the key of this fleet"),
        (seal_machine_entry(KEY, build_entry(name="lab"), BUILD), "the key of this fleet"),
        (
            seal_machine_entry(KEY, build_entry(jwt=build_jwt("lab", MALLORY)), MALLORY),
            "lab has written the entry of build",
        ),
        (
            seal_machine_entry(
                KEY, build_entry(jwt=build_jwt("build", MALLORY, OTHER_ISSUER)), MALLORY
            ),
            "not in this fleet",
        ),
        (
            seal_machine_entry(KEY, build_entry(jwt=build_jwt(role=DRIVE)), BUILD),
            "build is not a machine",
        ),
        (seal_machine_entry(KEY, build_entry(jwt=""), BUILD), "three parts"),
        (b"", "the key of this fleet"),
        (bytes(200), "the key of this fleet"),
    ],
    ids=[
        "wrong signer",
        "wrong key",
        "wrong subject",
        "JWT of another machine",
        "JWT of another fleet",
        "JWT of a guest",
        "no JWT",
        "empty",
        "zeros",
    ],
)
def test_entry_that_the_machine_has_not_written_is_refused(sealed, reason):
    with pytest.raises(SealError, match=reason):
        open_machine_entry(KEY, sealed, "build", ISSUER.public_key)


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_entry_is_refused(content):
    with pytest.raises(SealError, match="not JSON"):
        open_machine_entry(KEY, seal_machine_fields(content), "build", ISSUER.public_key)
    sealed = seal(KEY, NONCE, content, SUBJECT, BUILD)
    with pytest.raises(SealError, match="not JSON"):
        open_fields(KEY, sealed, SUBJECT, BUILD.public_key)


@pytest.mark.parametrize("content", NOT_AN_OBJECT)
def test_entry_that_is_not_an_object_has_no_fields(content):
    with pytest.raises(SealError, match="three parts"):
        open_machine_entry(KEY, seal_machine_fields(content), "build", ISSUER.public_key)
    sealed = seal(KEY, NONCE, content, SUBJECT, BUILD)
    assert open_fields(KEY, sealed, SUBJECT, BUILD.public_key) == {}
    sealed = seal(KEY, NONCE, content, LEASE_SUBJECT, BUILD)
    assert open_lease(KEY, sealed, LEASE_SUBJECT, BUILD.public_key) == Lease("", "")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # An older or a newer version of the shim.
        ({}, ("", 0)),
        ({"version": "9", "changed_ms": 5, "new": {"a": 1}, "vendors": ["demo"]}, ("9", 5)),
        ({"version": 9, "changed_ms": "soon"}, ("", 0)),
        ({"version": None, "changed_ms": 1.5}, ("", 0)),
    ],
    ids=["missing fields", "unknown fields", "other types", "other numbers"],
)
def test_machine_entry_of_another_version_is_read(fields, expected):
    sealed = seal_machine_fields({"jwt": build_jwt(), **fields})
    entry, public_key = open_machine_entry(KEY, sealed, "build", ISSUER.public_key)
    assert (entry.version, entry.changed_ms) == expected
    assert (entry.name, public_key) == ("build", BUILD.public_key)


def test_entry_does_not_choose_its_name():
    """The name of a machine is that of its subject and its JWT."""
    sealed = seal_machine_fields({"jwt": build_jwt(), "name": "lab"})
    assert open_machine_entry(KEY, sealed, "build", ISSUER.public_key)[0].name == "build"


def test_session_entry_belongs_to_its_subject_key_and_signer():
    sealed = seal_fields(KEY, NONCE, FIELDS, SUBJECT, BUILD)
    assert SESSION.encode() not in sealed
    assert open_fields(KEY, sealed, SUBJECT, BUILD.public_key) == FIELDS
    for key, data, subject, signer in (
        (OTHER_KEY, sealed, SUBJECT, BUILD),
        (KEY, sealed[:-1], SUBJECT, BUILD),
        (KEY, sealed, build_session_subject("lab", SESSION), BUILD),
        (KEY, sealed, build_session_subject("build", SESSION.replace("1", "2")), BUILD),
        (KEY, sealed, SUBJECT, MALLORY),
        (KEY, seal_fields(KEY, NONCE, FIELDS, SUBJECT, MALLORY), SUBJECT, BUILD),
    ):
        with pytest.raises(SealError):
            open_fields(key, data, subject, signer.public_key)


def test_lease_is_unchanged_and_is_not_the_entry_of_a_session():
    lease = Lease("0123", "build01")
    sealed = seal_fields(KEY, NONCE, lease._asdict(), LEASE_SUBJECT, BUILD)
    assert open_lease(KEY, sealed, LEASE_SUBJECT, BUILD.public_key) == lease
    with pytest.raises(SealError):
        open_lease(KEY, sealed, build_lease_subject("lab"), BUILD.public_key)
    with pytest.raises(SealError):
        open_lease(KEY, sealed, LEASE_SUBJECT, MALLORY.public_key)
    with pytest.raises(SealError):
        open_fields(KEY, sealed, SUBJECT, BUILD.public_key)


def test_lease_of_another_version_is_read():
    sealed = seal_fields(KEY, NONCE, {"generation": 5, "new": True}, LEASE_SUBJECT, BUILD)
    assert open_lease(KEY, sealed, LEASE_SUBJECT, BUILD.public_key) == Lease("", "")


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (SUBJECT, (SESSIONS_BUCKET, "build", SESSION)),
        (MACHINE_SUBJECT, (SESSIONS_BUCKET, "build", MACHINE_ENTRY)),
        (LEASE_SUBJECT, (MACHINES_BUCKET, "build", "")),
        ("$KV.shim_sessions.build.a.b", (SESSIONS_BUCKET, "build", "a.b")),
        ("$KV", ("", "", "")),
        ("", ("", "", "")),
    ],
)
def test_subject_of_an_entry_is_parsed(subject, expected):
    assert parse_entry_subject(subject) == expected

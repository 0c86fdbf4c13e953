"""The keys, JWTs, seals and join files of a fleet's members."""

import base64
import json

import pytest

from shim.core.errors import FrontendError
from shim.core.fleet import sealing, subjects
from shim.core.fleet.join_file import (
    JoinFile,
    encode_join_file,
    get_command_key,
    get_read_key,
    parse_join_file,
)
from shim.core.fleet.jwt import (
    MemberClaims,
    build_issuer_jwt,
    build_member_jwt,
    get_issuer,
    open_introduction,
    verify_member_jwt,
)
from shim.core.fleet.keys import KeyKind, KeyPair, is_signature_valid, parse_key_pair
from shim.core.fleet.roles import DRIVE, MACHINE, WATCH, build_permissions
from shim.core.fleet.sealing import SealError, derive_key, open_sealed, seal, seal_fields
from shim.core.fleet.server_config import ServerSettings, format_server_config

SESSION = "0123abcd-0000-4000-8000-000000000001"
KEY = bytes(range(32))
NONCE = bytes(24)
ALICE, MALLORY = (KeyPair(KeyKind.USER, bytes([number]) * 32) for number in (1, 2))
ISSUER = KeyPair(KeyKind.ISSUER, bytes([3]) * 32)
MEMBER = MemberClaims("home", "alice", DRIVE, SESSION, ALICE.public_key, 1_900_000_000)


@pytest.mark.parametrize("kind", KeyKind)
def test_parsed_key_pair_is_unchanged(kind):
    pair = KeyPair(kind, KEY)
    assert parse_key_pair(pair.seed).public_key == pair.public_key
    assert (
        pair.public_key[0] == {KeyKind.OPERATOR: "O", KeyKind.ISSUER: "A", KeyKind.USER: "U"}[kind]
    )
    assert pair.seed[:2] == f"S{pair.public_key[0]}"


@pytest.mark.parametrize("seed", ["", "SU", ALICE.public_key, ALICE.seed[:-1] + "A", "ä" * 58])
def test_damaged_private_key_is_refused(seed):
    with pytest.raises(FrontendError):
        parse_key_pair(seed)


def test_signature_belongs_to_its_data_and_its_signer():
    signature = ALICE.sign(b"data")
    assert is_signature_valid(ALICE.public_key, b"data", signature)
    assert not is_signature_valid(ALICE.public_key, b"date", signature)
    assert not is_signature_valid(MALLORY.public_key, b"data", signature)
    assert not is_signature_valid("U", b"data", signature)
    assert not is_signature_valid(ALICE.public_key, b"data", signature[:-1])


def test_member_jwt_states_the_member():
    jwt = build_member_jwt(ISSUER, MEMBER, 1_800_000_000)
    assert get_issuer(jwt) == ISSUER.public_key
    assert verify_member_jwt(jwt, ISSUER.public_key) == MEMBER


def test_forged_member_jwt_is_refused():
    jwt = build_member_jwt(ISSUER, MEMBER, 1_800_000_000)
    stranger = KeyPair(KeyKind.ISSUER, bytes([4]) * 32)
    header, _, signature = jwt.split(".")
    other_claims = build_member_jwt(stranger, MEMBER, 1_800_000_000).split(".")[1]
    for forged in (
        build_member_jwt(stranger, MEMBER, 1_800_000_000),
        f"{header}.{other_claims}.{signature}",
        jwt[:-2],
        "a.b",
        "a.b.c",
        "",
    ):
        with pytest.raises(SealError):
            verify_member_jwt(forged, ISSUER.public_key)


def test_sealed_message_opens_only_with_its_key_context_and_sender():
    message = seal(KEY, NONCE, b"payload", "place 1", ALICE)
    assert b"payload" not in message
    assert open_sealed(KEY, message, "place 1", ALICE.public_key) == b"payload"
    damaged = message[:-1] + bytes([message[-1] ^ 1])
    for key, data, context, sender in (
        (derive_key(KEY, "read"), message, "place 1", ALICE),
        (KEY, message, "place 2", ALICE),
        (KEY, message, "place 1", MALLORY),
        (KEY, damaged, "place 1", ALICE),
        (KEY, message[:20], "place 1", ALICE),
        (KEY, b"", "place 1", ALICE),
    ):
        with pytest.raises(SealError):
            open_sealed(key, data, context, sender.public_key)


def test_introduction_belongs_to_its_key_context_and_sender():
    """The first message of a sender contains the sender's JWT."""
    jwt = build_member_jwt(ISSUER, MEMBER, 1_800_000_000)
    fields = {"jwt": jwt, "challenge": "00ff"}
    message = seal_fields(KEY, NONCE, fields, "subject", ALICE)
    assert open_introduction(KEY, message, "subject", ISSUER.public_key) == (fields, MEMBER)
    for key, data, context, issuer in (
        (derive_key(KEY, "read"), message, "subject", ISSUER),
        (KEY, message, "other subject", ISSUER),
        (KEY, message, "subject", KeyPair(KeyKind.ISSUER, bytes([4]) * 32)),
        # The JWT of another member, without its private key.
        (KEY, seal_fields(KEY, NONCE, fields, "subject", MALLORY), "subject", ISSUER),
        (KEY, seal_fields(KEY, NONCE, {}, "subject", ALICE), "subject", ISSUER),
        (KEY, seal(KEY, NONCE, b"{", "subject", ALICE), "subject", ISSUER),
    ):
        with pytest.raises(SealError):
            open_introduction(key, data, context, issuer.public_key)


def test_member_that_watches_has_no_key_for_commands():
    driver = JoinFile("home", "tls://x", "", "alice", DRIVE, "", 0, "", ALICE.seed, KEY)
    watcher = driver._replace(role=WATCH, key=derive_key(KEY, sealing.READ_PURPOSE))
    assert get_read_key(driver) == get_read_key(watcher)
    assert get_command_key(driver) not in (KEY, get_read_key(driver))
    with pytest.raises(FrontendError, match="may only watch"):
        get_command_key(watcher)


def test_parsed_join_file_is_unchanged():
    join = JoinFile(
        "home", "tls://x:1", "PEM", "alice", DRIVE, SESSION, 5, "j.w.t", ALICE.seed, KEY
    )
    assert parse_join_file(encode_join_file(join), "x") == join


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fleet": "a.b"}, "letters"),
        ({"machine": "../x"}, "letters"),
        ({"role": "king"}, "unknown"),
        ({"expires": "soon"}, "number"),
        ({"key": "AAAA"}, "32 bytes"),
        ({"key": "?"}, "32 bytes"),
        ({"jwt": 5}, "string"),
    ],
)
def test_invalid_join_file_is_refused_with_the_reason(change, reason):
    join = JoinFile("home", "tls://x:1", "", "alice", DRIVE, "", 5, "j.w.t", ALICE.seed, KEY)
    fields = json.loads(encode_join_file(join)) | change
    with pytest.raises(FrontendError, match=reason):
        parse_join_file(json.dumps(fields).encode(), "file.join")
    with pytest.raises(FrontendError, match="JSON object"):
        parse_join_file(b"[]", "file.join")


def test_only_machines_may_write_entries_and_lines():
    machine = build_permissions("home", "build", MACHINE, "")
    assert "shim.home.build.log.>" in machine.publish
    assert "$KV.shim_sessions.build.*" in machine.publish
    for role in (DRIVE, WATCH):
        permissions = build_permissions("home", "alice", role, "")
        assert not [
            each
            for each in permissions.publish
            if each.startswith("$KV") or each.startswith("shim.home.alice.log")
        ]
    assert not [each for each in machine.publish if each in ("$JS.API.>", ">")]


def test_member_that_watches_may_not_open_tunnels_for_commands():
    assert not [
        each for each in build_permissions("home", "a", WATCH, "").publish if "drive" in each
    ]
    assert [each for each in build_permissions("home", "a", DRIVE, "").publish if "drive" in each]


def test_member_for_a_session_may_not_read_further_sessions():
    permissions = build_permissions("home", "a", DRIVE, SESSION)
    assert permissions.subscribe == ("_INBOX.a.>", "shim.home.*.down.a.>")
    for subject in permissions.publish:
        assert (
            SESSION in subject
            or ".up." in subject
            or "shim_log.*" in subject
            or (subject.endswith((".shim_machines.*", ".*.machine")))
        ), subject


def test_subject_of_an_open_request_is_parsed_for_any_names():
    request = subjects.OpenSubject(DRIVE, SESSION, "open", "00ff")
    subject = subjects.build_open_subject("open", "open", request)
    assert subjects.parse_open_subject(subject) == request
    for damaged in ("shim.home.build.open", "shim.home.build.open.drive.all", f"{subject}.x"):
        with pytest.raises(ValueError, match="does not open a tunnel"):
            subjects.parse_open_subject(damaged)


def test_members_have_no_streams_and_import_no_literal_subject():
    """A literal subject would receive the answers that the server sends there for another request."""
    text = build_issuer_jwt(ISSUER, ISSUER.public_key, "ASTORAGE", "home", 1_800_000_000, {})
    body = text.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["nats"]
    assert claims["limits"].get("disk_storage", 0) == claims["limits"].get("streams", 0) == 0
    imported = [each["subject"] for each in claims["imports"]]
    assert imported == subjects.list_stream_subjects("home")
    assert not [each for each in imported if "*" not in each and ">" not in each]
    assert not [each for each in imported if "DELETE" in each and "CONSUMER" not in each]


def test_folder_of_the_server_is_quoted():
    settings = ServerSettings("home", "127.0.0.1:1", 'a "b" \\c', "o", "s", "j", "i", "k", "t", "l")
    assert 'store_dir: "a \\"b\\" \\\\c/jetstream"' in format_server_config(settings)

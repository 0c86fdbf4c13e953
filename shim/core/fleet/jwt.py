"""The JWTs of a NATS server: who operates it, the accounts of the fleet, and its members.

The members are in one account, and the streams are in another. The server does not check the subject
to which it sends an answer, so an answer must never arrive where a stream listens.

A member's JWT is signed with the key of the members' account. Its tags name the role and the session of the
member, so that machines can check them without the server.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.fleet.keys import KeyPair, is_signature_valid
from shim.core.fleet.roles import ROLES, build_permissions
from shim.core.fleet.sealing import SealError, open_sealed, parse_fields, unseal_unsigned
from shim.core.fleet.subjects import list_stream_subjects
from shim.core.reading.values import as_dict, as_list, get_text

HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
CLAIMS_VERSION = 2  # of the claims in `nats`
UNLIMITED = -1
# The storage of the server that a fleet may use. The log stream has a smaller limit of its own.
MAX_STORAGE_BYTES = 4 * 1024**3
MAX_STREAMS = 3  # two buckets and the log
UNLIMITED_FIELDS = {
    **dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "consumer"), UNLIMITED
    ),
    "wildcards": True,
}


class MemberClaims(NamedTuple):
    """What a member's JWT states. `session` is "" for all sessions, and `expires_s` is 0 for a
    member without an end.
    """

    fleet: str
    name: str
    role: str
    session: str
    public_key: str
    expires_s: int = 0


def build_operator_jwt(operator: KeyPair, name: str, issued_s: int) -> str:
    """Return the JWT of the server's operator, which it signs itself."""
    return _sign(operator, operator.public_key, name, issued_s, {"type": "operator"})


def build_issuer_jwt(
    operator: KeyPair,
    issuer: str,
    storage_key: str,
    fleet: str,
    issued_s: int,
    revocations: Mapping[str, int],
) -> str:
    """Return the JWT of the members' account. It imports the subjects of the streams from the account
    `storage_key`. `revocations` maps the public key of a removed member to the time in seconds up to
    which its JWTs are not valid.
    """
    imports = [
        {"name": subject, "subject": subject, "account": storage_key, "type": "service"}
        for subject in list_stream_subjects(fleet)
    ]
    body = {
        "type": "account",
        "limits": UNLIMITED_FIELDS,
        "imports": imports,
        "revocations": dict(revocations),
    }
    return _sign(operator, issuer, fleet, issued_s, body)


def build_storage_jwt(operator: KeyPair, storage_key: str, fleet: str, issued_s: int) -> str:
    """Return the JWT of the account with the streams. Nobody connects to it."""
    # One request may have many answers: a read of several entries, or the lines of a log.
    exports = [
        {"name": subject, "subject": subject, "type": "service", "response_type": "Stream"}
        for subject in list_stream_subjects(fleet)
    ]
    limits = {
        **UNLIMITED_FIELDS,
        "mem_storage": 0,
        "disk_storage": MAX_STORAGE_BYTES,
        "streams": MAX_STREAMS,
    }
    body = {"type": "account", "limits": limits, "exports": exports}
    return _sign(operator, storage_key, f"{fleet}-storage", issued_s, body)


def build_system_jwt(operator: KeyPair, issuer: str, issued_s: int) -> str:
    """Return the JWT of the system account. A server needs one, and nobody uses it."""
    body = {"type": "account", "limits": {"conn": UNLIMITED, "subs": UNLIMITED}}
    return _sign(operator, issuer, "SYS", issued_s, body)


def build_member_jwt(issuer: KeyPair, member: MemberClaims, issued_s: int) -> str:
    """Return the JWT of a member, with the permissions of its role."""
    permissions = build_permissions(member.fleet, member.name, member.role, member.session)
    tags = [f"fleet:{member.fleet}", f"role:{member.role}"]
    if member.session:
        tags.append(f"session:{member.session}")
    body = {
        "type": "user",
        "pub": {"allow": permissions.publish},
        "sub": {"allow": permissions.subscribe},
        "subs": UNLIMITED,
        "data": UNLIMITED,
        "payload": UNLIMITED,
        "tags": tags,
    }
    return _sign(issuer, member.public_key, member.name, issued_s, body, member.expires_s)


def verify_member_jwt(jwt: str, issuer: str) -> MemberClaims:
    """Return what a member's JWT states. The caller checks its end, because only the caller has a
    clock. Raise SealError if the issuer did not sign it.
    """
    claims = _parse(jwt)
    signed, _, signature = jwt.rpartition(".")
    if claims.get("iss") != issuer or not is_signature_valid(
        issuer, signed.encode(), _decode(signature)
    ):
        raise SealError("a member is not in this fleet")
    tags = _parse_tags(as_dict(claims.get("nats")).get("tags"))
    role = tags.get("role", "")
    if role not in ROLES:
        raise SealError(f"a member has the unknown role {role[:20]!r}")
    expires_s = claims.get("exp")
    if not isinstance(expires_s, int):
        expires_s = 0
    return MemberClaims(
        tags.get("fleet", ""),
        get_text(claims, "name"),
        role,
        tags.get("session", ""),
        get_text(claims, "sub"),
        expires_s,
    )


def open_introduction(
    key: bytes, message: bytes, context: str, issuer: str
) -> tuple[dict[str, Any], MemberClaims]:
    """Return the fields of a message that contains the JWT of its sender, and what the JWT states.
    Raise SealError if the issuer did not sign the JWT, or if the sender has not sealed and signed the
    message.
    """
    fields = parse_fields(unseal_unsigned(key, message, context))
    claims = verify_member_jwt(get_text(fields, "jwt"), issuer)
    open_sealed(key, message, context, claims.public_key)
    return fields, claims


def get_issuer(jwt: str) -> str:
    """Return the public key that a JWT names as its signer. Raise SealError if it is not a JWT."""
    return get_text(_parse(jwt), "iss")


def _sign(
    signer: KeyPair,
    subject: str,
    name: str,
    issued_s: int,
    body: Mapping[str, Any],
    expires_s: int = 0,
) -> str:
    claims: dict[str, Any] = {
        "iat": issued_s,
        "iss": signer.public_key,
        "name": name,
        "sub": subject,
        "nats": {**body, "version": CLAIMS_VERSION},
    }
    if expires_s:
        claims["exp"] = expires_s
    claims["jti"] = hashlib.sha256(orjson.dumps(claims)).hexdigest()
    signed = f"{_encode(orjson.dumps(HEADER))}.{_encode(orjson.dumps(claims))}"
    return f"{signed}.{_encode(signer.sign(signed.encode()))}"


def _parse_tags(tags: object) -> dict[str, str]:
    """Parse tags such as "role:watch"."""
    parsed_tags = {}
    for tag in as_list(tags):
        name, _, value = str(tag).partition(":")
        parsed_tags[name] = value
    return parsed_tags


def _parse(jwt: str) -> Mapping[str, Any]:
    parts = jwt.split(".")
    if len(parts) != 3:
        raise SealError(f"a JWT must have three parts, not {len(parts)}")
    try:
        return as_dict(orjson.loads(_decode(parts[1])))
    except orjson.JSONDecodeError:
        raise SealError("a JWT does not contain JSON") from None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return b""

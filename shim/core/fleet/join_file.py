"""A join file: one JSON object that makes a machine or a person a member of a fleet.

The file contains a private key and the key of the fleet, so only its owner may read it.
"""

import base64
import binascii
from typing import Any, NamedTuple

import orjson

from shim.core.errors import FrontendError
from shim.core.fleet.keys import KEY_BYTES, KeyPair, parse_key_pair
from shim.core.fleet.roles import ROLES, WATCH
from shim.core.fleet.sealing import COMMAND_PURPOSE, READ_PURPOSE, derive_key
from shim.core.fleet.subjects import NAME_FORMAT, NAME_PATTERN
from shim.core.reading.json_text import dump_json

MAX_JOIN_FILE_BYTES = 64 * 1024
NEW_FILE_HINT = "create a new one with `shim fleet invite` on the machine that created the fleet"


class JoinFile(NamedTuple):
    """The content of a join file.

    fleet    the name of the fleet
    url      the URL of the server, such as "tls://build01:4222"
    ca       the certificate that signed the server's, as PEM; "" for the certificates of the system
    name     the name of the member, a machine or a person; `machine` in the file
    role     "machine", "drive" or "watch"
    session  the UUID of the only session that the member may use, or ""
    expires  the end of the membership in seconds since 1970, or 0
    jwt      the JWT of the member
    seed     the private key of the member
    key      the key of the fleet; a member with the role "watch" has only the key for reading
    """

    fleet: str
    url: str
    ca: str
    name: str
    role: str
    session: str
    expires: int
    jwt: str
    seed: str
    key: bytes


def encode_join_file(join: JoinFile) -> bytes:
    """Encode a join file as JSON."""
    fields = join._asdict()
    fields["machine"] = fields.pop("name")
    fields["key"] = base64.b64encode(join.key).decode()
    return dump_json(fields) + b"\n"


def parse_join_file(data: bytes, path: str) -> JoinFile:
    """Parse the join file that was read from `path`. Raise FrontendError if it is not valid."""
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _create_error(path, "it is not a JSON object")
    join = JoinFile(
        fleet=_get_text(fields, "fleet", path),
        url=_get_text(fields, "url", path),
        ca=_get_text(fields, "ca", path),
        name=_get_text(fields, "machine", path),
        role=_get_text(fields, "role", path),
        session=_get_text(fields, "session", path),
        expires=_get_expiry(fields, path),
        jwt=_get_text(fields, "jwt", path),
        seed=_get_text(fields, "seed", path),
        key=_decode_key(_get_text(fields, "key", path)),
    )
    _check_join_file(join, path)
    return join


def _get_text(fields: dict[str, Any], name: str, path: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _create_error(path, f"`{name}` must be a string")
    return value


def _get_expiry(fields: dict[str, Any], path: str) -> int:
    expires = fields.get("expires")
    if not isinstance(expires, int):
        raise _create_error(path, "`expires` must be a number")
    return expires


def _decode_key(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _check_join_file(join: JoinFile, path: str) -> None:
    for name in (join.fleet, join.name):
        if not NAME_PATTERN.match(name):
            raise _create_error(path, f"a name must have {NAME_FORMAT}, not {name[:80]!r}")
    if join.role not in ROLES:
        raise _create_error(path, f"the role {join.role[:20]!r} is unknown")
    if len(join.key) != KEY_BYTES:
        raise _create_error(path, f"`key` must be {KEY_BYTES} bytes in base64")


def _create_error(path: str, reason: str) -> FrontendError:
    return FrontendError(f"{path} is not a join file: {reason}", hint=NEW_FILE_HINT)


def get_read_key(join: JoinFile) -> bytes:
    """Return the key that seals everything a member with the role "watch" may read."""
    if join.role == WATCH:
        return join.key
    return derive_key(join.key, READ_PURPOSE)


def get_command_key(join: JoinFile) -> bytes:
    """Return the key that seals commands. Raise FrontendError if the member may only read."""
    if join.role == WATCH:
        raise FrontendError(
            f"{join.name} may only watch sessions",
            hint="ask for a join file that was created with `shim fleet invite --drive`",
        )
    return derive_key(join.key, COMMAND_PURPOSE)


def get_member_key_pair(join: JoinFile) -> KeyPair:
    """Return the key pair of the member. Raise FrontendError if the join file is not valid."""
    return parse_key_pair(join.seed)

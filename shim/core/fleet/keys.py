"""Ed25519 keys in the text form of NATS (nkeys): base32 of a prefix, the key, and a checksum."""

import base64
import binascii
from enum import IntEnum

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from shim.core.errors import FrontendError

SEED_PREFIX = 18 << 3  # the letter S
KEY_BYTES = 32
CHECKSUM_BYTES = 2
SIGNATURE_BYTES = 64


class KeyKind(IntEnum):
    """The prefix of a public key. It decides the first letter of its text: O, A or U."""

    OPERATOR = 14 << 3
    ISSUER = 0  # an account of NATS, whose key signs the JWTs of its members
    USER = 20 << 3


class KeyPair:
    """A key pair.

    seed        the text of the private key; it starts with S
    public_key  the text of the public key
    """

    def __init__(self, kind: KeyKind, seed_bytes: bytes) -> None:
        """Create the key pair of 32 random bytes."""
        self._signing_key = SigningKey(seed_bytes)
        # The kind has 5 significant bits. The first byte holds the two upper ones.
        prefix = bytes((SEED_PREFIX | (kind >> 5), (kind & 31) << 3))
        self.seed = _encode(prefix + seed_bytes)
        self.public_key = _encode(bytes((kind,)) + bytes(self._signing_key.verify_key))

    def sign(self, data: bytes) -> bytes:
        """Return the signature of the data, SIGNATURE_BYTES long."""
        return self._signing_key.sign(data).signature


def parse_key_pair(seed: str) -> KeyPair:
    """Parse the text of a private key. Raise FrontendError if it is not valid."""
    data = _decode(seed)
    if len(data) != 2 + KEY_BYTES or data[0] & 0xF8 != SEED_PREFIX:
        raise FrontendError(
            "a private key of the fleet is not valid", hint="ask for a new join file"
        )
    kind = ((data[0] & 7) << 5) | (data[1] >> 3)
    try:
        return KeyPair(KeyKind(kind), data[2:])
    except ValueError:
        raise FrontendError(f"a private key of the fleet has an unknown kind: {kind}") from None


def is_signature_valid(public_key: str, data: bytes, signature: bytes) -> bool:
    """Return whether the owner of a public key has signed the data."""
    key = _decode(public_key)
    if len(key) != 1 + KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(key[1:]).verify(data, signature)
    except BadSignatureError:
        return False
    return True


def _encode(data: bytes) -> str:
    checksum = binascii.crc_hqx(data, 0).to_bytes(CHECKSUM_BYTES, "little")
    return base64.b32encode(data + checksum).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Return the prefix and the key of a text, or b"" if its checksum is wrong."""
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, binascii.Error):
        return b""
    content, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if binascii.crc_hqx(content, 0).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        return b""
    return content

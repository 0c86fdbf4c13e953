"""Seals and signs the messages and the entries of a fleet, so that the server sees only subjects and
sizes, and cannot write anything of its own.

A sealed message is the sender's signature, a nonce, and the ciphertext (XChaCha20-Poly1305). The
context binds it to one use, such as a subject and a number. The context is not sent. Both sides must
know it.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from nacl import bindings
from nacl.encoding import RawEncoder
from nacl.exceptions import CryptoError
from nacl.hash import blake2b

from shim.core.errors import ShimError
from shim.core.fleet.keys import SIGNATURE_BYTES, KeyPair, is_signature_valid
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict

KEY_BYTES = 32
NONCE_BYTES = 24
READ_PURPOSE = "read"
COMMAND_PURPOSE = "command"


class SealError(ShimError):
    """Raised if a message was not sealed with the expected key, or not signed by the sender."""


def derive_key(fleet_key: bytes, purpose: str) -> bytes:
    """Return the key for READ_PURPOSE or COMMAND_PURPOSE. The fleet key cannot be computed from it."""
    return blake2b(
        purpose.encode(), digest_size=KEY_BYTES, key=fleet_key, person=b"shim", encoder=RawEncoder
    )


def seal(key: bytes, nonce: bytes, payload: bytes, context: str, sender: KeyPair) -> bytes:
    """Seal and sign a payload. `nonce` is NONCE_BYTES random bytes."""
    ciphertext = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
        payload, context.encode(), nonce, key
    )
    sealed = nonce + ciphertext
    return sender.sign(_build_signed_data(sealed, context)) + sealed


def open_sealed(key: bytes, message: bytes, context: str, sender_public_key: str) -> bytes:
    """Return the payload of a sealed message. Raise SealError if the key, the context or the sender
    does not match.
    """
    signature, sealed = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
    payload = unseal_unsigned(key, message, context)
    if not is_signature_valid(sender_public_key, _build_signed_data(sealed, context), signature):
        raise SealError("a message was not signed by its sender")
    return payload


def unseal_unsigned(key: bytes, message: bytes, context: str) -> bytes:
    """Return the payload of a sealed message without a check of its signature. Raise SealError if the
    key or the context does not match.
    """
    sealed = message[SIGNATURE_BYTES:]
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
            sealed[NONCE_BYTES:], context.encode(), sealed[:NONCE_BYTES], key
        )
    except (CryptoError, ValueError, TypeError):
        raise SealError("a message was not sealed with the key of this fleet") from None


def seal_fields(
    key: bytes, nonce: bytes, fields: Mapping[str, Any], context: str, sender: KeyPair
) -> bytes:
    """Seal and sign fields as JSON. `nonce` is NONCE_BYTES random bytes."""
    return seal(key, nonce, dump_json(fields), context, sender)


def open_fields(key: bytes, message: bytes, context: str, sender_public_key: str) -> dict[str, Any]:
    """Return the fields of a sealed message, or {} if its JSON is not an object. Raise SealError if
    the message contains no JSON, or for the reasons of `open_sealed`.
    """
    return parse_fields(open_sealed(key, message, context, sender_public_key))


def parse_fields(payload: bytes) -> dict[str, Any]:
    """Return the fields of a payload, or {} if its JSON is not an object. Raise SealError if it is not
    JSON.
    """
    try:
        return as_dict(orjson.loads(payload))
    except orjson.JSONDecodeError:
        raise SealError("a message is not JSON") from None


def _build_signed_data(sealed: bytes, context: str) -> bytes:
    encoded = context.encode()
    return len(encoded).to_bytes(4, "big") + encoded + sealed

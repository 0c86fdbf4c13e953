"""Creates the certificates of a fleet's server: one that signs, and one for the server."""

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A member whose clock is behind would reject a certificate that begins today.
BACKDATING = datetime.timedelta(days=7)
LIFETIME = datetime.timedelta(days=3650)
SIGNING_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class ServerCertificates(NamedTuple):
    """The certificates of a server, and its private key, as PEM. Members trust `authority`."""

    authority: bytes
    certificate: bytes
    private_key: bytes


def create_server_certificates(fleet: str, host: str) -> ServerCertificates:
    """Create the certificates for a server with a host name or an IP address. The private key of the
    authority is not kept, so it cannot sign anything else.
    """
    authority_key = Ed25519PrivateKey.generate()
    server_key = Ed25519PrivateKey.generate()
    authority_name = _build_name(f"claude-shim fleet {fleet}")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id)
    # Python 3.13 and later require the identifiers and the key usage.
    authority = (
        _begin_certificate(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(SIGNING_USAGE, critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, None)
    )
    certificate = (
        _begin_certificate(_build_name(host), authority_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_build_alternative_name(host)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(authority_key, None)
    )
    private_key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ServerCertificates(
        authority.public_bytes(Encoding.PEM), certificate.public_bytes(Encoding.PEM), private_key
    )


def _begin_certificate(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey
) -> x509.CertificateBuilder:
    start = datetime.datetime.now(datetime.UTC) - BACKDATING
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
    )


def _build_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _build_alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

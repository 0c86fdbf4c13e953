"""The certificates of a fleet's server."""

import ssl

import pytest

from shim.fleet.certificates import create_server_certificates

# The flags that `ssl.create_default_context` sets since Python 3.13.
STRICT_FLAGS = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
MAX_STEPS = 10  # of a handshake in memory


def accepts_server(
    client_context: ssl.SSLContext, server_context: ssl.SSLContext, host: str
) -> bool:
    """Return whether a client accepts the certificate of a server, after a handshake in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(MAX_STEPS):
        finished = []
        for side in (client, server):
            try:
                side.do_handshake()
                finished.append(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
        if len(finished) == 2:
            return True
    raise AssertionError("the handshake does not end")


@pytest.mark.parametrize("flags", [0, STRICT_FLAGS], ids=["default", "strict"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "build01.example"])
def test_client_accepts_only_the_named_server_of_the_fleet(tmp_path, host, flags):
    certificates = create_server_certificates("home", host)
    (tmp_path / "server.pem").write_bytes(certificates.certificate)
    (tmp_path / "key.pem").write_bytes(certificates.private_key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "server.pem", tmp_path / "key.pem")
    other = create_server_certificates("home", host)
    for authority, name, expected in (
        (certificates.authority, host, True),
        (certificates.authority, "elsewhere.example", False),
        (other.authority, host, False),
    ):
        client_context = ssl.create_default_context(cadata=authority.decode())
        client_context.verify_flags |= flags
        assert accepts_server(client_context, server_context, name) is expected

"""The gateway on the network: with its own TLS, and with a proxy that has TLS."""

import http.client
import json
import socket
import ssl

import pytest
from certificates import create_certificate
from gateway_harness import SESSION, TIMEOUT_S, GatewayEndpoint, StandIns, Web

from shim.bridge.gateway import server

NAME = "shim.example.org"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return create_certificate(NAME, tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(host, tokens, certificate):
    running = Web(
        StandIns(host),
        tokens,
        GatewayEndpoint(
            port=0, names=(NAME,), certificate_file=certificate[0], key_file=certificate[1]
        ),
    )
    yield running
    running.close()


def ask(web, certificate, method, path, body=None, **headers):
    """Send a request over TLS and verify the certificate."""
    context = ssl.create_default_context(cafile=certificate[0])
    raw = socket.create_connection(("127.0.0.1", web.port), TIMEOUT_S)
    connection = http.client.HTTPConnection(NAME, web.port)
    with context.wrap_socket(raw, server_hostname=NAME) as connection.sock:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_tls_cookie_is_secure_and_limited_to_the_https_origin(secure, certificate):
    status, headers, response_body = ask(
        secure, certificate, "POST", "/login", {"token": secure.tokens.load_tokens().drive}
    )
    cookie = headers["set-cookie"]
    assert (
        status == 200
        and cookie.startswith("__Host-shim-")
        and "; Secure" in cookie
        and "Domain" not in cookie
    )
    page = {"Cookie": cookie.partition(";")[0], "X-Shim-Page": json.loads(response_body)["proof"]}
    assert ask(secure, certificate, "GET", "/sessions", None, **page)[0] == 200
    for origin, expected in (
        (f"https://{NAME}:{secure.port}", 200),
        (f"http://{NAME}:{secure.port}", 403),
    ):
        body = {"text": "hi"}
        path = f"/sessions/{SESSION}/messages"
        assert ask(secure, certificate, "POST", path, body, **page, Origin=origin)[0] == expected


def test_plain_http_request_to_the_tls_port_gets_no_response(secure):
    with secure.open_connection() as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {NAME}:{secure.port}\r\n\r\n".encode())
        try:
            assert not connection.recv(1).startswith(b"H")
        except ConnectionError:
            pass


def test_connection_without_a_tls_handshake_is_closed_after_the_timeout(
    host, tokens, certificate, monkeypatch
):
    monkeypatch.setattr(server, "TLS_HANDSHAKE_TIMEOUT_S", 0.05)
    web = Web(
        StandIns(host),
        tokens,
        GatewayEndpoint(port=0, certificate_file=certificate[0], key_file=certificate[1]),
    )
    try:
        with web.open_connection() as connection, pytest.raises((ConnectionError, EOFError)):
            if not connection.recv(1):
                raise EOFError
    finally:
        web.close()


def test_proxied_request_is_accepted_only_for_the_configured_host_name(host, tokens):
    web = Web(StandIns(host), tokens, GatewayEndpoint(port=0, has_proxy=True, names=(NAME,)))
    try:
        for name, origin, status in (
            (NAME, f"https://{NAME}", 200),
            (web.host, f"https://{NAME}", 200),  # a proxy that sends the gateway's address
            (NAME, f"http://{NAME}", 403),
            (NAME, "https://evil.example", 403),
            ("evil.example", "https://evil.example", 403),
        ):
            headers = {
                **web.build_headers(),
                "Host": name,
                "Origin": origin,
                "X-Forwarded-Host": "evil.example",
            }
            assert web.send_get("/sessions", role=None, headers=headers).status == status, (
                name,
                origin,
            )
        entered = web.send_post(
            "/login", {"token": tokens.load_tokens().drive}, role=None, headers={"Host": NAME}
        )
        assert (
            entered.headers["set-cookie"].startswith("__Host-shim-443=")
            and "Secure" in entered.headers["set-cookie"]
        )
    finally:
        web.close()

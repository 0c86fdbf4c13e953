"""The gateway's listening addresses, and the host names that it accepts."""

import asyncio
import socket

import pytest
from gateway_harness import GatewayEndpoint, StandIns, Web

from shim.bridge.gateway.server import (
    build_gateway_url,
    build_server_names,
    check_endpoint_security,
    open_listening_socket,
    parse_listen_address,
)
from shim.core.errors import FrontendError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("8000", ("127.0.0.1", 8000)),
        ("localhost:8000", ("127.0.0.1", 8000)), ("10.0.0.5", ("10.0.0.5", 8421)), (":9", ("127.0.0.1", 9)),
    ],
)  # fmt: skip
def test_listen_address_is_parsed(text, read):
    assert parse_listen_address(text) == read


@pytest.mark.parametrize(
    "text", ["", "host.example:80", "::1:80", "1.2.3.4:x", "1.2.3.4:70000", "1.2.3.4:-1", "[::1:8"]
)
def test_invalid_listen_address_is_rejected(text):
    with pytest.raises(FrontendError, match="not an address to listen on"):
        parse_listen_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::", "192.168.1.2"])
def test_non_loopback_address_requires_tls_or_a_proxy(host):
    with pytest.raises(FrontendError, match="reachable from the network") as raised:
        check_endpoint_security(GatewayEndpoint(host))
    assert "--tls-cert" in raised.value.hint and "--behind-proxy" in raised.value.hint
    check_endpoint_security(GatewayEndpoint(host, certificate_file="c", key_file="k"))
    check_endpoint_security(GatewayEndpoint(host, has_proxy=True, names=("shim.example.org",)))


def test_proxy_requires_a_host_name_and_a_certificate_requires_its_key():
    with pytest.raises(FrontendError, match="the host name that browsers use"):
        check_endpoint_security(GatewayEndpoint(has_proxy=True))
    with pytest.raises(FrontendError, match="must be used together"):
        check_endpoint_security(GatewayEndpoint(certificate_file="c"))


@pytest.mark.parametrize(
    "name", ["https://box.example", "box.example/", "a/b", "", "box example", "[::1", "box:x"]
)
def test_invalid_host_name_is_rejected_with_a_hint(name):
    with pytest.raises(FrontendError, match="is not a host name") as raised:
        check_endpoint_security(GatewayEndpoint(names=("box.example", name)))
    assert "between https:// and the next slash" in raised.value.hint


@pytest.mark.parametrize(
    "name", ["box.example", "Box", "box.example:8421", "10.0.0.5", "[fd00::1]", "[fd00::1]:8421"]
)
def test_host_name_with_an_optional_port_is_accepted(name):
    check_endpoint_security(GatewayEndpoint(names=(name,)))


def test_loopback_server_accepts_loopback_names_over_http():
    names = build_server_names(GatewayEndpoint(), 8421)
    assert names.hosts == {"127.0.0.1:8421", "localhost:8421", "[::1]:8421"}
    assert names.origins == {f"http://{host}" for host in names.hosts}
    assert not names.is_secure and not names.any_address_suffix
    assert build_gateway_url(GatewayEndpoint(), names, 8421) == "http://127.0.0.1:8421/"


def test_tls_server_accepts_https_origins_only():
    endpoint = GatewayEndpoint(
        "0.0.0.0", certificate_file="c", key_file="k", names=("Box.example",)
    )
    names = build_server_names(endpoint, 8421)
    assert names.hosts == {"box.example:8421"} and names.origins == {"https://box.example:8421"}
    assert names.is_secure and names.any_address_suffix == ":8421"
    assert build_gateway_url(endpoint, names, 8421) == "https://box.example:8421/"


def test_proxied_server_accepts_the_https_name_of_the_proxy():
    endpoint = GatewayEndpoint(has_proxy=True, names=("shim.example.org",))
    names = build_server_names(endpoint, 8421)
    assert "shim.example.org:443" in names.hosts and "https://shim.example.org:443" in names.origins
    assert not any("http://shim" in origin for origin in names.origins) and names.is_secure
    assert build_gateway_url(endpoint, names, 8421) == "https://shim.example.org/"


def test_port_in_use_is_rejected_with_a_hint(web, tokens):
    from shim.core.errors import SystemResourceError

    with pytest.raises(SystemResourceError, match="cannot listen on") as raised:
        Web(StandIns(), tokens, GatewayEndpoint(port=web.port))
    assert "--http" in raised.value.hint


@pytest.mark.anyio
async def test_small_events_are_sent_without_delay():
    options = []

    async def read_option(reader, writer):
        connection = writer.get_extra_info("socket")
        options.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = open_listening_socket(GatewayEndpoint(port=0))
    async with await asyncio.start_server(read_option, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await reader.read()
        writer.close()
    assert options == [1]

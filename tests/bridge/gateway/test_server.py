"""Where the gateway listens, and under which names it answers."""

import pytest
from web import GatewayEndpoint, StandIns, Web

from shim.bridge.gateway.server import (
    build_server_names,
    build_url,
    check_endpoint_security,
    parse_address,
)
from shim.core.errors import FrontendError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("8000", ("127.0.0.1", 8000)),
        ("localhost:8000", ("127.0.0.1", 8000)), ("10.0.0.5", ("10.0.0.5", 8421)), (":9", ("127.0.0.1", 9)),
    ],
)  # fmt: skip
def test_an_address_is_read(text, read):
    assert parse_address(text) == read


@pytest.mark.parametrize(
    "text", ["", "host.example:80", "::1:80", "1.2.3.4:x", "1.2.3.4:70000", "1.2.3.4:-1", "[::1:8"]
)
def test_what_is_no_address_is_refused_with_a_sentence(text):
    with pytest.raises(FrontendError, match="no address to listen at"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::", "192.168.1.2"])
def test_another_address_than_this_machines_own_needs_tls_or_a_proxy(host):
    with pytest.raises(FrontendError, match="can be reached from other machines") as raised:
        check_endpoint_security(GatewayEndpoint(host))
    assert "--tls-cert" in raised.value.hint and "--behind-proxy" in raised.value.hint
    check_endpoint_security(GatewayEndpoint(host, certificate_file="c", key_file="k"))
    check_endpoint_security(GatewayEndpoint(host, has_proxy=True, names=("shim.example.org",)))


def test_a_proxy_needs_a_name_and_a_certificate_its_key():
    with pytest.raises(FrontendError, match="name under which"):
        check_endpoint_security(GatewayEndpoint(has_proxy=True))
    with pytest.raises(FrontendError, match="belong together"):
        check_endpoint_security(GatewayEndpoint(certificate_file="c"))


@pytest.mark.parametrize(
    "name", ["https://box.example", "box.example/", "a/b", "", "box example", "[::1", "box:x"]
)
def test_what_is_no_name_of_a_host_is_refused_with_a_sentence(name):
    with pytest.raises(FrontendError, match="is no name of a host") as raised:
        check_endpoint_security(GatewayEndpoint(names=("box.example", name)))
    assert "between https:// and the next slash" in raised.value.hint


@pytest.mark.parametrize(
    "name", ["box.example", "Box", "box.example:8421", "10.0.0.5", "[fd00::1]", "[fd00::1]:8421"]
)
def test_a_name_of_a_host_has_its_port_if_it_is_another_one(name):
    check_endpoint_security(GatewayEndpoint(names=(name,)))


def test_on_this_machine_it_answers_to_the_names_of_this_machine():
    names = build_server_names(GatewayEndpoint(), 8421)
    assert names.hosts == {"127.0.0.1:8421", "localhost:8421", "[::1]:8421"}
    assert names.origins == {f"http://{host}" for host in names.hosts}
    assert not names.is_secure and not names.any_address_suffix
    assert build_url(GatewayEndpoint(), names, 8421) == "http://127.0.0.1:8421/"


def test_with_tls_it_answers_to_https_alone():
    endpoint = GatewayEndpoint(
        "0.0.0.0", certificate_file="c", key_file="k", names=("Box.example",)
    )
    names = build_server_names(endpoint, 8421)
    assert names.hosts == {"box.example:8421"} and names.origins == {"https://box.example:8421"}
    assert names.is_secure and names.any_address_suffix == ":8421"
    assert build_url(endpoint, names, 8421) == "https://box.example:8421/"


def test_behind_a_proxy_it_answers_to_the_name_of_the_proxy():
    endpoint = GatewayEndpoint(has_proxy=True, names=("shim.example.org",))
    names = build_server_names(endpoint, 8421)
    assert "shim.example.org:443" in names.hosts and "https://shim.example.org:443" in names.origins
    assert not any("http://shim" in origin for origin in names.origins) and names.is_secure
    assert build_url(endpoint, names, 8421) == "https://shim.example.org/"


def test_a_port_that_somebody_has_is_refused_with_a_sentence(web, tokens):
    from shim.core.errors import SystemResourceError

    with pytest.raises(SystemResourceError, match="cannot be listened at") as raised:
        Web(StandIns(), tokens, GatewayEndpoint(port=web.port))
    assert "--http" in raised.value.hint

"""A gateway with one stand-in session."""

import pytest


@pytest.fixture
def tokens(tmp_path):
    from shim.bridge.gateway.tokens import GatewayTokenFile

    return GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")})


@pytest.fixture
def host():
    from gateway_harness import StandIn

    return StandIn()


@pytest.fixture
def web(host, tokens):
    from gateway_harness import StandIns, Web

    from shim.bridge.gateway.server import GatewayEndpoint

    running = Web(StandIns(host), tokens, GatewayEndpoint(port=0))
    yield running
    running.close()

"""What a host does with the commands of its hub."""

from shim.bridge.cast_log import CastLog
from shim.bridge.host.runner import HubRunner
from shim.core.bridge.hub import Hub
from shim.core.bridge.session import Session

U = "11111111-2222-4333-8444-555555555555"


def test_facts_that_hold_only_in_between_are_not_kept(tmp_path):
    """A session that begins with a prompt never waits for one, whoever looks."""
    facts = []
    hub = Hub(Session(U), generation=1, number=0, mint=lambda: U, wall=lambda: 0, clock=lambda: 0.0)
    log = CastLog(str(tmp_path / "log"), 1)
    runner = HubRunner(hub, log, tell=lambda line: None, changed=facts.append, end=lambda by: None)
    hub.open()
    hub.prompt({"role": "user", "content": "hi"}, U)
    runner.settle()
    log.close()
    assert [each["state"] for each in facts] == ["working"]

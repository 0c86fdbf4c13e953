"""The MCP server whose tool starts subagents, with a vendor's client and a runner that are fakes."""

import json

import anyio
import pytest

from shim.core.claude.agent_definitions import AgentDefinition
from shim.io.mcp import agent_server as module
from shim.io.mcp.agent_server import MAX_AGENT_RUNS, AgentResult, AgentToolServer

pytestmark = pytest.mark.anyio
AGENTS = {"a": AgentDefinition("a", "does a", "You are A.")}


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeClient:
    server_name = "claudeagents"

    def __init__(self):
        self.answers = []

    def queue_line(self, line):
        assert line.endswith(b"\n")
        self.answers.append(json.loads(line))


class FakeRuns:
    """Runs that end when their event is set."""

    def __init__(self):
        self.prompts = []
        self.cancelled = []
        self.done = anyio.Event()

    async def run(self, call):
        self.prompts.append(call.prompt)
        try:
            await self.done.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(call.prompt)
            raise
        return AgentResult(f"{call.prompt} is done", is_error=False)


def call(number, prompt, name="a", **meta):
    params = {"name": "Task", "arguments": {"subagent_type": name, "prompt": prompt}, **meta}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def settle():
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def test_calls_run_at_the_same_time_and_get_their_results():
    runs, client = FakeRuns(), FakeClient()
    server = AgentToolServer(lambda: AGENTS, runs.run)
    async with anyio.create_task_group() as tasks:
        for number in (1, 2):
            server.accept_message(client, call(number, f"p{number}"), tasks)
        server.accept_message(client, {"id": 3, "method": "ping"}, tasks)
        await settle()
        assert runs.prompts == ["p1", "p2"] and [line["id"] for line in client.answers] == [3]
        runs.done.set()
    results = {line["id"]: line["result"] for line in client.answers}
    assert results[2] == {"content": [{"type": "text", "text": "p2 is done"}], "isError": False}


async def test_cancelled_call_stops_its_run_only():
    runs, client, other = FakeRuns(), FakeClient(), FakeClient()
    server = AgentToolServer(lambda: AGENTS, runs.run)
    cancel = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    async with anyio.create_task_group() as tasks:
        server.accept_message(client, call(1, "mine"), tasks)
        server.accept_message(other, call(1, "other"), tasks)
        await settle()
        server.accept_message(client, cancel, tasks)
        await settle()
        assert runs.cancelled == ["mine"]
        runs.done.set()
    assert client.answers == [] and other.answers[0]["id"] == 1


async def test_wrong_and_surplus_calls_get_an_error_for_the_model():
    runs, client = FakeRuns(), FakeClient()
    server = AgentToolServer(lambda: AGENTS, runs.run)
    async with anyio.create_task_group() as tasks:
        server.accept_message(client, call(1, "p", name="b"), tasks)
        for number in range(2, MAX_AGENT_RUNS + 3):
            server.accept_message(client, call(number, "p"), tasks)
        await settle()
        texts = [line["result"]["content"][0]["text"] for line in client.answers]
        assert [line["result"]["isError"] for line in client.answers] == [True, True]
        assert "'b' not found" in texts[0] and "agents are running" in texts[1]
        assert len(runs.prompts) == MAX_AGENT_RUNS
        runs.done.set()


async def test_progress_keeps_the_client_waiting(monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_INTERVAL_S", 0.01)
    runs, client = FakeRuns(), FakeClient()
    server = AgentToolServer(lambda: AGENTS, runs.run)
    async with anyio.create_task_group() as tasks:
        server.accept_message(client, call(1, "p", _meta={"progressToken": 7}), tasks)
        with anyio.fail_after(5):
            while len(client.answers) < 2:
                await anyio.sleep(0.01)
        runs.done.set()
    first, second, *_ = client.answers
    assert first["method"] == "notifications/progress"
    assert first["params"] == {"progressToken": 7, "progress": 1}
    assert second["params"]["progress"] == 2 and client.answers[-1]["id"] == 1

"""An MCP server with one tool, which starts subagents. The vendor is its client."""

from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from shim.core.claude.agent_definitions import AgentDefinition
from shim.core.claude.agent_tool import (
    CANCEL_METHOD,
    AgentToolCall,
    answer_mcp_request,
    encode_call_result,
    encode_progress,
    parse_agent_call,
)
from shim.core.claude.sdk_servers import CALL_METHOD, McpConnection
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

# Each run is a process of the vendor. No known model starts more agents at the same time.
MAX_AGENT_RUNS = 8
TOO_MANY_RUNS_TEXT = f"{MAX_AGENT_RUNS} agents are running. Wait until one of them has ended."
# Clients wait 60 s for a result. Each progress report restarts this wait.
PROGRESS_INTERVAL_S = 10.0


class AgentResult(NamedTuple):
    """The last message of a subagent, or the reason why there is none."""

    text: str
    is_error: bool


class AgentToolServer:
    """The shim's own MCP server.

    list_agents  returns the subagents of the session by name
    run_agent    runs a subagent until its end
    """

    def __init__(
        self,
        list_agents: Callable[[], Mapping[str, AgentDefinition]],
        run_agent: Callable[[AgentToolCall], Awaitable[AgentResult]],
    ) -> None:
        self._list_agents = list_agents
        self._run_agent = run_agent
        # The scopes of the running calls, by client and request id.
        self._scopes: dict[tuple[int, str], anyio.CancelScope] = {}

    def accept_message(self, client: McpConnection, message: object, tasks: TaskGroup) -> None:
        """Answer a client's message, or start the subagent that the message requests. The subagent
        runs in `tasks`.
        """
        fields = as_dict(message)
        method = fields.get("method")
        if method == CANCEL_METHOD:
            request_id = as_dict(fields.get("params")).get("requestId")
            scope = self._scopes.get((id(client), repr(request_id)))
            if scope is not None:
                scope.cancel()
        elif method == CALL_METHOD:
            self._start_call(client, fields, tasks)
        elif answer := answer_mcp_request(fields, self._list_agents().values()):
            client.queue_line(answer)

    def _start_call(
        self, client: McpConnection, message: Mapping[str, Any], tasks: TaskGroup
    ) -> None:
        reason = ""
        try:
            call = parse_agent_call(message, self._list_agents())
        except ValueError as error:
            reason = str(error)
        if not reason and len(self._scopes) >= MAX_AGENT_RUNS:
            reason = TOO_MANY_RUNS_TEXT
        if reason:
            client.queue_line(encode_call_result(message.get("id"), reason, is_error=True))
            return
        scope = anyio.CancelScope()
        self._scopes[id(client), repr(call.request_id)] = scope
        tasks.start_soon(self._answer_call, client, call, scope)

    async def _answer_call(
        self, client: McpConnection, call: AgentToolCall, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_report_progress, client, call)
                    result = await self._run_agent(call)
                    tasks.cancel_scope.cancel()
                client.queue_line(
                    encode_call_result(call.request_id, result.text, is_error=result.is_error)
                )
        finally:
            self._scopes.pop((id(client), repr(call.request_id)), None)


async def _report_progress(client: McpConnection, call: AgentToolCall) -> None:
    """Report progress until the call has ended, if the client has requested progress reports."""
    step = 0
    while call.progress_token is not None:
        await anyio.sleep(PROGRESS_INTERVAL_S)
        step += 1
        client.queue_line(encode_progress(call.progress_token, step))

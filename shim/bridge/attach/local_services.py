"""Hooks and MCP servers in the frontend's own process. The frontend's messages wait until the
session has accepted these hooks and servers.
"""

from collections.abc import Mapping, Sequence

from shim.conversation.session_state import load_mcp_servers
from shim.core.claude.argv.flags import Invocation
from shim.core.reading.typed import Any

LOCAL_SERVICE_KEYS = ("hooks", "sdkMcpServers")  # keys of an `initialize` request
SERVICES_REFUSED_TEXT = (
    "the session did not accept the hooks and MCP servers of this frontend, so the turn is "
    "refused: {why}"
)


def split_sdk_mcp_servers(invocation: Invocation, cwd: str) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the MCP servers that run in the frontend's own process, and the
    configurations of all other servers by name.
    """
    servers_by_name = load_mcp_servers(invocation, cwd)
    sdk_names = [
        name
        for name, server in servers_by_name.items()
        if isinstance(server, dict) and server.get("type") == "sdk"
    ]
    return sdk_names, {
        name: server for name, server in servers_by_name.items() if name not in sdk_names
    }


class FrontendHooksAndMcpServers:
    """Tracks whether the session has accepted the hooks and MCP servers of a frontend.

    servers           names of the MCP servers on the frontend's command line
    open_request_ids  requests from the session that the frontend has not answered
    refusal           why the session did not accept the hooks and servers, or ""
    waiting_messages  messages that wait until the hooks and servers are accepted, by id
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = servers
        self.open_request_ids: set[str] = set()
        self.waiting_messages: dict[str, Mapping[str, Any]] = {}
        self.refusal = ""
        self._pending_ids: set[str] = set()

    @property
    def is_initialize_pending(self) -> bool:
        """Whether an `initialize` request with hooks or servers is still unanswered by
        the session.
        """
        return bool(self._pending_ids)

    def record_initialize_of_local_services(
        self, request_id: str, request: Mapping[str, Any]
    ) -> bool:
        """Record an `initialize` request that is sent to the session. Return whether the request
        contains hooks or servers.
        """
        if not any(request.get(key) for key in LOCAL_SERVICE_KEYS):
            return False
        self._pending_ids.add(request_id)
        return True

    def take_messages_awaiting_initialize(
        self, request_id: str, error_text: str
    ) -> Mapping[str, Mapping[str, Any]]:
        """Record the session's answer to an `initialize` request. Return the messages that waited
        for the answer, by id.

        `error_text` is the reason why the session refused the request, or "". Return {} while
        another `initialize` request is pending.
        """
        if request_id not in self._pending_ids:
            return {}
        self._pending_ids.discard(request_id)
        if error_text:
            self.refusal = SERVICES_REFUSED_TEXT.format(why=error_text)
        else:
            self.refusal = ""
        if self._pending_ids:
            return {}
        messages = self.waiting_messages
        self.waiting_messages = {}
        return messages

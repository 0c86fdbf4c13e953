"""What of a frontend lives in its own process, hooks and MCP servers: none of its messages runs
without them.
"""

from collections.abc import Mapping, Sequence

from shim.conversation.session_state import load_mcp_servers
from shim.core.claude.argv.invocation import Invocation
from shim.core.reading.typed import Any

LOCAL_SERVICE_KEYS = ("hooks", "sdkMcpServers")  # the keys of an `initialize`
SERVICES_REFUSED_TEXT = (
    "the session has not taken the hooks and MCP servers of this frontend, "
    "and nothing runs without them: {why}"
)


def split_sdk_mcp_servers(invocation: Invocation, cwd: str) -> tuple[list[str], dict[str, Any]]:
    """The MCP servers of the frontend's own process, by their names, and the others with their
    configuration.
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
    """`servers` are the names of those that the command line names; `open_request_ids` what the
    session asks and has no answer yet.

    `refusal` is why the session has not taken what the frontend brings, "" where it has.
    `waiting_messages` are the messages that wait for that, by their ids.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = servers
        self.open_request_ids: set[str] = set()
        self.waiting_messages: dict[str, Mapping[str, Any]] = {}
        self.refusal = ""
        self._pending_ids: set[str] = set()

    @property
    def is_initialize_pending(self) -> bool:
        """Whether the session has yet to take it."""
        return bool(self._pending_ids)

    def record_initialize_of_local_services(
        self, request_id: str, request: Mapping[str, Any]
    ) -> bool:
        """An `initialize` goes to the session; whether it brings something."""
        if not any(request.get(key) for key in LOCAL_SERVICE_KEYS):
            return False
        self._pending_ids.add(request_id)
        return True

    def take_messages_awaiting_initialize(
        self, request_id: str, error_text: str
    ) -> Mapping[str, Mapping[str, Any]]:
        """The session has taken it, or `refusal` says why not; the messages that waited for that."""
        if request_id not in self._pending_ids:
            return {}
        self._pending_ids.discard(request_id)
        self.refusal = SERVICES_REFUSED_TEXT.format(why=error_text) if error_text else ""
        if self._pending_ids:
            return {}
        messages, self.waiting_messages = self.waiting_messages, {}
        return messages

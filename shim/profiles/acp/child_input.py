"""What an agent of the protocol is told: its session, the messages, the answers to its questions."""

from shim.core.adapter.adapter import LaunchRequest
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.profiles.acp.blocks import AS_FILE
from shim.profiles.acp.servers import build_mcp_servers
from shim.profiles.acp.session import AcpSession, AcpSessionParams
from shim.profiles.acp.versions import VERSION_1, VERSION_2
from shim.profiles.rpc.child_input import RpcChildInput

CHANGED_INPUT_REFUSAL = (
    "Not run: this agent runs a call as it is or not at all, "
    "and the call was allowed with another input only."
)


class AcpChildInput(RpcChildInput[AcpSession]):
    """One agent's ear. `modes` are Claude's names of modes → the agent's; a mode without one is as
    `default`.
    """

    def __init__(
        self,
        modes: dict[str, str],
        *,
        sets_model: bool,
        offers_draft: bool = False,
        document_format: str = AS_FILE,
        only_urls: bool = False,
    ) -> None:
        """`sets_model`: the agent is told the model in the session, because its command line has no
        word for it.

        `offers_draft`: version 2 of the protocol is offered. `document_format`: how a document is
        said to the agent. `only_urls`: it takes no server of MCP that is a command.
        """
        super().__init__(AcpSession())
        self._document_format = document_format
        self._only_urls = only_urls
        self._protocol_version = (VERSION_2 if offers_draft else VERSION_1).number
        self._modes = modes
        self._sets_model = sets_model
        self._mode = ""

    def encode_handshake(self, request: LaunchRequest) -> bytes:
        invocation, self._mode = request.invocation, request.permission_mode
        return self._session.encode_initialize(
            AcpSessionParams(
                cwd="" if request.policy is None else request.policy.workspace.cwd,
                resumed_id=request.resume_id,
                is_fork=bool(request.resume_id and invocation.fork_session),
                model=invocation.model if self._sets_model else None,
                mode=self._map_mode(self._mode),
                effort=invocation.effort,
                servers=build_mcp_servers(request.mcp_servers.all_servers),
                protocol_version=self._protocol_version,
                document_format=self._document_format,
                only_urls=self._only_urls,
                answers_forms=request.can_ask_user(),
            )
        )

    def encode_interrupt(self) -> bytes:
        return self._session.encode_cancel()

    def encode_model_change(self, name: str | None) -> bytes | None:
        """From the next message on."""
        return self._session.encode_setting_change("model", name)

    def encode_effort_change(self, level: str | None) -> bytes | None:
        return self._session.encode_effort_change(level)

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """The agent asks about each call in every mode, and the policy answers: most modes are one
        to it.
        """
        previous_mode, self._mode = self._map_mode(self._mode), name
        agent_mode = self._map_mode(name)
        return (
            b""
            if agent_mode == previous_mode
            else self._session.encode_setting_change("mode", agent_mode)
        )

    def _map_mode(self, name: str) -> str | None:
        return self._modes.get(name, self._modes.get("default"))

    def encode_permission_response(
        self, permission: PermissionRequest, decision: PermissionDecision
    ) -> bytes:
        """One of the options that it gave. ValueError for a changed input, which the protocol has
        no word for.
        """
        form_answer = self._session.encode_form_answer(
            permission.request_id,
            decision.updated_input,
            allow=decision.allow,
            ends_turn=decision.ends_turn,
        )
        if form_answer is not None:
            return form_answer
        if decision.allow and decision.updated_input is not None:
            raise ValueError(CHANGED_INPUT_REFUSAL)
        ends_turn, reason = decision.ends_turn, decision.message
        return self._session.encode_permission_response(
            permission.request_id, allow=decision.allow, ends_turn=ends_turn, reason=reason
        )

"""What an agent of the protocol is told: its session, the messages, the answers to its questions."""

from shim.core.adapter.vendor import LaunchRequest
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.profiles.acp.blocks import FILE
from shim.profiles.acp.link import Link, Opening
from shim.profiles.acp.servers import servers
from shim.profiles.acp.versions import FIRST, SECOND
from shim.profiles.rpc.speech import LinkSpeech

UNCHANGED = "Not run: this agent runs a call as it is or not at all, and the call was allowed with another input only."


class AcpSpeech(LinkSpeech[Link]):
    """One agent's ear. `modes` are Claude's names of modes → the agent's; a mode without one is as
    `default`.
    """

    def __init__(
        self,
        modes: dict[str, str],
        *,
        model: bool,
        draft: bool = False,
        documents: str = FILE,
        addresses: bool = False,
    ) -> None:
        """`model`: the agent is told the model in the session, because its command line has no word
        for it.

        `draft`: version 2 of the protocol is offered. `documents`: how a document is said to the
        agent. `addresses`: it takes no server of MCP that is a command.
        """
        super().__init__(Link())
        self._documents = documents
        self._addresses = addresses
        self._version = (SECOND if draft else FIRST).number
        self._modes = modes
        self._tells_model = model
        self._mode = ""

    def encode_greeting(self, request: LaunchRequest) -> bytes:
        invocation, self._mode = request.invocation, request.permission_mode
        return self._link.greet(
            Opening(
                cwd="" if request.policy is None else request.policy.workspace.cwd,
                resume=request.resume_id,
                fork=bool(request.resume_id and invocation.session.fork_session),
                model=invocation.model if self._tells_model else None,
                mode=self._own_mode(self._mode),
                effort=invocation.limits.effort,
                servers=servers(request.mcp_servers.all_servers),
                version=self._version,
                documents=self._documents,
                addresses=self._addresses,
                asks=request.can_ask_person(),
            )
        )

    def encode_interrupt(self) -> bytes:
        return self._link.cancel()

    def encode_model(self, name: str | None) -> bytes | None:
        """From the next message on."""
        return self._link.set("model", name)

    def encode_effort(self, level: str | None) -> bytes | None:
        return self._link.effort(level)

    def encode_mode(self, name: str) -> bytes | None:
        """The agent asks about each call in every mode, and the policy answers: most modes are one
        to it.
        """
        before, self._mode = self._own_mode(self._mode), name
        own = self._own_mode(name)
        return b"" if own == before else self._link.set("mode", own)

    def _own_mode(self, name: str) -> str | None:
        return self._modes.get(name, self._modes.get("default"))

    def encode_decision(self, permission: PermissionRequest, decision: PermissionDecision) -> bytes:
        """One of the options that it gave. ValueError for a changed input, which the protocol has
        no word for.
        """
        filled = self._link.fill(
            permission.request_id,
            decision.updated_input,
            allow=decision.allow,
            stop=decision.ends_turn,
        )
        if filled is not None:
            return filled
        if decision.allow and decision.updated_input is not None:
            raise ValueError(UNCHANGED)
        stop, reason = decision.ends_turn, decision.message
        return self._link.decide(
            permission.request_id, allow=decision.allow, stop=stop, reason=reason
        )

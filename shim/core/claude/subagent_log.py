"""Collects the messages of subagents for their transcripts.

The real claude writes the transcript of a subagent, and a file with its metadata, in a folder
beside the session's transcript. The SDKs read both (`get_subagent_messages`).
"""

from collections.abc import Mapping

from shim.core.claude.usage import NO_USAGE
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, get_text

AGENT_TOOLS = ("Task", "Agent")  # Claude's tools that start subagents
MAX_AGENTS = 1000  # the limit for one process; messages of further subagents are not collected
AGENT_ID_DIGITS = 16  # hexadecimal digits after the letter "a", as in the real claude
NUMBER_DIGITS = 4  # the digits that distinguish the subagents of one process

Message = Mapping[str, Any]


class SubagentEntry(NamedTuple):
    """A message of a subagent for its transcript."""

    role: str  # "user" or "assistant"
    message: Message
    uuid: str  # the id of the stream line that contains the message


class SubagentChange(NamedTuple):
    """What happened to a subagent: a new message, or new metadata."""

    agent_id: str
    entry: SubagentEntry | None = None
    metadata: Message | None = None  # the complete content of the metadata file


class LoggedSubagent:
    """A subagent, and the tool call that runs it."""

    def __init__(self, agent_id: str, metadata: dict[str, Any], prompt: str) -> None:
        self.agent_id = agent_id
        self.metadata = metadata
        self.prompt = prompt
        self.has_started = False
        self.call_count = 0  # the tool calls that the vendor has reported

    def build_result(self, content: object) -> Message:
        """Return `tool_use_result` for the tool call that ran the subagent."""
        return {
            "status": "completed",
            "prompt": self.prompt,
            "agentId": self.agent_id,
            "agentType": self.metadata["agentType"],
            "content": [{"type": "text", "text": _join_text(content)}],
            "totalToolUseCount": self.call_count,
        }


class SubagentLog:
    """Collects the messages of a conversation's subagents until `take_changes` is called.

    If a vendor reports no messages of a subagent, its prompt and its result are used.

    id_prefix  the random start of the conversation's UUIDs
    """

    def __init__(self, id_prefix: str) -> None:
        self._id_prefix = id_prefix.replace("-", "")[: AGENT_ID_DIGITS - NUMBER_DIGITS]
        self._agent_count = 0
        self._agents: dict[str, LoggedSubagent] = {}  # by the id of the tool call
        self._changes: list[SubagentChange] = []

    def take_changes(self) -> list[SubagentChange]:
        """Remove and return the changes since the last call."""
        changes = self._changes
        self._changes = []
        return changes

    def discard_changes(self) -> None:
        """Discard a turn's messages. The frontend has not received any of them."""
        self._changes = []
        self._agents = {}

    def start_agent(self, call_id: str, tool_input: Message, parent_call_id: str = "") -> None:
        """Record a tool call that runs a subagent. If another subagent made the call,
        `parent_call_id` is the id of the call that runs the other subagent.
        """
        if self._agent_count >= MAX_AGENTS:
            return
        self._agent_count += 1
        metadata: dict[str, Any] = {
            "agentType": get_text(tool_input, "subagent_type", "general-purpose"),
            "description": get_text(tool_input, "description"),
            "toolUseId": call_id,
            "spawnDepth": 1,
        }
        parent = self._agents.get(parent_call_id)
        if parent is not None:
            metadata["spawnDepth"] = parent.metadata["spawnDepth"] + 1
            metadata["parentAgentId"] = parent.agent_id
        prompt = get_text(tool_input, "prompt")
        agent_id = f"a{self._id_prefix}{self._agent_count:0{NUMBER_DIGITS}x}"
        self._agents[call_id] = LoggedSubagent(agent_id, metadata, prompt)

    def add_message(self, call_id: str, role: str, message: Message, uuid: str) -> None:
        """Record a message of the subagent that a tool call runs."""
        agent = self._agents.get(call_id)
        if agent is None:
            self.start_agent(call_id, {})
            agent = self._agents.get(call_id)
        if agent is None:
            return
        if not agent.has_started:
            self._start_transcript(agent, role, message)
        self._changes.append(SubagentChange(agent.agent_id, SubagentEntry(role, message, uuid)))
        for block in message["content"]:
            if block["type"] == "tool_use":
                agent.call_count += 1
                if block["name"] in AGENT_TOOLS:
                    self.start_agent(block["id"], block["input"], call_id)
            elif block["type"] == "tool_result":
                is_error = bool(block["is_error"])
                self.end_agent(block["tool_use_id"], block["content"], is_error=is_error)

    def end_agent(self, call_id: str, content: object, *, is_error: bool) -> Message | None:
        """Record the result of a tool call that runs a subagent. Return `tool_use_result` for it, or
        None if the subagent has no transcript.
        """
        agent = self._agents.get(call_id)
        if agent is None:
            return None
        if not agent.has_started:
            text = _join_text(content)
            if not text or not agent.prompt or is_error:
                return None
            self._start_transcript(agent)
            message = _build_report(text)
            self._changes.append(
                SubagentChange(agent.agent_id, SubagentEntry("assistant", message, ""))
            )
        metadata = {**agent.metadata, "finished": True}
        self._changes.append(SubagentChange(agent.agent_id, metadata=metadata))
        return agent.build_result(content)

    def _start_transcript(
        self, agent: LoggedSubagent, role: str = "", message: Message | None = None
    ) -> None:
        """Begin a transcript with the metadata and the prompt. The prompt is left out if the first
        message is the prompt itself.
        """
        agent.has_started = True
        self._changes.append(SubagentChange(agent.agent_id, metadata=agent.metadata))
        if message is not None and role == "user" and _is_text(message):
            return
        if agent.prompt:
            prompt = {"role": "user", "content": agent.prompt}
            self._changes.append(SubagentChange(agent.agent_id, SubagentEntry("user", prompt, "")))


def _build_report(text: str) -> Message:
    return {
        "type": "message",
        "role": "assistant",
        "model": "<synthetic>",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": NO_USAGE,
    }


def _join_text(content: object) -> str:
    """Return the text of a tool result, which is a text or a list of content blocks."""
    if isinstance(content, str):
        return content
    blocks = (as_dict(block) for block in as_list(content))
    return "\n".join(get_text(block, "text") for block in blocks if block.get("type") == "text")


def _is_text(message: Message) -> bool:
    return all(block["type"] == "text" for block in message["content"])

"""Implements `shim export --to atif`, which writes Harbor's Agent Trajectory Interchange Format
1.8.

A step is a prompt, a model reply with its tool calls and results, or a system message. Steps are
written as soon as they are read, except the steps of subagents, which the format requires at the
end. Data without a field in the format is in `extra`.

A reply has no token counts if the stream does not report them: some vendors only report tokens for
the complete turn. `final_metrics` contains the token counts of the session.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim import __version__
from shim.core.api_errors import describe_cause
from shim.core.reading.json_text import dump_json
from shim.core.secrets.redactor import Redactor
from shim.story.events import find_failure_cause
from shim.story.formatting import count_cached_tokens, count_input_tokens
from shim.story.model import SessionStep, format_content_text
from shim.story.replies import ModelReply, RecordingTraceReader, TraceItem

ATIF_VERSION = "ATIF-v1.8"
MAX_WAITING_STEPS = 64  # steps that wait for `init`, which names the agent
MAX_DEPTH = 20  # levels of subagents; subagents at deeper levels count as the main agent

WriteFunction = Callable[[bytes], None]

# Notes about the conversation. All other notes are about the shim.
_EXPORTED_NOTES = ("api_retry", "compact_boundary", "interrupt", "set_model")


def write_recording_export(path: str, write: WriteFunction, *, redact: bool) -> None:
    """Write the trajectory of the recording at `path` as one JSON object. Raise RecordingError if
    the file is not a recording.
    """
    recording = RecordingTraceReader(path)
    redactor = None
    if redact:
        redactor = Redactor()
    _AtifDocument(recording, write, redactor).write_document()


class _AgentTrajectory:
    """The numbered steps of one agent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.step_count = 0
        self.lines: list[bytes] = []
        self.children: list[_AgentTrajectory] = []
        self.parent: _AgentTrajectory | None = None

    @property
    def height(self) -> int:
        return 1 + max((child.height for child in self.children), default=0)


class _AtifDocument:
    def __init__(
        self, recording: RecordingTraceReader, write: WriteFunction, redactor: Redactor | None
    ) -> None:
        self._recording = recording
        self._write = write
        self._redactor = redactor
        self._root = _AgentTrajectory("")
        self._trajectories: dict[str, _AgentTrajectory] = {}  # call id → subagent's trajectory
        self._owner_by_call: dict[str, str] = {}  # call id → the subagent that called
        self._agent_by_call: dict[str, str] = {}  # call id → name of the started agent
        self._waiting_lines: list[bytes] = []
        self._has_head = False
        self._separator = b""

    def write_document(self) -> None:
        for agent, item in self._recording.read_trace_items():
            if agent:
                trajectory = self._trajectories.setdefault(agent, _AgentTrajectory(agent))
            else:
                trajectory = self._root
            step = self._build_step(trajectory, item)
            if step is not None:
                self._add_step(trajectory, step)
            elif isinstance(item, SessionStep) and item.kind == "start":
                self._write_head()
        self._attach_remaining()
        if not self._root.step_count:
            self._add_step(self._root, {"source": "system", "message": "no output"})
        self._write_head()
        final_fields = {"final_metrics": self._build_metrics(), "extra": self._build_extra()}
        self._write(b"]," + self._dump_redacted(final_fields)[1:-1])
        self._write_children(self._root)
        self._write(b"}\n")

    # -- agents ------------------------------------------------------------------------------------

    def _attach_remaining(self) -> None:
        """Attach the remaining subagent trajectories to their callers, after the whole recording
        has been read.

        These subagents have no result that refers to them, so a step that refers to the trajectory
        is added to the caller.
        """
        for name, trajectory in self._trajectories.items():
            if trajectory.parent is None:
                parent = self._trajectories.get(self._owner_by_call.get(name, ""), self._root)
                if not self._can_nest(parent, trajectory):
                    parent = self._root
                trajectory.parent = parent
                parent.children.append(trajectory)
                reference = {
                    "subagent_trajectory_ref": [{"trajectory_id": name}],
                    "extra": {"tool_call_id": name},
                }
                step = {"source": "system", "message": "an agent in the background"}
                self._add_step(parent, step | {"observation": {"results": [reference]}})

    def _can_nest(self, parent: _AgentTrajectory, child: _AgentTrajectory) -> bool:
        """Return whether a child trajectory may be nested in a parent. A trajectory must not
        contain itself, and nesting is limited to MAX_DEPTH.
        """
        depth = child.height
        ancestor = parent
        while ancestor is not self._root:
            depth += 1
            if ancestor is child or depth > MAX_DEPTH:
                return False
            if ancestor.parent is None:
                return True
            ancestor = ancestor.parent
        return True

    def _add_step(self, trajectory: _AgentTrajectory, step: Mapping[str, Any]) -> None:
        trajectory.step_count += 1
        line = self._dump_redacted({"step_id": trajectory.step_count, **step})
        if trajectory is not self._root:
            trajectory.lines.append(line)
            return
        self._waiting_lines.append(line)
        if self._has_head or len(self._waiting_lines) > MAX_WAITING_STEPS:
            self._write_head()

    def _write_head(self) -> None:
        """Write the fields that precede the steps once, followed by the waiting steps."""
        recording = self._recording
        if not self._has_head:
            self._has_head = True
            head: dict[str, Any] = {"schema_version": ATIF_VERSION}
            if recording.session_id:
                head["session_id"] = recording.session_id
            head["agent"] = self._build_agent(
                recording.answering_vendor_name or "unknown", tools=True
            )
            self._write(self._dump_redacted(head)[:-1] + b',"steps":[')
        if self._waiting_lines:
            self._write(self._separator + b",".join(self._waiting_lines))
            self._separator = b","
            self._waiting_lines.clear()

    def _write_children(self, parent: _AgentTrajectory) -> None:
        self._write(b',"subagent_trajectories":[' if parent.children else b"")
        for number, child in enumerate(parent.children):
            agent = self._build_agent(self._agent_by_call.get(child.name, "subagent"))
            head = {"schema_version": ATIF_VERSION, "trajectory_id": child.name, "agent": agent}
            self._write(b"," * bool(number) + self._dump_redacted(head)[:-1] + b',"steps":[')
            self._write(
                b",".join(child.lines)
                or self._dump_redacted({"step_id": 1, "source": "system", "message": ""})
            )
            self._write(b"]")
            self._write_children(child)
            self._write(b"}")
        self._write(b"]" if parent.children else b"")

    # -- steps -------------------------------------------------------------------------------------

    def _build_step(self, trajectory: _AgentTrajectory, item: TraceItem) -> dict[str, Any] | None:
        if isinstance(item, ModelReply):
            return self._build_reply_step(trajectory, item)
        timestamp = self._build_timestamp(item.at)
        if item.kind == "prompt":
            return timestamp | {"source": "user", "message": item.text}
        if item.kind == "error":
            kind = item.facts.get("error")
            extra = {"error": kind if isinstance(kind, str) else True}
            return timestamp | {"source": "system", "message": item.text, "extra": extra}
        if item.kind == "result" and item.facts.get("is_error"):
            return timestamp | _build_failure_step(item.facts)
        if item.kind != "note":
            return None
        if item.name == "user":  # an interrupt or a subagent's prompt
            return timestamp | {"source": "user", "message": item.text}
        if item.name not in _EXPORTED_NOTES:
            return None
        exported_fields = ("attempt", "max_retries", "error", "compact_metadata", "model")
        extra = {
            name: item.facts[name] for name in exported_fields if item.facts.get(name) is not None
        }
        step = timestamp | {"source": "system", "message": item.text}
        if extra:
            step["extra"] = extra
        return step

    def _build_reply_step(self, trajectory: _AgentTrajectory, reply: ModelReply) -> dict[str, Any]:
        if reply.first_output_at is None:
            time_s = reply.at
        else:
            time_s = reply.first_output_at
        step = self._build_timestamp(time_s)
        step |= {"source": "agent", "message": reply.join_part_texts()}
        if reply.model and reply.model != self._recording.model:
            step["model_name"] = reply.model
        if thinking := reply.join_part_texts("thinking"):
            step["reasoning_content"] = thinking
        if calls := reply.tool_calls:
            for call in calls:
                if trajectory.name:
                    self._owner_by_call[call.call] = trajectory.name
                kind = call.input.get("subagent_type")
                if isinstance(kind, str) and kind:
                    self._agent_by_call[call.call] = kind
            step["tool_calls"] = [
                {
                    "tool_call_id": call.call,
                    "function_name": call.name,
                    "arguments": dict(call.input),
                }
                for call in calls
            ]
            if results := [
                self._build_result(trajectory, call)
                for call in calls
                if call.output is not None or call.outcome
            ]:
                step["observation"] = {"results": results}
        if usage := reply.final_token_counts:
            step["metrics"] = _build_token_counts(
                usage, "prompt_tokens", "completion_tokens", "cached_tokens"
            )
        extra: dict[str, Any] = {"waited_s": round(max(reply.until - reply.at, 0.0), 4)}
        if reply.stop_reason:
            extra["stop_reason"] = reply.stop_reason
        return step | {"llm_call_count": 1, "extra": extra}

    def _build_result(self, trajectory: _AgentTrajectory, call: SessionStep) -> dict[str, Any]:
        result: dict[str, Any] = {
            "source_call_id": call.call,
            "content": format_content_text(call.output),
        }
        nested_trajectory = self._trajectories.get(call.call)
        if (
            nested_trajectory is not None
            and nested_trajectory.parent is None
            and self._can_nest(trajectory, nested_trajectory)
        ):
            nested_trajectory.parent = trajectory
            trajectory.children.append(nested_trajectory)
            result["subagent_trajectory_ref"] = [{"trajectory_id": call.call}]
        extra: dict[str, Any] = {"outcome": call.outcome or "ok"}
        if call.until is not None:
            extra["duration_s"] = round(call.run_time_s, 4)
        return result | {"extra": extra}

    def _build_timestamp(self, time_s: float) -> dict[str, Any]:
        timestamp = self._recording.format_iso_time(time_s)
        if timestamp is None:
            return {}
        return {"timestamp": timestamp}

    # -- head --------------------------------------------------------------------------------------

    def _build_agent(self, name: str, *, tools: bool = False) -> dict[str, Any]:
        recording = self._recording
        agent: dict[str, Any] = {"name": name, "version": recording.vendor_version or "unknown"}
        if recording.model:
            agent["model_name"] = recording.model
        tool_names = None
        if tools:
            tool_names = recording.trace.replies.init_fields.get("tools")
        if isinstance(tool_names, list) and tool_names:  # the stream only contains tool names
            agent["tool_definitions"] = [
                {"type": "function", "function": {"name": each}}
                for each in tool_names
                if isinstance(each, str)
            ]
        return agent

    def _build_metrics(self) -> dict[str, Any]:
        totals = self._recording.trace.totals
        metrics = _build_token_counts(
            totals.tokens, "total_prompt_tokens", "total_completion_tokens", "total_cached_tokens"
        )
        if totals.cost_usd:
            metrics["total_cost_usd"] = totals.cost_usd
        extra = metrics.get("extra", {}) | {
            "turns": totals.turns,
            "tool_calls": totals.calls,
            "failed_tool_calls": totals.failed_calls,
            "denied_tool_calls": totals.denied_calls,
            "errors": totals.errors,
            "duration_s": round(totals.duration_s, 4),
            "seconds": {name: round(seconds, 4) for name, seconds in totals.seconds.items()},
        }
        return metrics | {"total_steps": self._root.step_count, "extra": extra}

    def _build_extra(self) -> dict[str, Any]:
        header = self._recording.header
        totals = self._recording.trace.totals
        extra: dict[str, Any] = {
            "exported_by": f"claude-shim {__version__}",
            "recorded_by": header.shim,
            "cwd": header.cwd,
            "platform": header.platform,
            "recording_cut": self._recording.is_incomplete,
        }
        if totals.repairs:
            extra["repairs"] = totals.repairs
        return extra

    def _dump_redacted(self, value: dict[str, Any]) -> bytes:
        return dump_json(value if self._redactor is None else self._redactor.redact_value(value))


def _build_failure_step(result: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        "subtype": result.get("subtype"),
        "cause": find_failure_cause(result),
        "errors": result.get("errors"),
    }
    extra = {"error": True} | {name: value for name, value in fields.items() if value}
    return {
        "source": "system",
        "message": f"the turn failed: {describe_cause(str(fields['cause']))}",
        "extra": extra,
    }


def _build_token_counts(
    usage: Mapping[str, int], prompt: str, completion: str, cached: str
) -> dict[str, Any]:
    """Build the token counts of ATIF, which include cached tokens in the input tokens. Claude
    counts cached tokens separately.
    """
    cache_reads = count_cached_tokens(usage)
    cache_writes = usage.get("cache_creation_input_tokens", 0)
    counts: dict[str, Any] = {}
    if "input_tokens" in usage or cache_reads or cache_writes:
        counts[prompt] = count_input_tokens(usage)
    if "output_tokens" in usage:
        counts[completion] = usage["output_tokens"]
    if cache_reads:
        counts[cached] = cache_reads
    if cache_writes:
        counts["extra"] = {"cache_creation_tokens": cache_writes}
    return counts

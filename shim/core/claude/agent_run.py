"""A run of a subagent. The run is a second process of the drop-in `claude`, which is started with
the agent's system prompt and gets one message.

The run's control requests, such as permission prompts and hook callbacks, are forwarded to the
frontend under new ids, and the frontend's answers are returned to the run. The run applies the
rules of the session, so an agent may never do more than the session.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.agent_definitions import INHERITED_MODEL, AgentDefinition
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.merge import FRONTEND_FIELDS, build_conversation_args
from shim.core.claude.control_responses import build_control_error, build_control_response_line
from shim.core.claude.hooks.callbacks import HookCallbacks, HookEvent
from shim.core.claude.hooks.commands import (
    RUN_EVENTS,
    HookCommandCall,
    HookCommandResult,
    parse_hook_result,
    select_hooks,
)
from shim.core.claude.messages import parse_json_line
from shim.core.claude.usage import NO_USAGE, parse_dollars, parse_usage
from shim.core.policy import (
    AGENT_EVENTS,
    AGENT_START_EVENT,
    AGENT_STOP_EVENT,
    PRE_TOOL_EVENT,
    PROMPT_EVENT,
    STOP_EVENT,
)
from shim.core.policy.policy import (
    ANSWER_SOURCE,
    FLAGS_SOURCE,
    MCP_PREFIX,
    Policy,
    Workspace,
    parse_permission_rule,
)
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, as_str, get_text

ContentBlock = Mapping[str, Any]
MAX_OPEN_REQUESTS = 1000  # the limit for all runs together; a run waits for each answer
# The events of a run for which the frontend's callbacks are called.
CALLBACK_EVENTS = (PRE_TOOL_EVENT, *RUN_EVENTS)
# The session's flags that are not passed to a run: its agents, and its output for other programs.
SESSION_FLAGS = ("--agents", "--agent", "--session-mirror", "--include-hook-events")
REPLY_KINDS = ("text", "thinking", "tool_use")
RESULT_KINDS = ("tool_result",)
# The session's events about subagents, by the event of the run that calls their hooks.
SESSION_EVENT_BY_RUN_EVENT = {PROMPT_EVENT: AGENT_START_EVENT, STOP_EVENT: AGENT_STOP_EVENT}
# The members of a SubagentStart hook's input, besides those that identify the agent.
START_KEYS = ("session_id", "transcript_path", "cwd", "prompt_id")
# The prefix of the callback ids by which a run calls the hook commands of the session's settings.
COMMAND_ID_PREFIX = "settings-hook-"
INITIALIZE_ID, RULES_ID = "agent-initialize", "agent-rules"
NO_RESULT_TEXT = "The agent ended without a result."
# Fields of the session's command line that are not passed to a run.
EXCLUDED_FIELDS = FRONTEND_FIELDS | {
    *("shim_record", "shim_dialect", "json_schema", "no_session_persistence")
}
STREAM_ARGS = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--no-session-persistence", "--shim-dialect", "claude"),
)


class AgentSession(NamedTuple):
    """The state of the session in which an agent is started.

    hooks             the `hooks` of the frontend's `initialize` request
    sdk_server_names  the MCP servers in the frontend's process
    mcp_server_names  all MCP servers of the frontend
    private_servers   the MCP servers of the frontend's `initialize` request
    event_hooks       the hook commands of the session's settings files
    """

    invocation: Invocation
    vendor: str
    mode: str
    model: str | None
    effort: str | None
    answers_prompts: bool
    policy: Policy | None
    hooks: Mapping[str, Any]
    sdk_server_names: tuple[str, ...]
    mcp_server_names: tuple[str, ...]
    private_servers: Mapping[str, Any]
    session_id: str = ""
    transcript_path: str = ""
    prompt_id: str = ""  # identifies the message that the session answers
    event_hooks: tuple[SettingsHook, ...] = ()


def build_agent_args(agent: AgentDefinition, session: AgentSession) -> list[str]:
    """Return the command line of an agent's run, without the program."""
    invocation = session.invocation
    model = session.model
    if agent.model not in (None, INHERITED_MODEL):
        model = agent.model
    other_flags = tuple(pair for pair in invocation.other_flags if pair[0] not in SESSION_FLAGS)
    add_dirs = invocation.add_dirs
    if session.policy is not None:
        add_dirs = tuple(dict.fromkeys((*add_dirs, *session.policy.workspace.directories)))
    invocation = invocation._replace(
        prompt=None,
        shim_vendor=session.vendor,
        model=model,
        effort=session.effort,
        permission_mode=session.mode,
        skip_permissions=False,
        allow_skip_permissions=False,
        system_prompt=agent.prompt or None,
        system_prompt_file=None,
        append_system_prompt=None,
        append_system_prompt_file=None,
        max_turns=agent.max_turns,
        tools=_choose_tools(agent, invocation),
        disallowed_tools=(
            *invocation.disallowed_tools,
            *agent.disallowed_tools,
            *_list_denied_servers(agent, session),
        ),
        allowed_tools=(*invocation.allowed_tools, *_list_session_rules(session.policy)),
        add_dirs=add_dirs,
        other_flags=other_flags,
    )
    args = [*STREAM_ARGS, *build_conversation_args(invocation, EXCLUDED_FIELDS)]
    if session.answers_prompts:
        args += ["--permission-prompt-tool", "stdio"]
    return args


def _choose_tools(agent: AgentDefinition, invocation: Invocation) -> tuple[str, ...] | None:
    """Return the tools of a run: the tools that both the agent and the session allow."""
    if agent.tools is None:
        return invocation.tools
    names = [parse_permission_rule(rule).tool for rule in agent.tools]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if not name.startswith(MCP_PREFIX)
        and (invocation.tools is None or name in invocation.tools)
    )


def _list_denied_servers(agent: AgentDefinition, session: AgentSession) -> list[str]:
    """Return deny rules for the MCP servers whose tools are missing in the agent's list of tools."""
    if agent.tools is None:
        return []
    named = {rule.removeprefix(MCP_PREFIX).partition("__")[0] for rule in agent.tools}
    return [f"{MCP_PREFIX}{name}" for name in session.mcp_server_names if name not in named]


def _list_session_rules(policy: Policy | None) -> list[str]:
    """Return the allow rules that were added during the session."""
    if policy is None:
        return []
    return [str(rule) for rule in policy.allow if rule.source == ANSWER_SOURCE]


class AgentRun:
    """The lines of one run, and its result.

    agent_id     identifies the run in permission prompts
    has_ended    the run has a result, or it was stopped
    result_text  the agent's last message, or the reason why there is none
    usage        the tokens of the complete run; `cost_usd` also covers the complete run
    """

    def __init__(
        self,
        agent_id: str,
        agent_name: str,
        prompt: str,
        session: AgentSession,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when lines for the run are queued, and when the run has ended."""
        self.agent_id = agent_id
        self.has_ended = False
        self.result_text = NO_RESULT_TEXT
        self.is_error = True
        self._agent_name = agent_name
        self._prompt = prompt
        self._session = session
        self._on_change = on_change
        self.usage = NO_USAGE
        self.cost_usd = 0.0
        self._lines: list[bytes] = []
        self._command_hooks: dict[str, SettingsHook] = {}  # by the run's callback id
        self._hook_calls: list[HookCommandCall] = []

    def take_lines(self) -> bytes:
        """Remove and return the lines for the run's stdin."""
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def queue_line(self, line: Mapping[str, Any]) -> None:
        self._lines.append(dump_json(line) + b"\n")
        self._on_change()

    def end(self, text: str, *, is_error: bool = True) -> None:
        """End the run with a result. If the run already has a result, do nothing."""
        if not self.has_ended:
            self.has_ended = True
            self.result_text = text
            self.is_error = is_error
            self._on_change()

    def add_agent_fields(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return one of the run's control requests with the agent's id added. A hook's input also
        gets the session's id and the path of its transcript.
        """
        if request.get("subtype") == "can_use_tool":
            return {**request, "agent_id": self.agent_id}
        if request.get("subtype") != "hook_callback":
            return request
        hook_input = {
            **as_dict(request.get("input")),
            "session_id": self._session.session_id,
            "transcript_path": self._session.transcript_path,
        }
        if self._session.prompt_id:
            hook_input["prompt_id"] = self._session.prompt_id
        event = as_str(hook_input.get("hook_event_name"))
        session_event = SESSION_EVENT_BY_RUN_EVENT.get(event, event)
        if session_event == AGENT_START_EVENT:
            hook_input = {key: hook_input[key] for key in START_KEYS if key in hook_input}
        elif session_event == AGENT_STOP_EVENT:
            hook_input["agent_transcript_path"] = ""
        agent = {"agent_id": self.agent_id, "agent_type": self._agent_name}
        return {**request, "input": {**hook_input, **agent, "hook_event_name": session_event}}

    def _select_hooks(self) -> dict[str, Any]:
        """Return the session's hooks that the run calls, by the run's events."""
        hooks = self._session.hooks
        selected = {event: hooks[event] for event in CALLBACK_EVENTS if event in hooks}
        callbacks = HookCallbacks(hooks)
        for run_event, session_event in SESSION_EVENT_BY_RUN_EVENT.items():
            event = HookEvent(session_event, trigger=self._agent_name)
            callback_ids = [
                *callbacks.list_callback_ids(event),
                *self._register_command_hooks(event),
            ]
            if callback_ids:
                selected[run_event] = [{"hookCallbackIds": callback_ids}]
        return selected

    def _register_command_hooks(self, event: HookEvent) -> list[str]:
        """Return callback ids for the hook commands that must run for an event of this agent."""
        hooks = select_hooks(self._session.event_hooks, event, Workspace(""))
        start = len(self._command_hooks)
        ids = [f"{COMMAND_ID_PREFIX}{start + number}" for number in range(len(hooks))]
        self._command_hooks |= dict(zip(ids, hooks, strict=True))
        return ids

    def take_hook_calls(self) -> list[HookCommandCall]:
        """Return the hook commands that must run now, and remove them."""
        calls = self._hook_calls
        self._hook_calls = []
        return calls

    def accept_hook_result(self, call: HookCommandCall, result: HookCommandResult) -> None:
        """Answer the run's request with the result of a hook command."""
        answer = parse_hook_result(call.hook, call.event, result)
        response = {"subtype": "success", "response": answer.output}
        self.answer_request(call.call_id, response, call.event.name)

    def answer_request(
        self, request_id: object, response: Mapping[str, Any], hook_event: str
    ) -> None:
        """Answer one of the run's control requests. `hook_event` is the session's event if the
        request calls a hook, otherwise "".
        """
        answer = rename_answered_event(response, hook_event)
        self.queue_line(build_control_response_line({**answer, "request_id": request_id}))

    def start(self) -> None:
        """Queue the lines that start the run."""
        session = self._session
        request: dict[str, Any] = {"subtype": "initialize"}
        if hooks := self._select_hooks():
            request["hooks"] = hooks
        if session.sdk_server_names:
            request["sdkMcpServers"] = list(session.sdk_server_names)
        if session.private_servers:
            request["mcpServers"] = session.private_servers
        self._queue_request(INITIALIZE_ID, request)
        if session.policy is not None:
            rules = {
                outcome: [
                    str(rule) for rule in rules if rule.source in (FLAGS_SOURCE, ANSWER_SOURCE)
                ]
                for outcome, rules in (("deny", session.policy.deny), ("ask", session.policy.ask))
            }
            if any(rules.values()):
                settings = {"permissions": rules}
                self._queue_request(
                    RULES_ID, {"subtype": "apply_flag_settings", "settings": settings}
                )
        message = {"role": "user", "content": self._prompt}
        self.queue_line({"type": "user", "message": message, "parent_tool_use_id": None})

    def _queue_request(self, request_id: str, request: Mapping[str, Any]) -> None:
        self.queue_line({"type": "control_request", "request_id": request_id, "request": request})

    def receive_line(self, line: bytes, requests: "AgentRequests") -> list[ContentBlock]:
        """Process one line of the run's stdout. Return its content blocks for the frontend."""
        event = as_dict(parse_json_line(line))
        kind = event.get("type")
        if kind in ("assistant", "user"):
            return _list_blocks(event)
        if kind == "control_request":
            hook = self._command_hooks.get(as_str(as_dict(event.get("request")).get("callback_id")))
            if hook is None:
                requests.forward_request(self, event)
            else:
                self._add_hook_call(hook, event)
        elif kind == "control_cancel_request":
            requests.forward_cancellation(self, event)
        elif kind == "control_response":
            self._check_response(as_dict(event.get("response")))
        elif kind == "result":
            self._accept_result(event)
        return []

    def _add_hook_call(self, hook: SettingsHook, request_line: Mapping[str, Any]) -> None:
        request = self.add_agent_fields(as_dict(request_line.get("request")))
        stdin = dump_json(request["input"]) + b"\n"
        request_id = as_str(request_line.get("request_id"))
        self._hook_calls.append(HookCommandCall(hook, HookEvent(hook.event), stdin, request_id))

    def _check_response(self, response: Mapping[str, Any]) -> None:
        """End the run if it refuses a control request, because it must not continue without the
        session's hooks and rules.
        """
        if response.get("subtype") == "error":
            self.end(f"The agent was not started: {response.get('error')}")

    def _accept_result(self, event: Mapping[str, Any]) -> None:
        errors = "\n".join(filter(None, map(as_str, as_list(event.get("errors")))))
        self.usage = parse_usage(event.get("usage"))
        self.cost_usd = parse_dollars(event.get("total_cost_usd"))
        self.end(
            get_text(event, "result", errors or NO_RESULT_TEXT),
            is_error=bool(event.get("is_error")),
        )


def _list_blocks(line: Mapping[str, Any]) -> list[ContentBlock]:
    """Return the content blocks in an assistant or user line of a run that are shown to the
    frontend. The prompt and the lines of nested subagents are left out.
    """
    if line.get("parent_tool_use_id") is not None:
        return []
    kinds = RESULT_KINDS if line.get("type") == "user" else REPLY_KINDS
    content = as_dict(line.get("message")).get("content")
    return [block for block in map(as_dict, as_list(content)) if block.get("type") in kinds]


def rename_answered_event(response: Mapping[str, Any], session_event: str) -> Mapping[str, Any]:
    """Return a frontend's response in the form that a subagent's run accepts.

    The response of a SubagentStart or SubagentStop hook is converted to a response to the run's
    UserPromptSubmit or Stop event. A SubagentStart hook can only add context.
    """
    if session_event not in AGENT_EVENTS:
        return response
    answer = as_dict(response.get("response"))
    output = as_dict(answer.get("hookSpecificOutput"))
    if output.get("hookEventName") != session_event:
        output = {}
    if session_event == AGENT_START_EVENT:
        answer = {}
        if output:
            context = output.get("additionalContext")
            output = {"hookEventName": PROMPT_EVENT, "additionalContext": context}
    elif output:
        output = {**output, "hookEventName": STOP_EVENT}
    return {**response, "response": {**answer, "hookSpecificOutput": output}}


class AgentRequests:
    """The running subagents, and their control requests that wait for the frontend's answers."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self.runs: list[AgentRun] = []
        # id → the run, the run's own id of the request, and the event of a hook
        self._open: dict[str, tuple[AgentRun, object, str]] = {}
        self._lines: list[bytes] = []
        self._request_count = 0

    def take_lines(self) -> list[bytes]:
        """Remove and return the lines for the frontend."""
        lines = self._lines
        self._lines = []
        return lines

    def stop_runs(self, reason: str) -> None:
        """Stop all runs, because their turn has ended."""
        for run in self.runs:
            run.end(reason)

    def forward_request(self, run: AgentRun, event: Mapping[str, Any]) -> None:
        """Send a run's control request to the frontend under a new id."""
        request = run.add_agent_fields(as_dict(event.get("request")))
        hook_event = as_str(as_dict(request.get("input")).get("hook_event_name"))
        self._request_count += 1
        request_id = f"agent-{self._request_count}"
        line = {"type": "control_request", "request_id": request_id, "request": request}
        data = dump_json(line) + b"\n"
        if len(data) > self._max_line_bytes or len(self._open) >= MAX_OPEN_REQUESTS:
            run_request_id = event.get("request_id")
            response = build_control_error(
                run_request_id, "the request cannot be sent to the frontend"
            )
            run.answer_request(run_request_id, response, hook_event)
            return
        self._open[request_id] = run, event.get("request_id"), hook_event
        self._lines.append(data)

    def forward_cancellation(self, run: AgentRun, event: Mapping[str, Any]) -> None:
        """Withdraw a run's request from the frontend."""
        for request_id, (owner, run_request_id, _) in [*self._open.items()]:
            if owner is run and run_request_id == event.get("request_id"):
                self._withdraw(request_id)

    def accept_frontend_response(self, request_id: str, response: Mapping[str, Any]) -> bool:
        """Pass a frontend's answer to the run that sent the request. Return whether the request was
        sent by a run.
        """
        entry = self._open.pop(request_id, None)
        if entry is None:
            return False
        run, run_request_id, hook_event = entry
        run.answer_request(run_request_id, response, hook_event)
        return True

    def remove_run(self, run: AgentRun) -> None:
        """Remove a run that has ended, and withdraw its open requests."""
        self.runs = [other for other in self.runs if other is not run]
        for request_id, (owner, _, _) in [*self._open.items()]:
            if owner is run:
                self._withdraw(request_id)

    def _withdraw(self, request_id: str) -> None:
        del self._open[request_id]
        line = {"type": "control_cancel_request", "request_id": request_id}
        self._lines.append(dump_json(line) + b"\n")

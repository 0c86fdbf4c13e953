"""Builds the session state from the command line: models, permission mode and MCP servers."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

from shim.adapters import VENDORS, get_adapter
from shim.conversation.drivers.context import (
    ConversationContext,
    list_known_models,
    resolve_vendor_model,
)
from shim.conversation.plan import (
    MIRROR_FLAG,
    ConversationPlan,
    RunMode,
    can_prompt_frontend,
    has_session_store,
)
from shim.conversation.vendor_list import FallbackVendorList
from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import OfferedModel, check_model_name, resolve_model_name
from shim.core.claude.session_state import SessionOptions, SessionState, VendorCapabilities
from shim.core.policy.policy import BYPASS_MODE, Policy, UnsupportedRule
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.io.stderr import warn
from shim.state.claude_settings import load_claude_settings, load_setting_sources

if TYPE_CHECKING:
    from shim.core.claude.agent_definitions import AgentDefinitions
    from shim.core.claude.command_files import CommandFiles
    from shim.core.claude.offered_commands import OfferedCommand
    from shim.core.policy.settings_hooks import SettingsHook

DISABLE_COMMANDS_FLAG = "--disable-slash-commands"
HOOK_EVENTS_FLAG = "--include-hook-events"


def build_session_state(
    context: ConversationContext,
    plan: ConversationPlan,
    policy: Policy,
    *,
    mode: str,
    session_id: str,
    name: str,
    servers: Mapping[str, Any],
    agents: "AgentDefinitions",
    vendor_list: FallbackVendorList,
    keeps_session_id: bool = False,
) -> SessionState:
    """Return the session state for the first vendor of `vendor_list`.

    `name` is the vendor's name in a replayed recording. `servers` are the MCP servers from the
    command line. `agents` are the subagents from the command line and from Claude's files. Another
    vendor of the list may serve the session later.
    """
    invocation = context.invocation
    options = _build_session_options(
        context,
        plan,
        vendor_list,
        lambda: state,
        mode=mode,
        session_id=session_id,
        keeps_session_id=keeps_session_id,
    )
    state = SessionState(
        options,
        build_vendor_capabilities(plan.adapter, name=name, persistent=plan.persistent),
        mode=mode,
        model=invocation.model,
        effort=invocation.effort,
        answers_prompts=plan.asks_frontend,
        policy=policy,
    )
    _add_mcp_servers(state, invocation, servers)
    if not plan.adapter.passthrough:
        _report_ignored_flags(state, invocation, plan)
        _report_excluded_commands(state, context, plan)
    _add_agents(state, plan, agents)
    return state


def _build_session_options(
    context: ConversationContext,
    plan: ConversationPlan,
    vendor_list: FallbackVendorList,
    get_state: Callable[[], SessionState],
    *,
    mode: str,
    session_id: str,
    keeps_session_id: bool,
) -> SessionOptions:
    """Return the options of a session. `get_state` returns the session's state, whose vendor and
    session id may change. The state is created after its options, so it is only read later.
    """
    invocation = context.invocation
    settings = context.settings
    started_at = time.monotonic()
    return SessionOptions(
        session_id,
        context.cwd,
        os.getpid(),
        allows_bypass=invocation.skip_permissions
        or invocation.allow_skip_permissions
        or mode == BYPASS_MODE,
        state_events=resolve_session_state_event_visibility(context.environment),
        echoes_messages=invocation.replay_user_messages,
        max_line_bytes=settings.max_line_bytes,
        validate_model=lambda model: _resolve_model(model, get_state().vendor.display_name),
        map_model=lambda model: resolve_vendor_model(
            model, _find_adapter(plan, get_state().vendor.display_name), settings
        ),
        list_models=lambda: _list_models(context, plan, vendor_list, get_state()),
        elapsed_ms=lambda: int((time.monotonic() - started_at) * 1000),
        output_style=context.claude_settings.output_style or SessionOptions("").output_style,
        find_transcript=lambda: _find_transcript(context, plan, get_state()),
        claude_settings=context.claude_settings,
        load_setting_sources=lambda: load_setting_sources(
            invocation, context.environment, context.cwd
        ),
        read_file=_read_regular_file,
        load_settings=lambda: load_claude_settings(invocation, context.environment, context.cwd),
        keeps_session_id=keeps_session_id,
        answers_commands=plan.answers_commands,
        has_commands=not any(name == DISABLE_COMMANDS_FLAG for name, _ in invocation.other_flags),
        load_commands=lambda: _load_commands(context, plan),
        load_vendor_commands=lambda: _load_vendor_commands(context, plan, get_state()),
        start_trigger=_find_start_trigger(invocation),
        shows_hook_events=any(name == HOOK_EVENTS_FLAG for name, _ in invocation.other_flags),
        event_hooks=list_event_hooks(context),
    )


def _find_adapter(plan: ConversationPlan, vendor_name: str) -> Adapter:
    """Return the adapter of a vendor. The name may be that of a replayed recording."""
    if vendor_name == plan.adapter.display_name or vendor_name not in VENDORS:
        return plan.adapter
    return get_adapter(vendor_name, without_passthrough=True)


def _list_models(
    context: ConversationContext,
    plan: ConversationPlan,
    vendor_list: FallbackVendorList,
    state: SessionState,
) -> Sequence[OfferedModel]:
    """Return the models that the session's vendor offers."""
    vendor_name = state.vendor.display_name
    adapter = _find_adapter(plan, vendor_name)
    environment = vendor_list.build_environment(vendor_name)
    return list_known_models(adapter, context.settings, environment, context.cwd)


def _load_vendor_commands(
    context: ConversationContext, plan: ConversationPlan, state: SessionState
) -> "tuple[OfferedCommand, ...]":
    """Return the commands of the session's vendor."""
    from shim.state.stored_commands import load_offered_commands

    adapter = _find_adapter(plan, state.vendor.display_name)
    return load_offered_commands(adapter.name, context.environment, context.cwd)


def _find_transcript(
    context: ConversationContext, plan: ConversationPlan, state: SessionState
) -> str:
    """Return the path of the session's transcript, or "" if none is written."""
    if not plan.keeps_transcript:
        return ""
    from shim.io.transcript import build_transcript_path

    return build_transcript_path(context.environment, context.cwd, state.options.session_id)


def build_vendor_capabilities(
    adapter: Adapter, *, name: str = "", persistent: bool
) -> VendorCapabilities:
    """Return the vendor capabilities that are reported to the frontend. `persistent` means that one
    child serves the whole conversation.
    """
    bypass_request = LaunchRequest(
        Invocation(), "", permission_mode=BYPASS_MODE, persistent=persistent
    )
    display_name = name
    if not display_name:
        display_name = adapter.display_name
    applies_rules = adapter.policy_support.has_native_rules
    if adapter.cli.replayed_vendor:
        applies_rules = True
    return VendorCapabilities(
        display_name,
        tuple(adapter.modes),
        asks_permissions=persistent,
        asks_in_bypass_mode=persistent and bool(adapter.list_prompted_tools(bypass_request)),
        never_asks=adapter.unattended,
        accepts_effort=adapter.abilities.accepts_effort,
        asks_for_all=applies_rules,
        accepts_mcp_servers=adapter.abilities.accepts_mcp_servers,
        has_auto_mode=adapter.abilities.has_auto_mode and "auto" in adapter.modes,
        agents_error=_explain_missing_agents(adapter),
        runs_settings_hooks=applies_rules,
    )


def _explain_missing_agents(adapter: Adapter) -> str:
    """Return why the vendor cannot run the subagents that a frontend defines, or ""."""
    if adapter.passthrough:
        return ""
    if adapter.cli.replayed_vendor:
        return "a recording is replayed"
    if not adapter.abilities.accepts_mcp_servers:
        return f"{adapter.name} does not support MCP servers in this mode, which agents require"
    if not adapter.abilities.accepts_command_servers:
        return f"{adapter.name} does not support MCP servers that run as a command (stdio), which agents need"
    return ""


def _find_start_trigger(invocation: Invocation) -> str:
    """Return how the session starts, for the SessionStart hooks."""
    if not (invocation.resume or invocation.continue_last):
        return "startup"
    if invocation.fork_session:
        return "fork"
    return "resume"


def list_event_hooks(context: ConversationContext) -> "tuple[SettingsHook, ...]":
    """Return the hooks in Claude's settings files that the session runs, except those before a tool
    call. A subagent's run has no hooks of the session.
    """
    hooks = context.claude_settings.event_hooks
    if not hooks:
        return ()
    from shim.core.claude.hooks.commands import RUN_EVENTS
    from shim.state.claude_agents import AGENT_RUN_VARIABLE, FILELESS_FLAGS

    if not FILELESS_FLAGS.isdisjoint(name for name, _ in context.invocation.other_flags):
        return ()
    if context.environment.get(AGENT_RUN_VARIABLE):
        return tuple(hook for hook in hooks if hook.event in RUN_EVENTS)
    return hooks


def _load_commands(context: ConversationContext, plan: ConversationPlan) -> "CommandFiles":
    """Load Claude's command files. Load none if another program expands commands, or if a recording
    is replayed, because a replay must not run shell code.
    """
    adapter = plan.adapter
    if adapter.passthrough or adapter.cli.replayed_vendor or not plan.answers_commands:
        return ()
    from shim.state.claude_commands import load_command_files

    return load_command_files(context.invocation, context.environment, context.cwd)


def _report_ignored_flags(
    state: SessionState, invocation: Invocation, plan: ConversationPlan
) -> None:
    """Warn about flags that only the real claude applies."""
    thinking_flags = (
        ("--thinking", invocation.thinking),
        ("--max-thinking-tokens", invocation.max_thinking_tokens),
    )
    flags = (
        *invocation.other_flags,
        *((name, value) for name, value in thinking_flags if value is not None),
    )
    names_ignored_tool = invocation.permission_prompt_tool not in (None, "stdio") or any(
        rule.startswith("Skill") for rule in invocation.allowed_tools
    )
    if not (flags or invocation.unknown_flags or names_ignored_tool):
        return
    from shim.core.claude.ignored_options import (
        format_ignored_option,
        list_ignored_flags,
        list_ignored_tools,
        list_unknown_flags,
    )

    state.ignored_options = list_ignored_flags(flags)
    state.ignored_options += list_ignored_tools(
        invocation.allowed_tools, invocation.permission_prompt_tool
    )
    if has_session_store(invocation) and not plan.keeps_transcript:
        state.ignored_options += _list_ignored_session_store(invocation, plan)
    for option in state.ignored_options:
        warn(format_ignored_option(option))
    # The warning about unknown flags was printed when the command line was checked.
    state.ignored_options += list_unknown_flags(name for name, _ in invocation.unknown_flags)


def _report_excluded_commands(
    state: SessionState, context: ConversationContext, plan: ConversationPlan
) -> None:
    """Warn if the vendor itself reads commands that a flag excludes."""
    adapter = plan.adapter
    if not adapter.session_traits.reads_project_commands or adapter.cli.replayed_vendor:
        return
    from shim.state.claude_commands import find_excluded_commands

    excluded = find_excluded_commands(context.invocation, context.environment, context.cwd)
    if excluded is None:
        return
    from shim.core.claude.ignored_options import FLAGS_SOURCE, format_ignored_option

    flag, path = excluded
    reason = f"{adapter.name} itself reads {path}"
    option = UnsupportedRule(f"{flag} for commands and skills", FLAGS_SOURCE, reason)
    state.ignored_options = (*state.ignored_options, option)
    warn(format_ignored_option(option))


def _list_ignored_session_store(
    invocation: Invocation, plan: ConversationPlan
) -> tuple[UnsupportedRule, ...]:
    """Return an entry that tells why the frontend's session store stays empty. Return no entry if
    the real claude would not fill the store either.
    """
    from shim.core.claude.ignored_options import FLAGS_SOURCE

    if invocation.no_session_persistence:
        return ()
    cause = "a list of vendors with the real claude has no transcript"
    if not plan.request.settings.transcripts:
        cause = "transcripts = false in config.toml"
    reason = f"the session store stays empty ({cause})"
    return (UnsupportedRule(MIRROR_FLAG, FLAGS_SOURCE, reason),)


def load_mcp_servers(invocation: Invocation, cwd: str) -> Mapping[str, Any]:
    """Load the MCP servers from the command line, as a dict of configurations by server name. Raise
    CliArgumentError for a value that defines no servers.
    """
    if not invocation.mcp_config:
        return {}
    from shim.io.mcp.configs import load_mcp_configs

    return load_mcp_configs(invocation.mcp_config, cwd)


def _add_mcp_servers(
    state: SessionState, invocation: Invocation, servers: Mapping[str, Any]
) -> None:
    """Add MCP servers to the session. Servers in the frontend's process can only be reached through
    stdin.
    """
    sdk_names = [
        name
        for name, config in servers.items()
        if isinstance(config, dict) and config.get("type") == "sdk"
    ]
    state.configured_servers = {
        name: config for name, config in servers.items() if name not in sdk_names
    }
    if not sdk_names:
        return
    if invocation.input_format == "stream-json" or can_prompt_frontend(invocation):
        state.add_sdk_mcp_servers(sdk_names)
    else:
        warn(
            "MCP servers of type sdk have no effect without --input-format stream-json: "
            f"{', '.join(sdk_names)}\n"
        )


def _add_agents(state: SessionState, plan: ConversationPlan, agents: "AgentDefinitions") -> None:
    """Add the subagents from Claude's files and from `--agents`. Warn if they have no effect."""
    if plan.run_mode is RunMode.ONE_SHOT and not state.vendor.agents_error:
        reason = f"{plan.adapter.name} supports agents only in conversations"
        state.vendor = state.vendor._replace(agents_error=reason)
    state.agents = agents
    if agents and state.vendor.agents_error:
        names = ", ".join(agents)
        warn(f"these agents have no effect: {names}: {state.vendor.agents_error}\n")


def resolve_session_state_event_visibility(environment: Mapping[str, str]) -> str:
    """Return who receives session state events: "visible", "host", or "" for nobody (contract
    5.13).
    """
    if environment.get("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS") == "1":
        return "visible"
    if environment.get("CLAUDE_CODE_SDK_READS_SESSION_STATE") == "1":
        return "host"
    return ""


def _resolve_model(model: str, vendor_name: str) -> str | None:
    """Return the model for the rest of the conversation. Raise ValueError for another vendor's
    model, and for a value that looks like a flag.
    """
    resolved = resolve_model_name(model, vendor_name, VENDORS)
    if resolved is not None:
        check_model_name(resolved)
    return resolved


def _read_regular_file(path: str, max_bytes: int) -> bytes:
    """Return at most `max_bytes` from the start of a regular file. Raise OSError if there is no
    such file.
    """
    from shim.state.files import open_regular_file

    with open(open_regular_file(path), "rb") as file:
        return file.read(max_bytes)

"""Implements `--shim-explain` and `shim explain`, which show what child process a command line
would start, and why. No process is started.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from shim.bridge.attach.conversation import plan_background_conversation
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan
from shim.conversation.plan import PASSTHROUGH_DRIVER
from shim.conversation.startup import ConversationStartup, PlannedChildLaunch, prepare_conversation
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.enforcement import is_rule_enforced, list_unsupported_rules
from shim.core.claude.argv.flags import Invocation, parse_argv
from shim.core.errors import ShimError, UntrustedVendorVersionError
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.policy.policy import PermissionRule
from shim.core.policy.settings_hooks import SettingsHook
from shim.core.reading.values import (
    escape_control_chars,
    none_if_empty,
    shorten_end,
    shorten_session_id,
)
from shim.core.secrets.redactor import Redactor, redact_argv
from shim.process.environment import parse_extra_args
from shim.process.probe import find_cached_version
from shim.state import config
from shim.state.claude_settings import list_claude_settings_paths

REDACTED_VALUE = "[REDACTED:variable]"
# Environment variables with these words in their names are treated as secret.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
BUNDLED_SOURCE = "the shim itself"
MAX_FILE_CHARS = 4000  # characters that are shown of each file for the child
MAX_ARGUMENT_CHARS = 300  # shown per argument
TITLE_COLUMNS = 12  # the width of the title column


def explain_turn(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The arguments of claude, after --.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what `claude ARGS` would start, and why.

    Nothing is started, not even to ask the vendor for its --help or its version.

    Example: shim explain -- -p hi --permission-mode plan
    """
    from shim.process.install import load_installed_dropin_options

    argv = args or []
    installed_options = load_installed_dropin_options()
    explanation = build_invocation_explanation(
        parse_argv(argv, dialect=installed_options.get("dialect", "claude")), installed_options
    )
    sys.stdout.write(
        json.dumps(explanation, indent=2) + "\n"
        if as_json
        else format_invocation_explanation(explanation)
    )
    raise typer.Exit(1 if explanation["refused"] else 0)


def explain_invocation_with_exit_status(
    invocation: Invocation, installed_options: Mapping[str, str]
) -> tuple[str, int]:
    """Return the explanation for `--shim-explain` with the exit status. The status is 1 if the turn
    would be refused.
    """
    explanation = build_invocation_explanation(invocation, installed_options)
    return format_invocation_explanation(explanation), int(explanation["refused"] is not None)


def build_invocation_explanation(
    invocation: Invocation, installed_options: Mapping[str, str]
) -> dict[str, Any]:
    """Build the explanation of the first child process as a JSON object. `refused` is the reason if
    the turn would be refused. `background` is "new" or the id of a running session if the turn would
    run in a background session. A running session has a child already, which is not described.
    """
    explanation: dict[str, Any] = {"refused": None, "hint": None, "settings": {}}
    try:
        explanation["settings"] = _collect_settings(invocation, installed_options)
        startup, explanation["background"] = _plan_conversation(invocation, installed_options)
        if startup is None:
            return explanation
        explanation |= _describe_vendor(startup)
        explanation["settings"]["record"] = config.resolve_recording_path(
            invocation, os.environ, installed_options, startup.settings
        )
        if not startup.adapter.passthrough:  # the real claude reads these files itself
            explanation["settings"]["claude"] = list_claude_settings_paths(
                startup.invocation, startup.environment, startup.cwd
            )
        explanation |= _describe_child(startup, startup.plan_first_child_launch())
    except ShimError as error:
        explanation |= {"refused": str(error), "hint": none_if_empty(error.hint)}
        if isinstance(error, UntrustedVendorVersionError):
            explanation["distrust"] = error.distrust_reason
    return explanation


def _plan_conversation(
    invocation: Invocation, installed_options: Mapping[str, str]
) -> tuple[ConversationStartup | None, str]:
    """Return the plan of the conversation, and its background session: "" if this process runs the
    conversation, "new" if it starts a host, or the id of a running session. A running session has no
    plan.
    """
    settings = config.load_shim_settings(invocation, os.environ, installed_options)
    background = plan_background_conversation(invocation, settings, installed_options, ())
    if background is None:
        startup = prepare_conversation(invocation, installed_options, launcher_class=DryRunLauncher)
        return startup, ""
    if background.running_session is not None:
        return None, background.running_session.session_id
    return background.plan_host(), "new"


# -- JSON ------------------------------------------------------------------------------------------


def _collect_settings(
    invocation: Invocation, installed_options: Mapping[str, str]
) -> dict[str, Any]:
    """Return the sources of the settings in order of precedence."""
    shim_flags = {
        f"--{name.replace('_', '-')}": value
        for name, value in invocation._asdict().items()
        if name.startswith("shim_") and name != "shim_explain" and value
    }
    variables = [
        name for name in sorted(os.environ) if name.removeprefix("CLAUDE_").startswith("SHIM_")
    ]
    path = config.get_shim_settings_path(invocation, os.environ)
    return {
        "flags": shim_flags,
        "environment": {name: _redact_variable(name, os.environ[name]) for name in variables},
        "installed": dict(installed_options),
        "file": path,
        "file_exists": os.path.exists(path),
        "claude": [],
        "record": "",
    }


def _describe_vendor(startup: ConversationStartup) -> dict[str, Any]:
    vendor = startup.adapter
    vendor_names = startup.resolved_vendors.names
    vendor_settings = startup.settings.get_vendor_settings(vendor.name)
    return {
        "vendor": vendor.display_name,
        "named_by": startup.resolved_vendors.source,
        "list": list(vendor_names) if len(vendor_names) > 1 else [],
        "passed_over": [candidate.to_json() for candidate in startup.vendor_list.skipped_attempts],
        "version": find_cached_version(vendor, vendor_settings, startup.environment, startup.cwd),
        "cwd": startup.cwd,
        "model": startup.invocation.model,
        "mode": startup.mode,
        "session": startup.resumed_id,
    }


def _describe_child(startup: ConversationStartup, planned: PlannedChildLaunch) -> dict[str, Any]:
    plan, child_launcher, child = planned
    assert isinstance(child_launcher, DryRunLauncher)
    request = child.request
    vendor = plan.adapter
    probe = child_launcher.program.last_probe
    return {
        "program_by": _find_program_source(startup, child_launcher),
        "help_known": probe is None or not probe.is_answer_missing,
        "argv": redact_argv(child.argv),
        "environment": _diff_environment(startup.environment, child.environment),
        "files": {
            path: Redactor().redact_text(text[:MAX_FILE_CHARS])
            for path, text in child_launcher.planned_files.items()
        },
        "stdin": "messages"
        if request.persistent
        else "the prompt"
        if child.launch.stdin
        else "nothing",
        "driver": plan.driver_name,
        "driver_why": plan.reason,
        "asks_frontend": plan.asks_frontend,
        "mode_arguments": list(request.mode_arguments),
        "unattended": vendor.unattended or bool(child_launcher.resume_state.version_check.distrust),
        "distrust": child_launcher.resume_state.version_check.distrust,
        "version_note": child_launcher.resume_state.version_check.note,
        "removed_tools": list(request.removed_tools),
        "rules": _describe_rules(startup, child_launcher, child),
        "no_effect": [line.strip() for line in vendor.list_ignored_flags(startup.invocation)],
    }


def _find_program_source(startup: ConversationStartup, child_launcher: ChildLauncher) -> str:
    """Return the setting or variable that names the vendor's program."""
    if child_launcher.context.environment.get("SHIM_BIN"):
        return "SHIM_BIN"
    if child_launcher.context.vendor_settings.bin:
        return f"[vendors.{startup.adapter.name}] bin"
    if startup.adapter.cli.bundled_module:
        return BUNDLED_SOURCE
    return "PATH"


def _describe_rules(
    startup: ConversationStartup, child_launcher: ChildLauncher, child: LaunchPlan
) -> list[dict[str, str]]:
    """Describe each permission rule with its source and how it is enforced."""
    vendor = child_launcher.adapter
    policy = child_launcher.policy
    request = child.request
    ineffective = {
        (item.what, item.source): item.reason
        for item in list_unsupported_rules(
            vendor, policy, request, startup.claude_settings.unsupported_keys
        )
    }

    def explain_restriction(rule: PermissionRule) -> str:
        if vendor.policy_support.has_native_rules:
            return f"enforced by {vendor.name}"
        is_removed = (
            vendor.abilities.can_limit_tools
            and rule.content is None
            and rule.tool in request.removed_tools
        )
        if is_removed or vendor.can_enforce_rule(rule, request) or vendor.accepts_rule(rule):
            return f"passed to {vendor.name} at start"
        if is_rule_enforced(vendor, rule, request):
            return "checked by the shim before each call"
        return "a call is stopped after the vendor has reported it; it may already have started (late_denials)"

    def explain_allowance(rule: PermissionRule) -> str:
        if reason := ineffective.pop((str(rule), rule.source), ""):
            return f"no effect: {reason}"
        return "matching calls are auto-approved"

    entries = [
        {"kind": kind, "rule": str(rule), "from": rule.source, "how": explain_rule(rule)}
        for kind, rules, explain_rule in (
            ("deny", policy.deny, explain_restriction),
            ("ask", policy.ask, explain_restriction),
            ("allow", policy.allow, explain_allowance),
        )
        for rule in rules
    ]
    entries += [
        {
            "kind": "hook",
            "rule": Redactor().redact_text(str(hook)),
            "from": hook.source,
            "how": _explain_hook(hook, vendor),
        }
        for hook in (*policy.hooks, *startup.claude_settings.event_hooks)
    ]
    if policy.only_tools is not None:
        tool_names = ", ".join(sorted(policy.only_tools)) or "none"
        entries.append(
            {"kind": "tools", "rule": tool_names, "from": "--tools", "how": "no other tools remain"}
        )
    return entries + [
        {"kind": "setting", "rule": setting, "from": source, "how": f"no effect: {reason}"}
        for (setting, source), reason in ineffective.items()
    ]


def _explain_hook(hook: SettingsHook, vendor: Adapter) -> str:
    """Return when a hook in Claude's settings files runs."""
    if vendor.policy_support.has_native_rules:
        return f"run by {vendor.name}"
    if hook.event == PRE_TOOL_EVENT:
        return "runs before each matching call"
    return f"runs at {hook.event}"


def _diff_environment(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables that are added to the child's environment, and the variables that are
    removed.
    """
    changed = {
        name: _redact_variable(name, value)
        for name, value in after.items()
        if before.get(name) != value
    }
    return {"set": dict(sorted(changed.items())), "removed": sorted(before.keys() - after.keys())}


def _redact_variable(name: str, value: str) -> str:
    """Return the value of an environment variable without secrets. SHIM_ARGS is redacted as a
    command line.
    """
    if name.endswith("SHIM_ARGS"):
        return shlex.join(redact_argv(parse_extra_args({"SHIM_ARGS": value})))
    if value and _SECRET_NAME.search(name):
        return REDACTED_VALUE
    return Redactor().redact_text(value)


# -- text ------------------------------------------------------------------------------------------


def format_invocation_explanation(explanation: Mapping[str, Any]) -> str:
    """Format the explanation as text. The text is the same on a terminal and in a pipe."""
    lines: list[str] = []
    if explanation["refused"]:
        lines += ["This turn would be refused:", "", explanation["refused"]]
        if explanation["hint"]:
            lines += [f"hint: {explanation['hint']}"]
    else:
        lines.append("This is what would be started. Nothing was started.")
    for title, texts in _list_sections(explanation):
        lines += [
            "",
            *(
                f"{title if not number else '':{TITLE_COLUMNS}}{text}"
                for number, text in enumerate(texts)
            ),
        ]
    return escape_control_chars("\n".join(lines) + "\n")


def _format_background(background: str) -> str:
    if background == "new":
        return "a new background session, because the bridge is enabled; it starts this child:"
    return f"the running background session {shorten_session_id(background)} receives the message"


def _list_sections(explanation: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    sections: list[tuple[str, Sequence[str]]] = []
    if explanation.get("background"):
        sections.append(("session", [_format_background(explanation["background"])]))
    if "vendor" in explanation:
        sections += [("vendor", _format_vendor(explanation)), ("cwd", [explanation["cwd"]])]
    if "argv" in explanation:
        sections += [
            ("driver", [_format_driver(explanation)]),
            ("mode", _format_mode(explanation)),
            ("rules", _format_rules(explanation)),
            ("command", _format_command(explanation)),
            ("stdin", [STDIN_TEXTS[explanation["stdin"]]]),
            ("environment", _format_environment(explanation["environment"])),
        ]
        for path, text in explanation["files"].items():
            sections.append(("file", [path, *(f"  {line}" for line in text.split("\n"))]))
        if explanation["no_effect"]:
            sections += [("no effect", explanation["no_effect"])]
    if explanation["settings"]:
        return [*sections, ("settings", _format_settings(explanation["settings"]))]
    return sections


DRIVER_TEXTS = {
    PASSTHROUGH_DRIVER: "pass-through: connected to the frontend directly",
    config.TWO_WAY: "two-way: one process for the conversation; permission rules answer the vendor's prompts",
    config.ONE_WAY: "one-way: one process per message, which cannot ask for permission",
}
STDIN_TEXTS = {
    "messages": "each message of the conversation",
    "the prompt": "the prompt",
    "nothing": "empty",
}


def _format_vendor(explanation: Mapping[str, Any]) -> list[str]:
    version = _describe_version(explanation)
    note = explanation.get("version_note", "")
    lines = [f"{explanation['vendor']} ({version}), chosen by {explanation['named_by']}"]
    if note:
        lines.append(f"the version is {note}")
    if explanation["list"]:
        lines.append(f"the first of {', '.join(explanation['list'])} that can start")
    lines += [
        f"{candidate['vendor']} is skipped: {candidate['reason']}"
        for candidate in explanation["passed_over"]
    ]
    lines.append(f"model: {explanation['model'] or 'the default of the vendor'}")
    return lines + (
        [f"session: resumes {explanation['session']}"] if explanation["session"] else []
    )


def _describe_version(explanation: Mapping[str, Any]) -> str:
    if explanation["version"]:
        return str(explanation["version"])
    if explanation.get("program_by") == BUNDLED_SOURCE:
        return "bundled"
    if explanation.get("distrust"):
        return "version not recognized"
    return "version not cached"


def _format_driver(explanation: Mapping[str, Any]) -> str:
    frontend_part = ""
    if explanation["asks_frontend"] and explanation["driver"] == config.TWO_WAY:
        frontend_part = " and by the frontend"
    return (
        DRIVER_TEXTS[explanation["driver"]]
        + frontend_part
        + (f" ({explanation['driver_why']})" if explanation["driver_why"] else "")
    )


def _format_environment(changes: Mapping[str, Any]) -> list[str]:
    lines = [f"+ {name}={value}" for name, value in changes["set"].items()]
    lines += [f"- {name}" for name in changes["removed"]]
    if not lines:
        return ["as ours"]
    return lines


def _format_mode(explanation: Mapping[str, Any]) -> list[str]:
    mode_args = shlex.join(explanation["mode_arguments"])
    lines = [
        f"{explanation['mode']}: {mode_args}"
        if mode_args
        else f"{explanation['mode']}: the mode needs no argument"
    ]
    if explanation["distrust"]:
        lines.append(
            f"{explanation['distrust']}; the vendor may run tools without asking (unattended)"
        )
    elif explanation["unattended"]:
        lines.append(f"{explanation['vendor']} runs its tools without asking for permission")
    return lines


def _format_rules(explanation: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{rule['kind']} {rule['rule']} ({rule['from']}): {rule['how']}"
        for rule in explanation["rules"]
    ]
    if explanation["removed_tools"]:
        lines.append(f"disabled tools: {', '.join(explanation['removed_tools'])}")
    if lines:
        return lines
    return ["none"]


def _format_command(explanation: Mapping[str, Any]) -> list[str]:
    """Format the program and each option with its values on separate lines that can be pasted into
    a shell.
    """
    argv = explanation["argv"]
    lines = [shlex.quote(argv[0])]
    for argument in argv[1:]:
        quoted = shlex.quote(shorten_end(argument, MAX_ARGUMENT_CHARS))
        if argument.startswith("-") or len(lines) == 1:
            lines.append(f"  {quoted}")
        else:
            lines[-1] += f" {quoted}"
    help_note = "; no --help is cached, so the newest version's flags are used"
    if explanation["help_known"]:
        help_note = ""
    return [
        f"found by {explanation['program_by']}{help_note}",
        *(f"{line} \\" for line in lines[:-1]),
        lines[-1],
    ]


def _format_settings(settings: Mapping[str, Any]) -> list[str]:
    lines: list[str] = [f"{name} {value}" for name, value in settings["flags"].items()]
    lines += [f"{name}={value}" for name, value in settings["environment"].items()]
    lines += [
        f"set by `shim install`: {name}={value}" for name, value in settings["installed"].items()
    ]
    lines.append(settings["file"] + ("" if settings["file_exists"] else " (not created)"))
    lines += settings["claude"]
    if settings["record"]:
        return [*lines, f"the run is recorded to {settings['record']}"]
    return lines

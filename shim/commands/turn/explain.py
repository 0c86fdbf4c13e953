"""`--shim-explain` and `shim explain`: which child a command line would start and why. Nothing is
started.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from shim.adapters import VENDORS, get_adapter
from shim.conversation.decide import ConversationStartup
from shim.conversation.drivers.dry_launcher import DryLauncher
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan
from shim.conversation.invocation import select_driver
from shim.core.adapter.allowances import list_unsupported_rules
from shim.core.adapter.binding import can_enforce_rule
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import parse_argv
from shim.core.errors import PromiseError, ShimError
from shim.core.policy.rules import Rule
from shim.core.reading.account import escape_control_chars
from shim.core.secrets.redactor import Redactor, redact_argv
from shim.process.environment import parse_extra_args
from shim.process.probe import find_cached_version
from shim.state import config
from shim.state.claude_settings import list_settings_files

REDACTED_VALUE = "[REDACTED:variable]"
# Names of variables whose values are secrets, whatever they look like.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
BUNDLED_SOURCE = "the shim itself"
MAX_FILE_CHARS = 4000  # of a file that the child would be given
MAX_ARGUMENT_CHARS = 300  # of one argument, in the text for a person
TITLE_COLUMNS = 12  # columns of the titles


def explain_turn(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The arguments of claude, after --.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what `claude ARGS` would start, and why.

    Nothing is started, not even to ask the vendor for its --help or its version.

    Example: shim explain -- -p hi --permission-mode plan
    """
    from shim.commands.turn.run import read_installed_settings

    arguments, installed = words or [], read_installed_settings()
    found = build_explanation(
        parse_argv(arguments, dialect=installed.get("dialect") or "claude"), installed
    )
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if as_json else format_explanation(found))
    raise typer.Exit(1 if found["refused"] else 0)


def explain_invocation(invocation: Invocation, installed: Mapping[str, str]) -> tuple[str, int]:
    """The explanation for `--shim-explain` and the exit status, which is 1 where the turn would be
    refused.
    """
    found = build_explanation(invocation, installed)
    return format_explanation(found), int(found["refused"] is not None)


def build_explanation(invocation: Invocation, installed: Mapping[str, str]) -> dict[str, Any]:
    """All that is known of the first child, as JSON. What a turn would be refused for stands under
    `refused`.
    """
    found: dict[str, Any] = {"refused": None, "hint": None, "settings": {}}
    try:
        found["settings"] = _collect_settings(invocation, installed)
        start = ConversationStartup(invocation, installed, launcher_class=DryLauncher)
        found |= _describe_vendor(start)
        found["settings"]["record"] = config.resolve_record_path(
            invocation, os.environ, installed, start.settings
        )
        if not start.adapter.passthrough:  # a real claude reads them itself
            found["settings"]["claude"] = list_settings_files(
                start.invocation, start.environment, start.cwd
            )
        launcher, plan = start.plan_first_child()
        assert isinstance(launcher, DryLauncher)
        found |= _describe_child(start, launcher, plan)
    except ShimError as error:
        found |= {"refused": str(error), "hint": error.hint or None}
        if isinstance(error, PromiseError):
            found["distrust"] = error.distrust_reason
    return found


# -- what is found ---------------------------------------------------------------------------------


def _collect_settings(invocation: Invocation, installed: Mapping[str, str]) -> dict[str, Any]:
    """Where the settings come from, the place that goes before the others first."""
    own = {
        f"--{name.replace('_', '-')}": value
        for name, value in invocation.shim_flags._asdict().items()
        if value
    }
    own.pop("--shim-explain", None)
    ours = [name for name in sorted(os.environ) if name.removeprefix("CLAUDE_").startswith("SHIM_")]
    path = config.get_settings_path(invocation, os.environ)
    return {
        "flags": own,
        "environment": {name: _redact_variable(name, os.environ[name]) for name in ours},
        "installed": dict(installed),
        "file": path,
        "file_exists": os.path.exists(path),
        "claude": [],
        "record": "",
    }


def _describe_vendor(start: ConversationStartup) -> dict[str, Any]:
    vendor, others = start.adapter, start.vendor_choice.names
    own = start.settings.get_vendor_settings(vendor.name)
    return {
        "vendor": vendor.display_name,
        "named_by": start.vendor_choice.source,
        "list": list(others) if len(others) > 1 else [],
        "passed_over": [one.to_json() for one in start.vendor_list.skipped_attempts],
        "version": find_cached_version(vendor, own, start.environment, start.cwd),
        "cwd": start.cwd,
        "model": start.invocation.model,
        "mode": start.mode,
        "session": start.resumed_id,
    }


def _describe_child(
    start: ConversationStartup, launcher: DryLauncher, plan: LaunchPlan
) -> dict[str, Any]:
    request, vendor, probe = plan.request, launcher.adapter, launcher.program.last_probe
    return {
        "program_by": _find_program_source(start, launcher),
        "help_known": probe is None or not probe.is_answer_missing,
        "argv": redact_argv(plan.argv),
        "environment": _diff_environment(start.environment, plan.environment),
        "files": {
            path: Redactor().redact_text(text[:MAX_FILE_CHARS])
            for path, text in launcher.planned_files.items()
        },
        "stdin": "messages"
        if request.persistent
        else "the prompt"
        if plan.launch.stdin
        else "nothing",
        "driver": _name_driver(start, plan),
        "driver_why": _explain_driver(start),
        "asks_frontend": launcher.state.answers_prompts,
        "mode_arguments": list(request.mode_arguments),
        "unattended": vendor.unattended or bool(launcher.resume_state.version_check.distrust),
        "distrust": launcher.resume_state.version_check.distrust,
        "version_note": launcher.resume_state.version_check.note,
        "removed_tools": list(request.removed_tools),
        "rules": _describe_rules(start, launcher, plan),
        "no_effect": [line.strip() for line in vendor.list_ignored_flags(start.invocation)],
    }


def _find_program_source(start: ConversationStartup, launcher: ChildLauncher) -> str:
    """What names the program."""
    if launcher.context.environment.get("SHIM_BIN"):
        return "SHIM_BIN"
    if launcher.context.vendor_settings.bin:
        return f"[vendors.{start.adapter.name}] bin"
    return BUNDLED_SOURCE if start.adapter.cli.bundled_module else "PATH"


def _name_driver(start: ConversationStartup, plan: LaunchPlan) -> str:
    if start.adapter.passthrough and plan.request.persistent:
        return "pass-through"
    return config.TWO_WAY if plan.request.persistent else config.ONE_WAY


def _explain_driver(start: ConversationStartup) -> str:
    """Why the vendor is driven so, where it has two ways; else ""."""
    name = start.adapter.name
    vendor = (
        get_adapter(name, flat=start.vendor_list.is_translated)
        if name in VENDORS
        else start.adapter
    )
    if vendor.cli.build_two_way is None:
        return ""
    return select_driver(
        vendor,
        start.invocation,
        start.settings,
        start.vendor_list.build_environment(name),
        start.cwd,
    ).reason


def _describe_rules(
    start: ConversationStartup, launcher: ChildLauncher, plan: LaunchPlan
) -> list[dict[str, str]]:
    """Each rule, where it comes from, and how the vendor is kept to it or told of it."""
    vendor, policy, request = launcher.adapter, launcher.policy, plan.request
    vain = {
        (one.what, one.source): one.reason
        for one in list_unsupported_rules(
            vendor, policy, request, start.claude_settings.unsupported_keys
        )
    }

    def narrowing(rule: Rule) -> str:
        if vendor.policy_support.has_native_rules:
            return f"{vendor.name} keeps it itself"
        gone = (
            vendor.abilities.can_limit_tools
            and rule.content is None
            and rule.tool in request.removed_tools
        )
        if (
            gone
            or vendor.policy_support.enforces_rule(rule, request)
            or vendor.policy_support.accepts_rule(rule)
        ):
            return f"{vendor.name} is given it before it starts"
        if can_enforce_rule(vendor, rule, request):
            return "its calls are judged here before they run"
        return "a call is stopped when it is seen, and may have begun (late_denials)"

    def widening(rule: Rule) -> str:
        if reason := vain.pop((str(rule), rule.source), ""):
            return f"no effect: {reason}"
        return "a call that matches it runs unasked"

    found = [
        {"kind": kind, "rule": str(rule), "from": rule.source, "how": how(rule)}
        for kind, rules, how in (
            ("deny", policy.deny, narrowing),
            ("ask", policy.ask, narrowing),
            ("allow", policy.allow, widening),
        )
        for rule in rules
    ]
    ran = (
        f"{vendor.name} runs it itself"
        if vendor.policy_support.has_native_rules
        else "runs before each call that it matches"
    )
    found += [
        {"kind": "hook", "rule": Redactor().redact_text(str(hook)), "from": hook.source, "how": ran}
        for hook in policy.hooks
    ]
    if policy.only_tools is not None:
        only = ", ".join(sorted(policy.only_tools)) or "none"
        found.append(
            {"kind": "tools", "rule": only, "from": "--tools", "how": "no other tool is left"}
        )
    return found + [
        {"kind": "setting", "rule": what, "from": source, "how": f"no effect: {reason}"}
        for (what, source), reason in vain.items()
    ]


def _diff_environment(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """What the child's environment has that ours has not, and the other way round."""
    new = {
        name: _redact_variable(name, value)
        for name, value in after.items()
        if before.get(name) != value
    }
    return {"set": dict(sorted(new.items())), "removed": sorted(before.keys() - after.keys())}


def _redact_variable(name: str, value: str) -> str:
    """The value of a variable; SHIM_ARGS is a command line."""
    if name.endswith("SHIM_ARGS"):
        return shlex.join(redact_argv(parse_extra_args({"SHIM_ARGS": value})))
    return REDACTED_VALUE if value and _SECRET_NAME.search(name) else Redactor().redact_text(value)


# -- for a person ----------------------------------------------------------------------------------


def format_explanation(found: Mapping[str, Any]) -> str:
    """The explanation as text. It is the same in a terminal and in a pipe."""
    lines: list[str] = []
    if found["refused"]:
        lines += ["This turn would be refused:", "", found["refused"]]
        lines += [f"hint: {found['hint']}"] if found["hint"] else []
    else:
        lines.append("This is what would be started. Nothing was.")
    for title, texts in _list_sections(found):
        lines += [
            "",
            *(
                f"{title if not number else '':{TITLE_COLUMNS}}{text}"
                for number, text in enumerate(texts)
            ),
        ]
    return escape_control_chars("\n".join(lines) + "\n")


def _list_sections(found: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    parts: list[tuple[str, Sequence[str]]] = []
    if "vendor" in found:
        parts += [("vendor", _format_vendor(found)), ("cwd", [found["cwd"]])]
    if "argv" in found:
        parts += [
            ("driver", [_format_driver(found)]),
            ("mode", _format_mode(found)),
            ("rules", _format_rules(found)),
            ("command", _format_command(found)),
            ("stdin", [STDIN_TEXTS[found["stdin"]]]),
            ("environment", _format_environment(found["environment"])),
        ]
        for path, text in found["files"].items():
            parts.append(("file", [path, *(f"  {line}" for line in text.split("\n"))]))
        parts += [("no effect", found["no_effect"])] if found["no_effect"] else []
    return (
        [*parts, ("settings", _format_settings(found["settings"]))] if found["settings"] else parts
    )


DRIVER_TEXTS = {
    "pass-through": "pass-through: it talks to the frontend itself",
    config.TWO_WAY: "two-way: one child for the whole conversation; its questions are answered by the rules",
    config.ONE_WAY: "one-way: a child for each message; it can ask nobody",
}
STDIN_TEXTS = {
    "messages": "the messages, as they come",
    "the prompt": "the prompt",
    "nothing": "empty",
}


def _format_vendor(found: Mapping[str, Any]) -> list[str]:
    version = _describe_version(found)
    note = found.get("version_note", "")
    lines = [f"{found['vendor']} ({version}), named by {found['named_by']}"]
    if note:
        lines.append(f"its version is {note}")
    if found["list"]:
        lines.append(f"the first of {', '.join(found['list'])} that can start")
    lines += [f"{one['vendor']} is passed over: {one['reason']}" for one in found["passed_over"]]
    lines.append(f"model: {found['model'] or 'its own'}")
    return lines + ([f"session: {found['session']} goes on"] if found["session"] else [])


def _describe_version(found: Mapping[str, Any]) -> str:
    if found["version"]:
        return str(found["version"])
    if found.get("program_by") == BUNDLED_SOURCE:
        return "bundled"
    return (
        "its version is not recognised"
        if found.get("distrust")
        else "its version is not remembered"
    )


def _format_driver(found: Mapping[str, Any]) -> str:
    asks = (
        " and by the frontend"
        if found["asks_frontend"] and found["driver"] == config.TWO_WAY
        else ""
    )
    return (
        DRIVER_TEXTS[found["driver"]]
        + asks
        + (f" ({found['driver_why']})" if found["driver_why"] else "")
    )


def _format_environment(changes: Mapping[str, Any]) -> list[str]:
    lines = [f"+ {name}={value}" for name, value in changes["set"].items()]
    return lines + [f"- {name}" for name in changes["removed"]] or ["as ours"]


def _format_mode(found: Mapping[str, Any]) -> list[str]:
    arguments = shlex.join(found["mode_arguments"])
    lines = [
        f"{found['mode']}: {arguments}"
        if arguments
        else f"{found['mode']}: no argument is needed for it"
    ]
    if found["distrust"]:
        lines.append(f"{found['distrust']}; it may run tools without asking (unattended)")
    elif found["unattended"]:
        lines.append(f"{found['vendor']} runs its tools and asks nobody")
    return lines


def _format_rules(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{one['kind']} {one['rule']} ({one['from']}): {one['how']}" for one in found["rules"]]
    if found["removed_tools"]:
        lines.append(f"tools that are taken away: {', '.join(found['removed_tools'])}")
    return lines or ["none"]


def _format_command(found: Mapping[str, Any]) -> list[str]:
    """The program and each option with its values, a line each: a shell takes them as they stand."""
    argv = found["argv"]
    lines = [shlex.quote(argv[0])]
    for word in argv[1:]:
        shown = shlex.quote(
            word if len(word) <= MAX_ARGUMENT_CHARS else f"{word[:MAX_ARGUMENT_CHARS]}…"
        )
        if word.startswith("-") or len(lines) == 1:
            lines.append(f"  {shown}")
        else:
            lines[-1] += f" {shown}"
    known = (
        ""
        if found["help_known"]
        else "; no --help is remembered, so its flags are the newest version's"
    )
    return [
        f"found by {found['program_by']}{known}",
        *(f"{line} \\" for line in lines[:-1]),
        lines[-1],
    ]


def _format_settings(settings: Mapping[str, Any]) -> list[str]:
    lines: list[str] = [f"{name} {value}" for name, value in settings["flags"].items()]
    lines += [f"{name}={value}" for name, value in settings["environment"].items()]
    lines += [
        f"`shim install` baked in {name}={value}" for name, value in settings["installed"].items()
    ]
    lines.append(settings["file"] + ("" if settings["file_exists"] else " (is not there)"))
    lines += settings["claude"]
    return [*lines, f"the run is recorded: {settings['record']}"] if settings["record"] else lines

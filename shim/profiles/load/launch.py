"""Builds the command line for a profile's program. The profile's argument template is filled in for
each turn. No shell is used. LAUNCH_KEYS has the keys of `[launch]`.

                                   HOW A COMMAND LINE IS WRITTEN

    argv = [
      "--json",                                                    an argument
      { when = "model", args = ["-m", "{model}"] },                arguments that are used if a
                                                                   model is set
      { when = ["resume", "trust"], unless = "fork", args = [] },  used if all conditions of `when`
                                                                   are true and none in `unless`
      { each = "add_dirs", args = ["--add-dir", "{item}"] },       arguments for each item of a list
      { when = "permission_args" },                                the arguments of the permission
                                                                   mode
      { when = "rules" },                                          the arguments of `rules`
      { when = "prompt_argument", args = ["{prompt}"] },           the prompt, if it is an argument
      { when = "prompt_stdin", args = ["-"] },                     if it is sent on stdin
    ]

    [launch.variants]                variants of the program. The first variant that matches the
                                     output of `--help` is used, or otherwise the last
    old = { has = ["run"], lacks = ["--json"] }                    `when = "old"` tests for it
    new = {}

Placeholders: prompt, prompt_file, model, effort, resume, session_id, max_turns, report_folder,
bundled, system_prompt and append_system_prompt; and the lists add_dirs, mcp_configs, denied_tools,
allowed_tools, chosen_tools. If `argv` has no append_system_prompt, both system prompts are in
system_prompt. If `argv` has neither placeholder, the system prompts are put before the prompt.

`{allowed_tools}` lists the remaining tools if some tools are denied, if `--tools` is set, or if the
mode has `permission_tools`. Except in plan mode, a rule that allows a complete tool adds this tool
to the mode's tools. `{chosen_tools}` lists only the tools in `--tools`. A turn with `--tools` is
refused if the profile has none of `{allowed_tools}`, `{chosen_tools}` and `denials`.
`{denied_tools}` is not enough, because the program keeps tools that are missing in `[tools]`.

`{bundled}` is the folder with the bundled profiles. It may contain a file with the rules for a
restrictive mode. If `command_prefix` is set, the program may be unable to read this folder. A
profile that uses `{bundled}` then only starts in the mode bypassPermissions. The same applies if
`overruled_by` or `widened_by` finds a file.

The module in `rules` has three functions and a constant:

    build_arguments(request)         returns the arguments for `{ when = "rules" }`
    build_environment(request)       returns additional environment variables
    can_hook_apply_allow_rule(rule)  returns whether the program runs tool calls that a rule allows
    EMITS_CALL_BEFORE_HOOK           is true if the program reports a tool call before the hook has
                                     checked it

The arguments and the variables start the shim's hook. The hook enforces every rule for the program
and its subagents.

If the prompt is not on stdin, the child's stdin is empty, because many programs wait for the end of
stdin. The frontend's values have been validated before. A session id is checked here against its
pattern. Any other value that begins with a dash is escaped or refused, so that the program cannot
parse it as a flag.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module

from shim.core.adapter.adapter import (
    LaunchRequest,
    LaunchSpec,
    VendorRunReportFileSpec,
    VendorVariant,
)
from shim.core.adapter.tools import Tools
from shim.core.adapter.versions import VersionProbe, parse_version_conditions
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import CLAUDE_EFFORT_LEVELS, choose_supported_effort
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigKey, ConfigNode, is_variable_name
from shim.profiles.load.argv_parts import (
    BUNDLED_FOLDER,
    BUNDLED_PLACEHOLDER,
    RULES_CONDITION,
    SWITCH_CONDITIONS,
    TEXT_PLACEHOLDERS,
    ArgvTemplate,
)
from shim.profiles.load.prompt import PreparedPrompt, PromptDeliveryConfig

if TYPE_CHECKING:
    from shim.profiles.load.denials import ToolDenialConfig, ToolDenialTemplates

MAX_VARIANTS = 10
MAX_FILE_NAME_CHARS = 64  # for names of programs and files
MAX_VARIANT_NAME_CHARS = 32
# Environment variables that a profile must not unset. The shim's own variables detect a shim that
# starts itself in a loop. The others are needed by every program.
REQUIRED_PREFIX = "SHIM_"
REQUIRED_VARIABLES = frozenset(("PATH", "HOME"))
RESUME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
WIDEST_MODE = "bypassPermissions"
RULE_MODULES = ("codex_rules", "copilot_rules")  # modules that pass rules to a program
STDIN_KINDS = ("devnull", "pipe")
INTERRUPT_SIGNALS = ("SIGINT", "SIGTERM")
MAX_GRACE_S = 10.0  # the longest wait after an interrupt; frontends give up earlier
MAX_TIMEOUT_S = 86_400.0  # the longest time without output; working agents print more often
DEFAULT_VERSION_PROBE = VersionProbe()

INTERRUPT_KEYS = {
    "signal": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "the signal that interrupts a turn",
        INTERRUPT_SIGNALS,
    ),
    "grace": ConfigKey(
        ConfigNode.read_number,
        "seconds from the interrupt until the child is killed",
        0.1,
        MAX_GRACE_S,
        0.0,
        successor="",
    ),
}
TIMEOUT_KEYS = {
    "first_byte": ConfigKey(
        ConfigNode.read_number, "seconds until the program's first output", 1, MAX_TIMEOUT_S, 0.0
    ),
    "idle": ConfigKey(ConfigNode.read_number, "seconds without output", 1, MAX_TIMEOUT_S, 0.0),
    "tool": ConfigKey(
        ConfigNode.read_number,
        "seconds without output while a tool runs",
        1,
        MAX_TIMEOUT_S,
        0.0,
        successor="`[vendors.NAME.timeouts] tool` in config.toml",
    ),
}
LOGIN_PROBE_KEYS = {
    "args": ConfigKey(ConfigNode.read_text_list, "the arguments of the login check", 20),
    "refusal": ConfigKey(
        ConfigNode.read_regex, "matches an output line that reports a missing login"
    ),
    "unless": ConfigKey(
        ConfigNode.read_optional_text,
        "the condition under which the program needs no login. Hints print this text after `unless`",
    ),
}
MODEL_PROBE_KEYS = {
    "args": ConfigKey(
        ConfigNode.read_text_list, "the arguments that make the program list its models", 20
    ),
    "regex": ConfigKey(
        ConfigNode.read_regex,
        "finds a model in an output line; the groups of the expression are joined with slashes",
    ),
}
VERSION_PROBE_KEYS = {
    "args": ConfigKey(
        ConfigNode.read_text_list,
        "the arguments that make the program print its version, `--version` by default",
        10,
        successor="",
    ),
    "regex": ConfigKey(
        ConfigNode.read_regex,
        "finds the version in the output: the first group, or the whole match if there is no group",
        DEFAULT_VERSION_PROBE.regex,
    ),
    "tested": ConfigKey(
        ConfigNode.read_optional_text, "the versions that the rules were tested with: `>=1.2,<2`"
    ),
}
HOME_KEYS = {
    "variable": ConfigKey(
        ConfigNode.read_optional_text, "the environment variable with the folder's path"
    ),
    "folder": ConfigKey(
        ConfigNode.read_text, "the folder in the user's home directory, such as `.codex`"
    ),
}
REPORT_KEYS = {
    "file": ConfigKey(ConfigNode.read_text, "the name of the file in `{report_folder}`"),
    "keys": ConfigKey(
        ConfigNode.read_text_list,
        "the keys of the file's JSON object that `[[report]]` rules read",
        20,
    ),
}
LAUNCH_KEYS = {
    "command": ConfigKey(
        ConfigNode.read_text_list,
        "the program on PATH (`[vendors.NAME] bin` may be a path), and its first arguments",
        20,
    ),
    "programs": ConfigKey(
        ConfigNode.read_text_list,
        "other names of the program",
        10,
        successor="`[vendors.NAME] bin` in config.toml",
    ),
    "argv": ConfigKey.for_node(
        "a list",
        "the arguments after `command`: strings, and tables with `when`, `unless`, `each` and "
        "`args` (`shim/profiles/load/launch.py`)",
    ),
    "prompt": ConfigKey.for_node("a table", "how the program receives the prompt"),
    "permission_args": ConfigKey.for_node(
        "a table of lists of strings",
        'permission mode → the arguments of `{ when = "permission_args" }`. The vendor '
        "supports only these modes",
    ),
    "permission_env": ConfigKey.for_node(
        "a table of tables of strings", "permission mode → additional environment variables"
    ),
    "permission_tools": ConfigKey.for_node(
        "a table of lists of strings",
        "permission mode → the tools that the program can run in this mode, if they are "
        "fewer than `listed`",
    ),
    "model_map": ConfigKey(
        ConfigNode.read_text_table,
        "Claude's name for a model → the program's name for it",
        successor="`[vendors.NAME.models]` in config.toml",
    ),
    "efforts": ConfigKey.for_node(
        "a list of strings",
        "the levels of `--effort` that the program supports (all by default). `{effort}` "
        "is the requested level, or the next lower supported level",
    ),
    "env": ConfigKey.for_node("a table of strings", "additional variables for the program"),
    "env_keep": ConfigKey(
        ConfigNode.read_text_list,
        "`ANTHROPIC_*` variables that are passed to the program",
        20,
        successor="",
    ),
    "env_unset": ConfigKey.for_node(
        "a list of strings", "variables that are not passed to the program"
    ),
    "resume_id_pattern": ConfigKey(
        ConfigNode.read_regex, "matches the program's session ids", RESUME_PATTERN
    ),
    "interrupt": ConfigKey(ConfigNode.read_keys, "how a turn is interrupted", INTERRUPT_KEYS),
    "timeouts": ConfigKey(ConfigNode.read_keys, "how long the program may be silent", TIMEOUT_KEYS),
    "stdin": ConfigKey(
        ConfigNode.read_choice_defaulting_to_first,
        "the stdin of the program if the prompt is not sent on stdin; `pipe` is closed immediately",
        STDIN_KINDS,
        successor="",
    ),
    "gate": ConfigKey(
        ConfigNode.read_optional_text,
        "the text that the program writes to stderr when it refuses to run in an untrusted folder",
    ),
    "login": ConfigKey(ConfigNode.read_optional_text, "how a user logs in; hints print this text"),
    "login_probe": ConfigKey(
        ConfigNode.read_optional_keys,
        "how `shim doctor` checks for a login; stdin is empty, and the program must not "
        "send a request to its model",
        LOGIN_PROBE_KEYS,
    ),
    "models_probe": ConfigKey(
        ConfigNode.read_optional_keys,
        "how the program lists its models, one per line",
        MODEL_PROBE_KEYS,
    ),
    "api_base": ConfigKey(
        ConfigNode.read_optional_text, "the variable that sets a different API address"
    ),
    "variants": ConfigKey.for_node(
        "a table of tables",
        "variants of the program, which conditions can name: name → `{ has = [], lacks = "
        "[] }`, lists of texts that its `--help` output contains or lacks",
    ),
    "version_probe": ConfigKey.for_node(
        "a table", "how the program's version is read; no turn waits for the answer"
    ),
    "home": ConfigKey.for_node(
        "a table", "the folder of the program's own session records, which an adapter may read"
    ),
    "report": ConfigKey.for_node(
        "a table",
        "a file that the program writes about its run; `{report_folder}` is a private folder that "
        "is removed after the run",
    ),
    "overruled_by": ConfigKey.for_node(
        "a table",
        "`linux` or `darwin` → the files whose settings override those in a file of `{bundled}`: "
        "a folder of `.toml` files, or a list of files and folders",
    ),
    "widened_by": ConfigKey(
        ConfigNode.read_text_table,
        "a JSON file in the working directory or the home directory → the key that gives "
        "the program additional tools, which no permission rule covers",
    ),
    "servers_in": ConfigKey(
        ConfigNode.read_text_table,
        "a JSON file in the working directory or the home directory → the key that lists "
        "MCP servers by name. With `acp.server_tool`, these names identify a server's "
        "tools",
    ),
    "rules": ConfigKey(
        ConfigNode.read_choice,
        "a bundled module that passes the rules to the program",
        RULE_MODULES,
        "",
    ),
    "denials": ConfigKey.for_node(
        "a table",
        "how the deny rules are passed to the program; in a profile with `extends`, `false` "
        "removes the table that is inherited from the other profile",
    ),
    "brings": ConfigKey(
        ConfigNode.read_text_list_table,
        "a path in the working directory or a parent → keys of this JSON file, or `[]` "
        "for the whole file or folder. The program starts what is configured there "
        "without asking, so the shim refuses the folder unless it is trusted or the "
        "program supports `brings_off`",
    ),
    "brings_off": ConfigKey(
        ConfigNode.read_optional_text,
        "the flag that keeps the program from starting what `brings` names",
        successor="",
    ),
    "install": ConfigKey(ConfigNode.read_optional_text, "the command that installs the program"),
}
RulesLoader = Callable[[], Any]
ModeTools = Mapping[str, tuple[str, ...]]  # permission mode → `permission_tools`


class LaunchTemplate:
    """A validated `[launch]` table. `values` has the values of LAUNCH_KEYS, and `used_names` has
    the placeholders and conditions in `argv`. `build_launch` implements the adapter's method.
    """

    def __init__(self, node: ConfigNode, name: str, tools: Tools) -> None:
        self._name = name
        self._tools = tools
        self.values = node.read_keys(LAUNCH_KEYS)
        self.programs = _parse_programs(node, self.values)
        self.variants = _parse_variants(node.get_child("variants"))
        self.load_rules = _create_rules_loader(self.values["rules"])
        self.mode_tools: ModeTools = {
            mode: mode_node.read_text_list()
            for mode, mode_node in read_nodes_by_permission_mode(node, "permission_tools").items()
        }
        self.denials = _build_denial_templates(node, name, tools, self.mode_tools)
        self._delivery = PromptDeliveryConfig(node.get_child("prompt"))
        self._argv = ArgvTemplate(node.get_child("argv"), self._delivery, tuple(self.variants))
        self.used_names = self._argv.used_names
        _check_restricting_conditions(node, self.used_names, has_rules=self.load_rules is not None)
        self._environment = LaunchEnvironment(node)
        self._efforts = _parse_efforts(node.get_child("efforts"))
        self.run_report = _parse_report(
            node.get_child("report"), node.get_child("argv"), self.used_names
        )
        self.version_probe = _parse_version_probe(node.get_child("version_probe"))

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Return how to start the program for a request. Raise FrontendError if the program cannot
        do what the request needs.
        """
        if request.resume_id:
            self._check_resumed_session(request.resume_id, request.invocation)
        self._check_policy_bypass(request)
        prompt = self._delivery.prepare_prompt(request, self.used_names, self._name)
        args = self._argv.format_args(self._build_placeholder_values(request, prompt))
        self._check_resume_args(request.resume_id, args)
        launch_spec = LaunchSpec(
            (*self.values["command"][1:], *args),
            prompt.encode_stdin(),
            self._environment.get_variables(request.permission_mode),
            unset_variables=self._environment.unset_variables,
            needs_stdin_pipe=self.values["stdin"] == "pipe",
            temporary_files=prompt.list_files(),
        )
        if self.load_rules is not None:
            variables = self.load_rules().build_environment(request)
            launch_spec = launch_spec._replace(enforced_environment=variables)
        if self.denials is not None:
            return _add_denials(launch_spec, self.denials.build_tool_denial_config(request))
        return launch_spec

    def _check_resumed_session(self, resume: str, invocation: Invocation) -> None:
        """Raise FrontendError if the session id is not safe as an argument, or if the program
        cannot resume or fork the session.
        """
        import re

        if not re.fullmatch(self.values["resume_id_pattern"], resume):
            raise FrontendError(
                f"{resume[:60]!r} is not a session id of {self._name}", hint="start a new session"
            )
        if "resume" not in self.used_names:
            raise FrontendError(f"{self._name} cannot resume a session", hint="start a new session")
        if invocation.fork_session and "fork" not in self.used_names:
            raise FrontendError(
                f"{self._name} cannot fork a session",
                hint="resume the session without --fork-session",
            )
        if resume.startswith("-"):
            raise FrontendError(
                f"the session id {resume[:60]!r} of {self._name} begins with a dash",
                hint="start a new session",
            )

    def _check_policy_bypass(self, request: LaunchRequest) -> None:
        """Raise FrontendError if the program might not apply the bundled policy file that enforces
        the permission mode.
        """
        if (
            request.policy_bypass
            and BUNDLED_PLACEHOLDER in self.used_names
            and request.permission_mode != WIDEST_MODE
        ):
            raise FrontendError(
                f"{self._name} might not apply the policy file that enforces the permission "
                f"mode {request.permission_mode!r}: {request.policy_bypass}",
                hint=f"remove the cause, or use {WIDEST_MODE}",
            )

    def _check_resume_args(self, resume: str | None, args: list[str]) -> None:
        """Raise FrontendError if no argument has the id of the session to resume. The program's
        variant then has no flag for it.
        """
        if resume and not any(resume in arg for arg in args):
            raise FrontendError(
                f"this version of {self._name} does not store sessions, so it cannot resume one",
                hint="start a new session",
            )

    def _build_placeholder_values(
        self, request: LaunchRequest, prompt: PreparedPrompt
    ) -> dict[str, Any]:
        """Return the values of the placeholders and conditions that `argv` may use, by name."""
        values = {
            **dict.fromkeys(self.variants, False),
            "permission_args": request.mode_arguments,
            RULES_CONDITION: self._list_rule_args(request),
            **prompt.build_placeholder_values(),
            **_build_session_values(request),
            **self._build_flag_values(request.invocation),
            "mcp_configs": self._list_mcp_configs(request),
            **self._build_tool_values(request),
            "trust": request.opens_trust_prompt,
            BUNDLED_PLACEHOLDER: BUNDLED_FOLDER,
            "report_folder": request.files.report_folder,
        }
        if self.variants:
            values[self._choose_variant(request.variant)] = True
        return values

    def _list_rule_args(self, request: LaunchRequest) -> Sequence[str]:
        """Return the arguments with which the module in `rules` restricts the program."""
        if self.load_rules is None:
            return ()
        args: Sequence[str] = self.load_rules().build_arguments(request)
        return args

    def _build_flag_values(self, invocation: Invocation) -> dict[str, Any]:
        """Return the values that are flags of the frontend."""
        effort = invocation.effort
        if effort:
            effort = choose_supported_effort(effort, self._efforts)
        max_turns = None
        if invocation.max_turns is not None:
            max_turns = str(invocation.max_turns)
        return {
            "model": invocation.model,
            "effort": effort,
            "max_turns": max_turns,
            "add_dirs": invocation.add_dirs,
            "partial": invocation.partial,
        }

    def _list_mcp_configs(self, request: LaunchRequest) -> Sequence[str]:
        """Return the MCP configurations, and write the file with the private servers. Return () if
        the program does not receive them.
        """
        if "mcp_configs" not in self.used_names:
            return ()
        return (
            *request.list_mcp_configs_without_sdk_servers(),
            *request.write_private_mcp_config_files(),
        )

    def _build_tool_values(self, request: LaunchRequest) -> dict[str, list[str]]:
        """Return the lists of tools that `argv` uses. Raise FrontendError if no tool remains."""
        if self.used_names.isdisjoint(("denied_tools", "allowed_tools", "chosen_tools")):
            return {}
        from shim.profiles.load.tool_selection import ToolSelector

        selector = ToolSelector(self._tools, self.mode_tools, self._name)
        return selector.build_placeholder_values(request, self.used_names)

    def _choose_variant(self, name: str) -> str:
        """Return the variant of the program: `name`, or the last variant if it is unknown."""
        if name in self.variants:
            return name
        return list(self.variants)[-1]


class LaunchEnvironment:
    """The environment variables that a `[launch]` table sets, and those that it unsets."""

    def __init__(self, node: ConfigNode) -> None:
        self._variables = node.get_child("env").read_variables()
        self.unset_variables = _parse_unset_variables(node.get_child("env_unset"))
        self._variables_by_mode = {
            mode: self._variables | mode_node.read_variables()
            for mode, mode_node in read_nodes_by_permission_mode(node, "permission_env").items()
        }

    def get_variables(self, permission_mode: str) -> dict[str, str]:
        """Return the variables to set, by name."""
        return self._variables_by_mode.get(permission_mode, self._variables)


def _check_restricting_conditions(
    node: ConfigNode, used_names: Collection[str], *, has_rules: bool
) -> None:
    """Raise FrontendError if `argv` lacks the arguments that restrict the program, or if it has the
    arguments of `rules` although `rules` is not set.
    """
    argv = node.get_child("argv")
    modes = node.get_child("permission_args").read_table()
    has_mode_args = any(isinstance(args, list) and args for args in modes.values())
    if has_mode_args and "permission_args" not in used_names:
        raise argv.build_error(
            'a list that contains { when = "permission_args" }, because modes have arguments',
            description='a list without { when = "permission_args" }',
        )
    if (RULES_CONDITION in used_names) is not has_rules:
        raise argv.build_error(
            'a list that contains { when = "rules" } if and only if `rules` is set'
        )


def _parse_efforts(node: ConfigNode) -> Sequence[str]:
    """Return the levels of `--effort` that the program supports."""
    max_levels = len(CLAUDE_EFFORT_LEVELS)
    levels = [level.read_choice(CLAUDE_EFFORT_LEVELS) for level in node.read_items(max_levels)]
    if not levels:
        return CLAUDE_EFFORT_LEVELS
    return levels


def _build_session_values(request: LaunchRequest) -> dict[str, Any]:
    """Return the values about the session that the program resumes or starts."""
    resume = request.resume_id
    session_id = None
    if not resume:
        session_id = request.invocation.session_id
    return {
        "resume": resume,
        "fork": bool(resume and request.invocation.fork_session),
        "session_id": session_id,
        "new_session": not resume,
    }


def _add_denials(launch_spec: LaunchSpec, denials: "ToolDenialConfig") -> LaunchSpec:
    """Return the launch with the arguments, variables and files that deny tools."""
    return launch_spec._replace(
        arguments=(*launch_spec.arguments, *denials.args),
        temporary_files=(*launch_spec.temporary_files, *denials.files),
        enforced_environment=denials.environment,
    )


def _create_rules_loader(module_name: str) -> RulesLoader | None:
    """Return a function that imports the module in `rules`, or None if `rules` is missing. The
    function is called at each turn.
    """
    if not module_name:
        return None
    return lambda: import_module(f"shim.adapters.{module_name}")


def _build_denial_templates(
    node: ConfigNode, name: str, tools: Tools, mode_tools: ModeTools
) -> "ToolDenialTemplates | None":
    """Return the templates in `denials`, or None if the table is missing. A profile that extends
    another profile removes the table with `false`.
    """
    if not node.get_child("denials").value:
        return None
    from shim.profiles.load.denials import ToolDenialTemplates

    return ToolDenialTemplates(node.get_child("denials"), name, tools, mode_tools)


def _parse_report(
    node: ConfigNode, argv: ConfigNode, used_names: Collection[str]
) -> VendorRunReportFileSpec | None:
    if not node:
        if "report_folder" in used_names:
            raise argv.build_error(
                "a list without {report_folder}, because `report` is not set",
                description="a list that contains {report_folder}",
            )
        return None
    report = node.read_keys(REPORT_KEYS)
    if "report_folder" not in used_names:
        raise argv.build_error(
            "a list that contains {report_folder}, because `report` is set",
            description="a list without {report_folder}",
        )
    if not _is_plain_name(report["file"]):
        raise node.get_child("file").build_error("the name of a file")
    if not report["keys"]:
        raise node.build_error("a table with `keys`", description="a table without `keys`")
    return VendorRunReportFileSpec(report["file"], report["keys"])


def _parse_version_probe(node: ConfigNode) -> VersionProbe:
    """Return the version probe. Missing keys have default values."""
    probe = node.read_keys(VERSION_PROBE_KEYS)
    try:
        parse_version_conditions(probe["tested"])
    except ValueError as error:
        raise node.get_child("tested").build_error(
            'conditions with commas between them, such as ">=0.169,<0.170"',
            str(error) or probe["tested"],
        ) from None
    args = probe["args"]
    if not args:
        args = DEFAULT_VERSION_PROBE.args
    return VersionProbe(args, probe["regex"], probe["tested"])


def read_nodes_by_permission_mode(launch_node: ConfigNode, key: str) -> dict[str, ConfigNode]:
    """Return the child nodes of a `[launch]` table, by permission mode. Raise FrontendError for a
    permission mode that the profile does not have.
    """
    table_node = launch_node.get_child(key)
    modes = launch_node.get_child("permission_args").read_table()
    return {
        mode: table_node.get_child(mode)
        for mode in table_node.read_table(tuple(modes) or ("default",))
    }


def _parse_programs(node: ConfigNode, launch: dict[str, Any]) -> tuple[str, ...]:
    """Return the names under which the program may be found on PATH."""
    programs: tuple[str, ...] = (*launch["command"][:1], *launch["programs"])
    if not programs:
        raise node.build_error("a table with `command`", description="a table without `command`")
    for index, program in enumerate(programs):
        if not _is_plain_name(program):
            if index == 0:
                wrong_node = node.get_child("command").get_child(0)
            else:
                wrong_node = node.get_child("programs").get_child(index - 1)
            raise wrong_node.build_error(
                "the name of a program on PATH; `[vendors.NAME] bin` in config.toml may be a path"
            )
    return programs


def _is_plain_name(name: str) -> bool:
    """Return whether a text is the name of a program or file, and not a path."""
    letters = name.replace("-", "").replace("_", "").replace(".", "").replace("+", "")
    if not name[:1].isalnum():
        return False
    if not letters.isalnum():
        return False
    if not name.isascii():
        return False
    return len(name) <= MAX_FILE_NAME_CHARS


def _is_variant_name(name: str) -> bool:
    letters = name.replace("-", "")
    if not (name[:1].isalpha() and letters.isalnum() and name.isascii() and name.islower()):
        return False
    return len(name) <= MAX_VARIANT_NAME_CHARS


def _parse_variants(node: ConfigNode) -> dict[str, VendorVariant]:
    """Return the program's variants, by name."""
    names = tuple(node.read_table())
    if len(names) > MAX_VARIANTS:
        raise node.build_error(
            f"a table with at most {MAX_VARIANTS} variants",
            description=f"a table with {len(names)} variants",
        )
    variants = {}
    for name in names:
        variant_node = node.get_child(name)
        if not _is_variant_name(name) or name in (*SWITCH_CONDITIONS, *TEXT_PLACEHOLDERS, "auto"):
            raise variant_node.build_error(
                "a name of lower-case letters, digits and dashes that is not a built-in condition",
                name,
            )
        variant_node.read_table(("has", "lacks"))
        variants[name] = VendorVariant(
            variant_node.get_child("has").read_text_list(20),
            variant_node.get_child("lacks").read_text_list(20),
        )
    return variants


def _parse_unset_variables(node: ConfigNode) -> tuple[str, ...]:
    for index, key in enumerate(node.read_text_list(50)):
        if (
            not is_variable_name(key)
            or key.startswith(REQUIRED_PREFIX)
            or key in REQUIRED_VARIABLES
        ):
            raise node.get_child(index).build_error("a variable that the program does not require")
    return node.read_text_list(50)

"""The command line of a profile, for the options of a frontend."""

from contextlib import nullcontext

import pytest
from profile_builder import build_profile_adapter
from sweeps import loop_over_rows

from shim import adapters
from shim.core.adapter import enforcement
from shim.core.adapter.adapter import MAX_ARGUMENT_BYTES, LaunchRequest
from shim.core.adapter.versions import VersionProbe
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules

ARGV = """
[launch]
command = ["own", "run"]
argv = [
  "--json",
  { when = "permission_args" },
  { when = "trust", args = ["--trust"] },
  { unless = "new_session", args = ["--again"] },
  { when = "model", args = ["-m", "{model}"] },
  { when = "resume", args = ["--session={resume}"] },
  { when = "fork", args = ["--fork"] },
  { each = "add_dirs", args = ["--dir", "{item}"] },
  { when = "denied_tools", args = ["--not", "{denied_tools}"] },
  { when = "max_turns", args = ["--turns", "{max_turns}"] },
  { when = "session_id", args = ["--id", "{session_id}"] },
  { when = "prompt_stdin", args = ["-"] },
  "{prompt}",
]
prompt = { via = "arg" }
model_map = { sonnet = "big" }

[launch.permission_args]
default = ["--ask"]
plan = ["--read-only"]

[tools]
sh = { name = "Bash" }
look = { name = "Read" }
"""
U = "11111111-2222-4333-8444-555555555555"


def build_launch(profile, *args, prompt="say hi", **fields):
    vendor = build_profile_adapter(profile)
    invocation = parse_argv(["-p", "x", *args])
    mode = invocation.permission_mode or "default"
    return vendor.build_launch(
        LaunchRequest(invocation, prompt, vendor.resolve_permission_mode_args(mode), mode, **fields)
    )


@loop_over_rows(
    ("args", "fields", "expected"),
    [
        ((), {}, ("--ask", "say hi")),
        (("--permission-mode", "plan"), {}, ("--read-only", "say hi")),
        (("--model", "m1"), {}, ("--ask", "-m", "m1", "say hi")),
        ((), {"opens_trust_prompt": True}, ("--ask", "--trust", "say hi")),
        ((), {"resume_id": "s:1"}, ("--ask", "--again", "--session=s:1", "say hi")),
        (
            ("--fork-session",),
            {"resume_id": "s1"},
            ("--ask", "--again", "--session=s1", "--fork", "say hi"),
        ),
        (("--add-dir", "/a", "/b"), {}, ("--ask", "--dir", "/a", "--dir", "/b", "say hi")),
        ((), {"removed_tools": ("Bash", "Read", "Grep")}, ("--ask", "--not", "sh,look", "say hi")),
        (("--max-turns", "3"), {}, ("--ask", "--turns", "3", "say hi")),
        (("--session-id", U), {}, ("--ask", "--id", U, "say hi")),
        (("--session-id", U), {"resume_id": "s1"}, ("--ask", "--again", "--session=s1", "say hi")),
    ],
)
def test_launch_request_becomes_arguments(args, fields, expected):
    launch = build_launch(ARGV, *args, **fields)
    assert launch.arguments == ("run", "--json", *expected)
    assert launch.stdin == (b"say hi" if expected[-1] == "-" else b"")


def test_model_names_are_read_from_the_profile():
    assert build_profile_adapter(ARGV).cli.model_names == {"sonnet": "big"}


def test_tool_with_a_denied_variant_is_denied():
    both = ARGV + 'change = { name = "Edit", alt = [{ match = { new = true }, name = "Write" }] }\n'
    assert build_launch(both, removed_tools=("Write",)).arguments[3:-1] == ("--not", "change")
    assert build_launch(both, removed_tools=("Bash", "Edit")).arguments[3:-1] == (
        "--not",
        "sh,change",
    )


def test_system_prompt_precedes_the_prompt_without_a_system_prompt_flag():
    launch = build_launch(ARGV, "--append-system-prompt", "Be brief.")
    assert launch.arguments[-1] == "Be brief.\n\nsay hi"
    flagged = ARGV.replace(
        '"--json",', '"--json", { when = "system_prompt", args = ["--system={system_prompt}"] },'
    )
    launch = build_launch(flagged, "--append-system-prompt", "Be brief.")
    assert launch.arguments[2] == "--system=Be brief." and launch.arguments[-1] == "say hi"


@loop_over_rows("prompt", ["-h", "--help me", "@file", "resume", "", "x " * MAX_ARGUMENT_BYTES])
def test_unsafe_or_long_prompt_is_sent_on_stdin(prompt):
    """Threat: a prompt that starts with - or @, or has 1 MB."""
    launch = build_launch(ARGV, prompt=prompt)
    assert launch.arguments[-1] == "-" and launch.stdin == prompt.encode()


def build_guarded_profile(dash_guard, argv='"{prompt}"', **fields):
    more = "".join(f', {key} = "{value}"' for key, value in fields.items())
    return (
        f'[launch]\ncommand = ["own"]\nargv = [{argv}]\n'
        f'prompt = {{ via = "arg", dash_guard = "{dash_guard}"{more} }}\n'
    )


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (build_guarded_profile("--"), ("--", "-x y")),
        (build_guarded_profile("equals", '"--prompt={prompt}"'), ("--prompt=-x y",)),
        (build_guarded_profile("space", '"-p", "{prompt}"'), ("-p", " -x y")),
    ],
)
def test_prompt_starting_with_a_dash_is_guarded(profile, expected):
    assert build_launch(profile, prompt="-x y").arguments == expected


@pytest.mark.parametrize(
    ("prompt", "argument"), [("auth", " auth"), ("-x y", " -x y"), ("say hi", "say hi")]
)
def test_single_word_prompt_is_not_parsed_as_a_subcommand(prompt, argument):
    """Threat: a prompt that is a subcommand. A prompt that is the value of a flag stays unchanged."""
    assert build_launch(build_guarded_profile("word"), prompt=prompt).arguments == (argument,)
    assert build_launch(
        build_guarded_profile("space", '"-p", "{prompt}"'), prompt="auth"
    ).arguments == ("-p", "auth")


def test_long_prompt_is_refused_if_only_an_argument_is_accepted():
    with pytest.raises(FrontendError, match="takes it only as an argument"):
        build_launch(
            build_guarded_profile("--", long="refuse"), prompt="x" * (MAX_ARGUMENT_BYTES + 1)
        )


def test_long_prompt_is_passed_in_a_file():
    profile = build_guarded_profile(
        "--", '{ when = "prompt_file", args = ["-f", "{prompt_file}"] }, "{prompt}"', long="file"
    )
    long = "x" * (MAX_ARGUMENT_BYTES + 1)
    assert build_launch(profile, prompt="short").arguments == ("--", "short")
    assert build_launch(profile, prompt=long, store_text=lambda text: "/kept").arguments == (
        "-f",
        "/kept",
    )
    with pytest.raises(FrontendError, match="could not be written to a file"):
        build_launch(profile, prompt=long)


MODES = ARGV.replace(
    "[tools]",
    """
[launch.permission_env]
plan = { OWN_RULES = "no shell" }
[launch.permission_tools]
plan = ["Read"]
[tools]""",
)


def test_permission_mode_sets_its_variables_and_tools():
    vendor = build_profile_adapter(MODES)
    default, plan = (
        LaunchRequest(parse_argv([]), "x", permission_mode=mode) for mode in ("default", "plan")
    )
    assert (vendor.build_launch(default).environment, vendor.list_available_tools(default)) == (
        {},
        ("Bash", "Read"),
    )
    assert (vendor.build_launch(plan).environment, vendor.list_available_tools(plan)) == (
        {"OWN_RULES": "no shell"},
        ("Read",),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'plan = { OWN_RULES = "no shell" }',
            'auto = { A = "b" }',
            "the allowed keys are: default, plan",
        ),
        ('plan = ["Read"]', 'auto = ["Read"]', "the allowed keys are: default, plan"),
        ("OWN_RULES", "LD_PRELOAD", "it must be a variable that only this program uses"),
    ],
)
def test_invalid_mode_variables_are_rejected(old, new, message):
    with pytest.raises(FrontendError, match=message):
        build_profile_adapter(MODES.replace(old, new))


def test_bundled_placeholder_expands_to_the_adapters_path():
    launch = build_launch(ARGV.replace('"--json",', '"--rules={bundled}/rules.toml",'))
    assert launch.arguments[1] == f"--rules={adapters.__path__[0]}/rules.toml"


def test_policy_file_bypass_allows_only_bypass_permissions():
    profile = ARGV.replace('"--json",', '"--rules={bundled}/rules.toml",').replace(
        'plan = ["--read-only"]', 'bypassPermissions = ["--yolo"]'
    )
    with pytest.raises(FrontendError, match="permission mode 'default': with a launcher"):
        build_launch(profile, policy_bypass="with a launcher")
    assert (
        "--yolo"
        in build_launch(
            profile, "--permission-mode", "bypassPermissions", policy_bypass="behind one"
        ).arguments
    )
    assert build_launch(ARGV, policy_bypass="with a launcher").arguments, "it has no such file"


def test_prompt_on_stdin_adds_no_argument():
    launch = build_launch('[launch]\ncommand = ["own"]\nargv = ["--json"]\n', prompt="-x")
    assert (launch.arguments, launch.stdin) == (("--json",), b"-x")


@pytest.mark.parametrize("resume", ["ses-1", "ses_1 --yolo", "-ses_1", "ses_1\n"])
def test_session_id_must_match_the_profile_pattern(resume):
    """Threat: a session id from the vendor's output or from the frontend."""
    profile = ARGV.replace("model_map", "resume_id_pattern = 'ses_\\d+'\nmodel_map")
    assert "--session=ses_12" in build_launch(profile, resume_id="ses_12").arguments
    with pytest.raises(FrontendError, match="is not a session id of own"):
        build_launch(profile, resume_id=resume)


@pytest.mark.parametrize("resume", ["--yolo", "-y"])
def test_session_id_starting_with_a_dash_is_rejected(resume):
    profile = ARGV.replace("model_map", "resume_id_pattern = '.*'\nmodel_map")
    with pytest.raises(FrontendError, match="begins with a dash"):
        build_launch(profile, resume_id=resume)


def test_unsupported_resume_and_fork_are_refused():
    with pytest.raises(FrontendError, match="cannot resume a session"):
        build_launch(build_guarded_profile("--"), resume_id="s1")
    without = ARGV.replace('  { when = "fork", args = ["--fork"] },\n', "")
    with pytest.raises(FrontendError, match="cannot fork a session"):
        build_launch(without, "--fork-session", resume_id="s1")


def test_abilities_are_derived_from_the_arguments():
    for profile, can in ((ARGV, True), (build_guarded_profile("--"), False)):
        abilities = build_profile_adapter(profile).abilities
        assert (abilities.can_resume, abilities.can_limit_tools, abilities.can_limit_turns) == (
            can,
            can,
            can,
        )


@loop_over_rows(
    "name",
    ["SHIM_BIN", "LD_PRELOAD", "PATH", "PYTHONPATH", "NODE_OPTIONS", "HOME", "A-B", "CLAUDECODE"],
)
def test_reserved_environment_variable_is_rejected(name):
    with pytest.raises(FrontendError, match="a variable that only this program uses"):
        build_profile_adapter(f'{LAUNCH}env = {{ "{name}" = "x" }}\n')


LAUNCH = '[launch]\ncommand = ["own"]\n'


def test_launch_options_are_read_from_the_profile():
    vendor = build_profile_adapter(
        LAUNCH
        + 'interrupt = { signal = "SIGTERM" }\ntimeouts = { first_byte = 5, idle = 6.5 }\nenv = { A = "b" }\n'
        + 'env_keep = ["ANTHROPIC_API_KEY"]\ngate = "not trusted"\nlogin = "run `own login`"\nprograms = ["own2"]\n'
    )
    assert vendor.shutdown.interrupt_signal == "SIGTERM" and vendor.programs == ("own", "own2")
    assert vendor.timeouts_s == {"first_byte_timeout": 5.0, "idle_timeout": 6.5}
    assert (vendor.environment.visible_variables, vendor.environment.trust_prompt_text) == (
        ("ANTHROPIC_API_KEY",),
        "not trusted",
    )
    assert vendor.login_hint == "run `own login`"


# -- versions --------------------------------------------------------------------------------------

LAUNCH = '[launch]\ncommand = ["own"]\n'


def test_version_probe_is_read_from_the_profile():
    probe_line = "version_probe = { args = [\"-V\"], regex = 'own ([0-9.]+)', tested = '>=1.2,<2' }"
    how = build_profile_adapter(LAUNCH + probe_line).version_probe
    assert how == (("-V",), "own ([0-9.]+)", ">=1.2,<2")
    assert how.classify_version(how.parse_version("own 1.9.1 (build 7)")) == "tested"


def test_version_probe_has_defaults():
    assert build_profile_adapter(LAUNCH).version_probe == VersionProbe()
    assert build_profile_adapter(
        LAUNCH + 'version_probe = { tested = "<2" }'
    ).version_probe == VersionProbe(tested_range="<2")


@loop_over_rows(
    ("probe", "key", "allowed"),
    [
        ('"--version"', "launch.version_probe is", "a table"),
        (
            "{ flags = 1 }",
            "unknown key `launch.version_probe.flags` in own.toml line 5",
            "did you mean `args`?",
        ),
        ('{ args = "--version" }', "launch.version_probe.args is", "a list"),
        ("{ regex = '(' }", "launch.version_probe.regex is", "a regular expression"),
        ("{ regex = '(a+)+' }", "launch.version_probe.regex is", "inside a repeated group"),
        (
            '{ tested = "0.169" }',
            'launch.version_probe.tested is "0.169"',
            "conditions with commas",
        ),
        (
            '{ tested = ">=1, new" }',
            'launch.version_probe.tested is "new"',
            "conditions with commas",
        ),
        ("{ tested = 1.2 }", "launch.version_probe.tested is", "a string"),
    ],
)
def test_invalid_version_probe_is_rejected_with_its_line(probe, key, allowed):
    with pytest.raises(FrontendError) as refused:
        build_profile_adapter(f"{LAUNCH}version_probe = {probe}\n")
    assert str(refused.value).removeprefix("own.toml:5: ").startswith(key)
    assert allowed in str(refused.value)


# -- conditions, variants, values ------------------------------------------------------------------

SEVERAL = """
[launch]
command = ["own"]
argv = [
  { when = ["resume", "fork"], args = ["--fork={resume}"] },
  { when = "resume", unless = ["fork", "trust"], args = ["--resume={resume}"] },
  { each = "add_dirs", when = "trust", args = ["--dir", "{item}"] },
]
"""


@loop_over_rows(
    ("args", "fields", "expected"),
    [
        ((), {}, ()),
        ((), {"resume_id": "s1"}, ("--resume=s1",)),
        (("--fork-session",), {"resume_id": "s1"}, ("--fork=s1",)),
        (("--add-dir", "/a"), {}, ()),
        (("--add-dir", "/a"), {"opens_trust_prompt": True}, ("--dir", "/a")),
    ],
)
def test_several_conditions_must_all_match(args, fields, expected):
    assert build_launch(SEVERAL, *args, **fields).arguments == expected


VARIANTS = """
[launch]
command = ["own"]
argv = [
  { when = "old", args = ["run"] },
  { when = "new", args = ["--json"] },
  { when = ["new", "resume"], args = ["--resume={resume}"] },
]

[launch.variants]
old = { has = ["run"], lacks = ["--json", "--stream"] }
new = {}
"""


@loop_over_rows(
    ("text", "variant"),
    [
        ("usage: run it", "old"),
        ("run --json", "new"),
        ("run --stream", "new"),
        ("", "new"),
        ("usage", "new"),
    ],
)
def test_variant_is_detected_from_the_help_text(text, variant):
    vendor = build_profile_adapter(VARIANTS)
    assert tuple(vendor.cli.variants) == ("old", "new")
    assert vendor.detect_variant(text) == variant


def test_arguments_can_depend_on_the_variant():
    assert build_launch(VARIANTS, variant="old").arguments == ("run",)
    assert build_launch(VARIANTS, variant="new", resume_id="s1").arguments == (
        "--json",
        "--resume=s1",
    )
    assert build_launch(VARIANTS).arguments == ("--json",), "who did not look takes the last"


def test_variant_without_a_resume_argument_refuses_resume():
    with pytest.raises(FrontendError, match="this version of own does not store sessions"):
        build_launch(VARIANTS, variant="old", resume_id="s1")


@loop_over_rows("name", ["model", "auto", "Old", "prompt", "trust"])
def test_variant_name_must_not_match_a_condition(name):
    with pytest.raises(FrontendError, match="that is not a built-in condition"):
        build_profile_adapter(f"{LAUNCH}[launch.variants]\n{name} = {{}}\n")


@pytest.mark.parametrize(
    "argv",
    [
        '["--json"]',
        '[{ when = "permission_args", args = ["-a"] }]',
        '[{ when = ["permission_args", "trust"] }]',
    ],
)
def test_mode_whose_arguments_are_never_passed_is_rejected(argv):
    """A mode that a vendor does not support is refused and never ignored."""
    modes = '[launch.permission_args]\ndefault = []\nplan = ["--read-only"]\n'
    with pytest.raises(FrontendError, match=r"permission_args"):
        build_profile_adapter(f"{LAUNCH}argv = {argv}\n{modes}")


def test_modes_without_arguments_need_no_permission_args():
    assert build_profile_adapter(f"{LAUNCH}[launch.permission_args]\ndefault = []\n").modes == {
        "default": ()
    }


CHOSEN = """
[launch]
command = ["own"]
argv = [{ when = "allowed_tools", args = ["--only={allowed_tools}"] }]

[tools]
sh = { name = "Bash" }
look = { name = "Read" }
"""


@pytest.mark.parametrize(
    ("args", "removed", "expected"),
    [
        ((), (), ()),
        ((), ("Bash",), ("--only=look",)),
        (("--tools", "Bash,Grep"), (), ("--only=sh",)),
        (("--tools", "Bash,Read"), ("Bash",), ("--only=look",)),
    ],
)
def test_remaining_tools_are_passed_as_a_list(args, removed, expected):
    assert build_launch(CHOSEN, *args, removed_tools=removed).arguments == expected
    assert build_profile_adapter(CHOSEN).abilities.can_limit_tools


def test_allow_rule_adds_a_tool_to_the_mode_tools():
    narrow_profile = CHOSEN.replace(
        "[tools]", '[launch.permission_tools]\ndefault = ["Read"]\n[tools]'
    )
    for allowed, argument in (
        ((), "--only=look"),
        (("Bash",), "--only=sh,look"),
        (("Bash(ls:*)",), "--only=look"),
    ):
        rules = Policy(workspace=Workspace("/w", "/h"), allow=parse_permission_rules(allowed))
        assert build_launch(narrow_profile, policy=rules).arguments == (argument,)


DENIED = CHOSEN.replace("allowed_tools", "denied_tools")


@pytest.mark.parametrize(
    ("profile", "able"),
    [(DENIED, False), (DENIED.replace("denied", "chosen"), True), (CHOSEN, True)],
)
def test_tool_selection_requires_a_list_of_remaining_tools(profile, able):
    """A list of denied tools would leave tools that the profile does not name."""
    vendor, only = (
        build_profile_adapter(profile),
        Policy(workspace=Workspace("/w", "/h"), only_tools=("Read",)),
    )
    request = LaunchRequest(
        parse_argv(("--tools", "Read")), "", permission_mode="bypassPermissions", policy=only
    )
    with (
        nullcontext()
        if able
        else pytest.raises(UnsupportedPermissionModeError, match="the tool selection")
    ):
        enforcement.check_policy_enforcement(vendor, only, request, late_denials=False)


@pytest.mark.parametrize(
    ("args", "removed"), [(("--tools", ""), ()), (("--tools", "Grep"), ()), ((), ("Bash", "Read"))]
)
def test_empty_tool_selection_is_refused(args, removed):
    with pytest.raises(
        FrontendError, match="none of the tools that --tools and the rules leave enabled"
    ):
        build_launch(CHOSEN, *args, removed_tools=removed)


SYSTEM = '[launch]\ncommand = ["own"]\nargv = [{ when = "system_prompt", args = ["--system", "{system_prompt}"] }'


def test_system_prompt_starting_with_a_dash_is_guarded():
    """Threat: values of the frontend that become flags."""
    assert build_launch(SYSTEM + "]\n", "--system-prompt", "--yolo").arguments == (
        "--system",
        " --yolo",
    )


def test_append_system_prompt_uses_a_separate_flag_if_available():
    both = (
        SYSTEM
        + ', { when = "append_system_prompt", args = ["--more", "{append_system_prompt}"] }]\n'
    )
    args = ("--system-prompt", "You are X.", "--append-system-prompt", "Be brief.")
    assert build_launch(both, *args).arguments == ("--system", "You are X.", "--more", "Be brief.")
    assert build_launch(SYSTEM + "]\n", *args).arguments == ("--system", "You are X.\n\nBe brief.")
    only = SYSTEM.replace("system_prompt", "append_system_prompt") + "]\n"
    launch = build_launch(only, *args)
    assert (launch.arguments, launch.stdin) == (("--system", "Be brief."), b"You are X.\n\nsay hi")


def test_oversized_system_prompt_is_sent_with_the_prompt():
    launch = build_launch(SYSTEM + "]\n", "--system-prompt", "x" * (MAX_ARGUMENT_BYTES + 1))
    assert launch.arguments == () and launch.stdin.endswith(b"xx\n\nsay hi")


def test_argument_value_starting_with_a_dash_is_rejected():
    """Threat: values of the frontend that become flags."""
    profile = '[launch]\ncommand = ["own"]\nargv = [{ each = "mcp_configs", args = ["--mcp", "{item}"] }]\n'
    assert build_launch(profile, "--mcp-config", "a.json").arguments == ("--mcp", "a.json")
    with pytest.raises(FrontendError, match="begins with a dash"):
        build_launch(profile, "--mcp-config=--yolo")


# -- prompts, environment, stdin -------------------------------------------------------------------


def test_argument_size_limit_is_configurable():
    profile = build_guarded_profile("--").replace("dash_guard", "max_bytes = 10, dash_guard")
    assert build_launch(profile, prompt="ü" * 5).arguments == ("--", "ü" * 5)
    assert build_launch(profile, prompt="ü" * 5 + "x").stdin == ("ü" * 5 + "x").encode()


def test_empty_prompt_is_refused_if_only_an_argument_is_accepted():
    with pytest.raises(FrontendError, match="takes its prompt only as an argument"):
        build_launch(build_guarded_profile("--", long="refuse"), prompt="")
    assert (
        build_launch(build_guarded_profile("stdin", long="refuse"), prompt="-x").stdin == b"-x"
    ), "whose guard is stdin reads it"


def test_prompt_file_is_listed_as_a_temporary_file():
    profile = (
        '[launch]\ncommand = ["own"]\nargv = ["-f", "{prompt_file}"]\nprompt = { via = "file" }\n'
    )
    launch = build_launch(profile, store_text=lambda text: f"/kept/{text}")
    assert (launch.arguments, launch.temporary_files, launch.stdin) == (
        ("-f", "/kept/say hi"),
        ("/kept/say hi",),
        b"",
    )


def test_env_unset_and_stdin_pipe_are_read_from_the_profile():
    launch = build_launch(
        f'{LAUNCH}env_unset = ["NODE_OPTIONS", "CI"]\nstdin = "pipe"\nprompt = {{ via = "stdin" }}\n'
    )
    assert (launch.unset_variables, launch.needs_stdin_pipe) == (("NODE_OPTIONS", "CI"), True)


@loop_over_rows("name", ["SHIM_DEPTH", "PATH", "HOME", "A-B", "A=B"])
def test_env_unset_rejects_required_variables(name):
    with pytest.raises(
        FrontendError, match=r"env_unset\[0\] is .* that the program does not require"
    ):
        build_profile_adapter(f'{LAUNCH}env_unset = ["{name}"]\n')


def test_interrupt_grace_is_configurable():
    assert (
        build_profile_adapter(
            LAUNCH + 'interrupt = { signal = "SIGINT", grace = 3 }\n'
        ).shutdown.grace_s
        == 3.0
    )
    assert build_profile_adapter(LAUNCH).shutdown.grace_s == 0.0
    with pytest.raises(
        FrontendError, match=r"interrupt\.grace is 60; it must be a number from 0.1 to 10"
    ):
        build_profile_adapter(LAUNCH + "interrupt = { grace = 60 }\n")

"""The start of each vendor: the exact arguments, stdin and environment for a frontend's request."""

import json
from itertools import pairwise, product
from pathlib import Path

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.adapter import MAX_ARGUMENT_BYTES, LaunchRequest
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.core.policy.policy import resolve_permission_mode

U = "11111111-2222-4333-8444-555555555555"
V = "99999999-8888-4777-8666-555555555555"
ALL = tuple(VENDORS)
QWEN = ("--output-format", "stream-json", "--approval-mode", "default")
CURSOR = ("-p", "--output-format", "stream-json", "--model", "auto")
CAKE = ("--output-format", "stream-json")
PI = ("--mode", "json")
CLAUDE = ("-p", "--output-format", "stream-json", "--verbose")


def launch(name, *args, prompt="say hi", resume_id=None, **fields):
    """Return a vendor's launch for a command line, and the request from which it was built."""
    vendor, invocation = get_adapter(name), parse_argv(args)
    mode = resolve_permission_mode(
        invocation.permission_mode,
        skips_permissions=invocation.skip_permissions,
    )
    fields.setdefault("store_text", lambda text, suffix=".txt": f"/kept{suffix}")
    request = LaunchRequest(
        invocation=invocation,
        prompt=prompt,
        mode_arguments=vendor.resolve_permission_mode_args(mode),
        permission_mode=mode,
        resume_id=resume_id or invocation.resume,
        removed_tools=tuple(sorted(build_policy(deny=invocation.disallowed_tools).removed_tools)),
        **fields,
    )
    return vendor.build_launch(request)


def pairs(args, flag):
    """Return the values of a flag, as `--flag value` or `--flag=value`."""
    values = [arg.partition("=")[2] for arg in args if arg.startswith(flag + "=")]
    return values + [value for arg, value in pairwise(args) if arg == flag]


# -- the simplest turn -----------------------------------------------------------------------------


@loop_over_rows(
    ("vendor", "expected_args", "stdin"),
    [
        ("acai", (*CAKE, "say hi"), b""),
        ("cake", (*CAKE, "say hi"), b""),
        ("claude", CLAUDE, b"say hi"),
        ("cursor", (*CURSOR, "say hi"), b""),
        ("demo", (), b"say hi"),
        ("pi", PI, b"say hi"),
        ("qwen", QWEN, b"say hi"),
    ],
)
def test_minimal_launch_has_the_expected_arguments_and_stdin(vendor, expected_args, stdin):
    started = launch(vendor, "-p", "--output-format", "stream-json", "--verbose")
    assert started.arguments == expected_args
    assert started.stdin == stdin
    assert ("QWEN_CODE_SUPPRESS_YOLO_WARNING" in started.environment) == (vendor == "qwen")


@loop_over_rows(
    ("mode", "persistent", "file"),
    [
        ("default", True, "qwen_asks_all.json"),
        ("plan", True, "qwen_asks_all.json"),
        ("acceptEdits", False, "qwen_asks_changes.json"),
        ("bypassPermissions", True, None),
        ("auto", True, None),
    ],
)
def test_qwen_gets_system_settings_that_ask_in_stricter_modes(mode, persistent, file):
    started = launch("qwen", "-p", "--permission-mode", mode, persistent=persistent)
    path = started.environment.get("QWEN_CODE_SYSTEM_SETTINGS_PATH")
    assert (path and path.rpartition("/")[2]) == file
    if path is not None:
        settings = json.loads(Path(path).read_bytes())
        assert settings["disableAllHooks"] is True and settings["permissions"]["deny"] == ["Agent"]
        assert {"Bash", "Edit", "mcp__*"} <= set(settings["permissions"]["ask"])
        assert ("Read" in settings["permissions"]["ask"]) == persistent


def test_qwen_excludes_denied_mcp_servers_but_not_a_denied_edit_tool():
    rules = build_policy(deny=["mcp__srv", "mcp__other__*", "mcp__third__get_*", "Edit", "Bash"])
    # Excluding `edit` also excludes write_file.
    started = launch(
        "qwen", "--disallowedTools", *map(str, rules.deny), persistent=True, policy=rules
    )
    assert sorted(pairs(started.arguments, "--exclude-tools")) == [
        *("mcp__other__*", "mcp__srv", "mcp__third__get_*", "run_shell_command")
    ]


@pytest.mark.parametrize("rule", ["mcp__s_x__do_it", "mcp__s.x__do_it"])
def test_qwen_excludes_every_alias_of_a_denied_mcp_tool(rule):
    """qwen appends a hash to a name with other characters: the tool `do it` of `s.x` is
    `mcp__s_x__do_it_1lf321w`.
    """
    rules = build_policy(deny=[rule])
    started = launch("qwen", "--disallowedTools", rule, policy=rules)
    excluded = set(pairs(started.arguments, "--exclude-tools"))
    assert excluded == {rule, "mcp__s_x__do_it", "mcp__s_x__do_it_0*", "mcp__s_x__do_it_1*"}


@pytest.mark.parametrize(
    ("flags", "has"), [((), True), (("--permission-mode", "bypassPermissions"), False)]
)
def test_qwen_excludes_the_question_tool_in_bypass_mode(flags, has):
    """Measured with 0.24.4: in its least restrictive mode it reports to its model that no answers
    were given, and does not ask.
    """
    assert (
        "--exclude-tools=ask_user_question" not in launch("qwen", *flags, persistent=True).arguments
    ) is has


def test_acai_instruct_variant_uses_a_subcommand_and_a_prompt_flag():
    started = launch("acai", "--model", "m1", variant="instruct")
    assert started.arguments == (
        "instruct",
        "--streaming-json",
        "--model",
        "m1",
        "--prompt",
        "say hi",
    )


# -- options of each vendor ------------------------------------------------------------------------

TABLE = [
    # Flags, vendor, the arguments that follow those of the simplest turn (before a positional
    # prompt).
    (("--model", "m1"), "acai", ("--model", "m1")),
    (("--model", "m1"), "pi", ("--model", "m1")),
    (("--model", "m1"), "qwen", ("--model", "m1")),
    (("--model", "m1"), "claude", ("--model=m1",)),
    (("--fallback-model", "m2"), "qwen", ("--fallback-model", "m2")),
    (("--fallback-model", "m2"), "pi", ()),
    (
        ("--include-partial-messages", "--output-format", "stream-json"),
        "qwen",
        ("--include-partial-messages",),
    ),
    (("--include-partial-messages", "--output-format", "stream-json"), "pi", ()),
    # Sessions.
    (("--resume", U), "acai", ("--resume", U)),
    (("--resume", U, "--fork-session"), "cake", ("--fork", U)),
    (("--session-id", U), "cake", ()),
    (("--resume", U), "cursor", ("--resume", U)),
    (("--session-id", U), "cursor", ("--resume", U)),
    (("--resume", U), "pi", ("--session", U)),
    (("--resume", U, "--fork-session"), "pi", ("--fork", U)),
    (("--session-id", U), "pi", ("--session-id", U)),
    (("--resume", U), "qwen", ("--resume", U)),
    (("--resume", U, "--fork-session"), "qwen", ("--resume", U, "--fork-session")),
    (
        ("--resume", U, "--fork-session", "--session-id", V),
        "qwen",
        ("--resume", U, "--fork-session"),
    ),
    (("--session-id", U), "qwen", ("--session-id", U)),
    (("--resume", U, "--fork-session"), "claude", (f"--resume={U}", "--fork-session")),
    (("--session-id", U), "claude", (f"--session-id={U}",)),
    (("-c",), "claude", ("--continue",)),
    # Texts.
    (("--append-system-prompt", "Be brief."), "qwen", ("--append-system-prompt", "Be brief.")),
    (("--system-prompt", "You are X."), "qwen", ("--system-prompt", "You are X.")),
    (("--append-system-prompt", "Be brief."), "pi", ("--append-system-prompt", "Be brief.")),
    (("--append-system-prompt", "Be brief."), "claude", ("--append-system-prompt=Be brief.",)),
    # Tools.
    (("--tools", "Read,Glob"), "qwen", ("--core-tools=read_file", "--core-tools=glob")),
    (("--disallowedTools", "Bash"), "qwen", ("--exclude-tools=run_shell_command",)),
    (("--disallowedTools", "Bash(rm *)"), "qwen", ()),
    (("--disallowedTools", "Bash(rm *)"), "claude", ("--disallowedTools=Bash(rm *)",)),
    (("--tools", ""), "claude", ("--tools=",)),
    (("--tools", "default"), "claude", ()),
    # Limits and folders.
    (("--max-turns", "3"), "qwen", ("--max-session-turns", "3")),
    (("--max-turns", "3"), "cursor", ()),
    (("--max-turns", "3"), "claude", ("--max-turns=3",)),
    (("--max-turns", "0"), "qwen", ()),
    (("--add-dir", "/a", "/b"), "cake", ("--add-dir", "/a", "--add-dir", "/b")),
    (("--add-dir", "/a"), "cursor", ("--add-dir", "/a")),
    (("--add-dir", "/a"), "qwen", ("--add-dir", "/a")),
    (("--add-dir", "/a"), "pi", ()),
    (("--mcp-config", '{"mcpServers":{}}'), "qwen", ('--mcp-config={"mcpServers":{}}',)),
    (("--mcp-config", "servers.json"), "qwen", ("--mcp-config=servers.json",)),
    (("--mcp-config", '{"mcpServers":{"own":{"type":"sdk","name":"own"}}}'), "qwen", ()),
    (
        ("--mcp-config", '{"mcpServers":{"own":{"type":"sdk"},"far":{"command":"far"}}}'),
        "qwen",
        ('--mcp-config={"mcpServers":{"far":{"command":"far"}}}',),
    ),
    (
        ("--mcp-config", '{"mcpServers":{"own":{"type":"sdk"}}}'),
        "claude",
        ('--mcp-config={"mcpServers":{"own":{"type":"sdk"}}}',),
    ),
    (("--json-schema", "{}"), "qwen", ("--json-schema", "{}")),
    # Claude's flags that no vendor has, and unknown flags.
    (("--betas", "b1", "--effort", "high", "--no-such-flag=x"), "qwen", ()),
    (("--betas", "b1", "--effort", "high", "--no-such-flag=x"), "pi", ("--thinking", "high")),
    (("--effort", "max"), "pi", ("--thinking", "xhigh")),
    (("--effort", "max"), "codex", ("-c", 'model_reasoning_effort="xhigh"')),
    (("--effort", "low"), "opencode", ("--variant", "low")),
    (
        ("--betas", "b1", "--effort", "high", "--no-such-flag=x"),
        "claude",
        ("--effort=high", "--betas=b1"),
    ),
    (("--setting-sources", "user", "--strict-mcp-config", "--settings", "{}"), "cursor", ()),
]


@loop_over_rows(("args", "vendor", "more"), TABLE)
def test_option_is_translated_to_the_vendor_flag(args, vendor, more):
    plain = launch(vendor).arguments
    positional = plain[-1:] if plain[-1:] == ("say hi",) else ()
    expected = (*plain[: len(plain) - len(positional)], *more, *positional)
    actual = launch(vendor, *args).arguments
    assert sorted(actual) == sorted(expected)
    if vendor not in ("qwen", "cursor"):
        assert actual == expected
    joined = " ".join(actual)
    for flag, value in pairwise(more):
        if flag.startswith("--") and not value.startswith("--"):
            assert f"{flag} {value}" in joined


def test_cursor_always_receives_a_model():
    assert pairs(launch("cursor").arguments, "--model") == ["auto"]
    assert pairs(launch("cursor", "--model", "gpt-5.1").arguments, "--model") == ["gpt-5.1"]


def test_resume_passes_the_vendor_session_id():
    for vendor, flag in {
        "cake": "--resume",
        "cursor": "--resume",
        "pi": "--session",
        "qwen": "--resume",
    }.items():
        args = launch(vendor, "--resume", U, resume_id="own-id").arguments
        assert pairs(args, flag) == ["own-id"], vendor
        assert U not in args


def test_pi_omits_the_session_id_flag_if_unsupported():
    assert launch("pi", "--session-id", U, has_flag=lambda flag: False).arguments == PI


@pytest.mark.parametrize("vendor", ["acai", "cake", "cursor"])
def test_system_prompts_precede_the_prompt_if_the_vendor_has_no_flag(vendor):
    started = launch(vendor, "--system-prompt", "You are X.", "--append-system-prompt", "Be brief.")
    assert started.arguments[-1] == "You are X.\n\nBe brief.\n\nsay hi"


def test_cursor_trust_flag_requires_the_trust_setting():
    assert "--trust" not in launch("cursor").arguments
    assert "--trust" not in launch("cursor", "--permission-mode", "bypassPermissions").arguments
    assert "--trust" in launch("cursor", opens_trust_prompt=True).arguments


# -- prompts ---------------------------------------------------------------------------------------


# A space protects their prompts: tests/adapters/test_bundled_profiles.py.
WITHOUT_STDIN = ("amp", "cline", "kimi", "kimi-code")
REQUESTED = ("qwen-rfc",)  # the prompt is a part of a request
DASHED = ("acai", "cake", "codex")  # `-` means that the prompt is on stdin


PROMPTS = ("--yolo", "--yolo and more", "--", "-", "@/etc/passwd", "@a and b", "-p\n x")
LONG_PROMPTS = ("p " * MAX_ARGUMENT_BYTES, "ü " * 40_000)


@loop_over_rows("vendor", [name for name in ALL if name not in WITHOUT_STDIN])
def test_long_or_flag_like_prompt_is_sent_on_stdin(vendor):
    for prompt in (*PROMPTS, *LONG_PROMPTS):
        started = launch(vendor, prompt=prompt)
        prompt_text = started.stdin.decode()
        if vendor in REQUESTED:
            prompt_text = json.loads(prompt_text)["input"]["parts"][0]["text"]
        assert prompt_text == prompt
        assert list(started.arguments).count(prompt) == (vendor in DASHED and prompt == "-"), (
            prompt[:20]
        )
        if vendor in DASHED:
            assert started.arguments[-1] == "-", prompt[:20]


def test_acai_instruct_variant_receives_a_flag_like_prompt_on_stdin():
    started = launch("acai", prompt="--yolo", variant="instruct")
    assert started.arguments == ("instruct", "--streaming-json")
    assert started.stdin == b"--yolo"


def test_long_system_prompt_moves_the_prompt_to_stdin():
    started = launch("cursor", "--append-system-prompt", "s" * MAX_ARGUMENT_BYTES)
    assert started.arguments == CURSOR
    assert started.stdin.endswith(b"\n\nsay hi")


SUBCOMMANDS = {
    "cursor": (
        "login",
        "logout",
        "status",
        "about",
        "models",
        "create-chat",
        "ls",
        "resume",
        "mcp",
        "update",
    ),
    "cake": ("replay", "init", "sessions", "bash", "debug"),
}


@loop_over_rows(
    ("vendor", "subcommand"),
    [(name, subcommand) for name, subcommands in SUBCOMMANDS.items() for subcommand in subcommands],
)
def test_prompt_that_equals_a_subcommand_is_sent_on_stdin(vendor, subcommand):
    """commander and clap look for a subcommand in the first positional: `logout` would log the
    person out.
    """
    started = launch(vendor, prompt=subcommand)
    assert subcommand not in started.arguments
    assert started.stdin == subcommand.encode()


# -- values that could become a flag or add a permission -------------------------------------------

HOSTILE = ("--yolo", "--force", "-y", "--approval-mode=yolo", "--shim-vendor=x")
CARRIERS = (
    "--append-system-prompt",
    "--system-prompt",
    "--fallback-model",
    "--json-schema",
    "--mcp-config",
    "--allowedTools",
    "--tools",
    "--disallowedTools",
    "--settings",
    "--agents",
)
NEED_A_TOOL = ("droid", "vibe")  # no flag disables all of their tools
# pi does not parse an argument again after it has taken it as the value of one of these flags.
TAKES_ANYTHING = {"pi": ("--system-prompt", "--append-system-prompt")}


@loop_over_rows("vendor", ALL)
def test_option_value_never_becomes_a_vendor_flag(vendor):
    """qwen (yargs) reads `--append-system-prompt --yolo` as two flags. Flag and value must be one
    argument.
    """
    for carrier, value in product(CARRIERS, HOSTILE):
        try:
            args = launch(vendor, f"{carrier}={value}").arguments
        except FrontendError:
            assert carrier == "--tools" and vendor in NEED_A_TOOL
            continue
        for before, arg in zip(("", *args), args, strict=False):
            if arg == value:
                assert before in TAKES_ANYTHING.get(vendor, ()), (
                    f"{carrier}={value} became {before} {arg}"
                )


WIDER = {
    *("--yolo", "-y", "yolo", "--force", "-f", "--dangerously-skip-permissions"),
    *(
        "--allow-dangerously-skip-permissions",
        "--permission-mode=bypassPermissions",
        "--approve",
        "-a",
    ),
    *("--approve-mcps", "--auto-review", "--trust", "--skip-trust", "--sandbox"),
}


@loop_over_rows("vendor", ALL)
def test_stricter_modes_add_no_flag_that_widens_permissions(vendor):
    for mode in ("default", "plan", "acceptEdits", "dontAsk", "auto", "manual"):
        flags = ("--permission-mode", mode, "--allowedTools", "Bash", "--max-turns", "3")
        try:
            args = launch(vendor, *flags).arguments
        except FrontendError:
            assert mode in ("plan", "acceptEdits", "dontAsk", "auto"), (
                "the default is never refused"
            )
        else:
            assert not WIDER & set(args), f"{mode} became {sorted(WIDER & set(args))}"


@pytest.mark.parametrize("vendor", [name for name in ALL if name != "claude"])
def test_allow_dangerously_skip_permissions_adds_no_bypass_flag(vendor):
    assert not WIDER & set(launch(vendor, "--allow-dangerously-skip-permissions").arguments)


@loop_over_rows(
    ("vendor", "more"),
    [
        ("acai", ()),
        ("cake", ()),
        ("cursor", ("--force",)),
        ("demo", ()),
        ("pi", ()),
        ("qwen", ("--approval-mode", "yolo")),
    ],
)
@loop_over_rows(
    "flags", [("--dangerously-skip-permissions",), ("--permission-mode", "bypassPermissions")]
)
def test_bypass_mode_uses_the_bypass_flag_of_the_vendor(vendor, more, flags):
    args = launch(vendor, *flags).arguments
    assert set(args) & {"--force", "yolo"} == set(more) & {"--force", "yolo"}
    assert [arg for arg in args if arg in more] == list(more)


@loop_over_rows(
    ("mode", "expected"),
    [
        (None, "default"),
        ("default", "default"),
        ("manual", "default"),
        ("plan", "plan"),
        ("acceptEdits", "default"),
        ("dontAsk", "default"),
        ("auto", "auto"),
    ],
)
def test_qwen_always_receives_an_approval_mode(mode, expected):
    """qwen 0.24 would use `auto` by default."""
    args = launch("qwen", *(["--permission-mode", mode] if mode else [])).arguments
    assert pairs(args, "--approval-mode") == [expected]


NARROW = [
    # Vendor, mode, the arguments that keep the vendor in that mode.
    ("cline", "default", "--auto-approve false"),
    ("cline", "plan", "--plan --auto-approve false"),
    ("codex", "default", '-c sandbox_mode="read-only"'),
    ("codex", "plan", '-c sandbox_mode="read-only"'),
    ("codex", "acceptEdits", '-c sandbox_mode="read-only"'),
    ("copilot", "plan", "--plan"),
    ("copilot", "acceptEdits", "--allow-tool=write"),
    ("cursor", "plan", "--mode plan"),
    ("droid", "default", "--only-tools LS,Grep,Glob,Read,TodoWrite"),
    ("gemini", "default", "--approval-mode default"),
    ("gemini", "plan", "--approval-mode plan"),
    ("gemini", "acceptEdits", "--approval-mode auto_edit"),
    ("kilo", "plan", "--agent plan"),
    ("opencode", "plan", "--agent plan"),
    ("qwen-rfc", "default", "--approval-mode default"),
    ("qwen-rfc", "plan", "--approval-mode plan"),
    ("qwen-rfc", "acceptEdits", "--approval-mode auto-edit"),
    ("qwen-rfc", "dontAsk", "--approval-mode default"),
    ("vibe", "default", "--agent ask"),
    ("vibe", "acceptEdits", "--agent accept-edits"),
]


@loop_over_rows(("vendor", "mode", "expected"), NARROW)
def test_stricter_mode_adds_the_restricting_vendor_arguments(vendor, mode, expected):
    assert f" {expected} " in f" {' '.join(launch(vendor, '--permission-mode', mode).arguments)} "


def test_unsupported_mode_error_lists_the_supported_modes():
    with pytest.raises(
        FrontendError, match="pi does not support the permission mode auto; it supports default,"
    ):
        launch("pi", "--permission-mode", "auto")


# -- tools -----------------------------------------------------------------------------------------

READ_ONLY = "read,grep,find,ls"


@loop_over_rows(
    ("flags", "expected"),
    [
        ((), None),
        (("--permission-mode", "plan"), READ_ONLY),
        (("--permission-mode", "acceptEdits"), f"{READ_ONLY},edit,write"),
        (("--dangerously-skip-permissions",), None),
        (("--tools", "Read,Grep"), "read,grep"),
        (("--tools", "Read", "--permission-mode", "plan"), "read"),
        (("--tools", "Read,Bash", "--permission-mode", "plan"), "read"),
        (("--tools", "Bash", "--permission-mode", "plan"), ""),
        (("--tools", ""), ""),
        (("--tools", "WebSearch"), ""),
        (("--tools", "NoSuchTool"), ""),
        (("--disallowedTools", "Bash"), "read,edit,write"),
        (("--disallowedTools", "Bash(rm *)"), None),
        (("--disallowedTools", "WebSearch"), None),
        (("--disallowedTools", "Edit", "--permission-mode", "acceptEdits"), f"{READ_ONLY},write"),
        (("--tools", "Read", "--disallowedTools", "Read"), ""),
        (("--allowedTools", "Read"), None),
        (("--allowedTools", "Bash(git *)"), None),
        (
            ("--allowedTools", "Bash", "--permission-mode", "acceptEdits"),
            f"{READ_ONLY},edit,write,bash",
        ),
        (
            ("--allowedTools", "Bash(git *)", "--permission-mode", "acceptEdits"),
            f"{READ_ONLY},edit,write",
        ),
        (("--allowedTools", "Bash", "--permission-mode", "plan"), READ_ONLY),
        (("--allowedTools", "mcp__server__tool"), None),
    ],
)
def test_pi_tool_list_follows_the_tool_flags_and_the_mode(flags, expected):
    args = launch("pi", *flags).arguments
    if expected is None:
        assert args == PI
    elif expected:
        assert sorted(pairs(args, "--tools")[0].split(",")) == sorted(expected.split(","))
    else:
        assert "--no-tools" in args and "--tools" not in args


@pytest.mark.parametrize("tool_names", ["", "NoSuchTool", "MultiEdit"])
def test_qwen_stays_restricted_if_no_requested_tool_is_supported(tool_names):
    args = launch("qwen", f"--tools={tool_names}").arguments
    excluded = {name for value in pairs(args, "--exclude-tools") for name in value.split(",")}
    assert pairs(args, "--core-tools") or {"run_shell_command", "write_file", "edit"} <= excluded


@loop_over_rows("name", [name for name in ALL if name not in ("claude", "qwen")])
def test_denied_tool_is_not_listed_as_available(name):
    """qwen and claude list their tools themselves."""
    vendor = get_adapter(name)
    for denied in vendor.listed_tools:
        request = LaunchRequest(
            parse_argv([f"--disallowedTools={denied}"]), "", removed_tools=(denied,)
        )
        assert denied not in build_policy(deny=(denied,)).list_visible_tools(
            vendor.list_available_tools(request)
        )


def test_qwen_structured_output_tool_is_not_excluded_by_empty_tools():
    """Measured with 0.24.4: --core-tools does not affect structured_output, --exclude-tools
    does.
    """
    args = launch("qwen", "--json-schema", "{}", "--tools", "").arguments
    assert "--exclude-tools=edit" in args
    assert "--exclude-tools=structured_output" not in args


def test_persistent_qwen_receives_no_json_schema():
    """Measured with 0.24.4: qwen exits if --json-schema is combined with --input-format
    stream-json.
    """
    assert "--json-schema" not in launch("qwen", "--json-schema", "{}", persistent=True).arguments


# -- a real claude ---------------------------------------------------------------------------------


def test_claude_receives_denied_tools_from_flags_and_settings():
    request = LaunchRequest(
        parse_argv(["--disallowedTools", "Bash(rm *)"]), "hi", removed_tools=("Write",)
    )
    denied = pairs(get_adapter("claude").build_launch(request).arguments, "--disallowedTools")
    assert denied == ["Bash(rm *)", "Write"]


@pytest.mark.parametrize("persistent", [True, False])
def test_flat_claude_prompts_on_stdio_only_if_persistent(persistent):
    args = (
        get_adapter("claude", without_passthrough=True)
        .build_launch(LaunchRequest(parse_argv([]), "hi", persistent=persistent))
        .arguments
    )
    assert pairs(args, "--permission-prompt-tool") == ["stdio"] * persistent
    assert "--include-partial-messages" in args


@pytest.mark.parametrize("mode", ["plan", "acceptEdits"])
def test_pi_disables_mcp_in_stricter_modes_without_prompts(mode):
    """The help of pi 1.0.4 states that `--tools` keeps the tools of its MCP servers."""
    assert "--no-mcp" in launch("pi", "--permission-mode", mode).arguments
    assert "--no-mcp" not in launch("pi", "--permission-mode", mode, persistent=True).arguments
    # The same applies if its help came too late.
    older = launch("pi", "--permission-mode", mode, has_flag=lambda flag: False).arguments
    assert "--no-mcp" not in older and any(
        name.startswith("mcp__") for name in pairs(older, "--tools")[0].split(",")
    )


def test_pi_disables_mcp_if_a_rule_names_an_mcp_tool():
    rules = build_policy(deny=("mcp__server__tool",))
    assert "--no-mcp" in launch("pi", policy=rules).arguments
    assert (
        "mcp__"
        in pairs(launch("pi", policy=rules, has_flag=lambda flag: False).arguments, "--tools")[0]
    )
    assert launch("pi", policy=build_policy(deny=("Bash(rm *)",))).arguments == PI
    assert "--no-mcp" not in launch("pi", "--dangerously-skip-permissions").arguments


@loop_over_rows(
    ("flags", "fields", "restores_tools"),
    [
        ((), {"persistent": True}, True),
        (("--permission-mode", "acceptEdits"), {"persistent": True}, False),
        (("--dangerously-skip-permissions",), {}, True),
        ((), {}, False),
        (("--dangerously-skip-permissions",), {"has_flag": lambda flag: False}, False),
    ],
)
def test_resumed_pi_session_restores_its_builtin_tools(flags, fields, restores_tools):
    """pi 1.3 keeps the tools of a session. Without names, those of a plan would stay."""
    args = launch("pi", *flags, "--resume", U, **fields).arguments
    assert ("+read,+bash,+edit,+write" in pairs(args, "--tools")) is restores_tools
    assert "+" not in "".join(pairs(launch("pi", *flags, **fields).arguments, "--tools"))


def test_pi_permission_extension_limits_edits_to_the_session_folders():
    started = launch("pi", "--permission-mode", "acceptEdits", "--add-dir", "/elsewhere")
    assert pairs(started.arguments, "-e")[0].endswith("/adapters/pi_gate.js")
    extension_config = json.loads(started.enforced_environment["PI_GATE"])
    assert extension_config["folders"] == [".", "/elsewhere"]
    assert ".git" in extension_config["names"]
    assert "-e" not in launch("pi").arguments


def test_accept_edits_is_refused_if_pi_might_not_load_the_extension():
    with pytest.raises(
        FrontendError, match="edits to the session's folders: it runs in a container"
    ):
        launch("pi", "--permission-mode", "acceptEdits", policy_bypass="it runs in a container")

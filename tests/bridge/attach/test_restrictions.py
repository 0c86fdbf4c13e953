"""What the flags of a frontend forbid beyond those of the session that it joins."""

import pytest

from shim.bridge.attach.restrictions import (
    JoinRestrictions,
    compute_restrictions_of_joining_frontend,
    load_restrictions_of_joining_frontend,
)
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.policy import parse_permission_rules
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook
from shim.state.claude_settings import load_claude_settings

NO_FILES = ClaudeSettings()


def less(flags="", session_flags="", mode="default", settings=NO_FILES, known_settled=NO_FILES):
    return compute_restrictions_of_joining_frontend(
        parse_argv(flags.split()), settings, parse_argv(session_flags.split()), known_settled, mode
    )


@pytest.mark.parametrize(
    ("flags", "session_flags"),
    [
        ("", "--permission-mode acceptEdits --disallowedTools Bash --allowedTools Read"),
        ("--disallowedTools Bash", "--disallowedTools Bash,Read"),
        ("--disallowedTools Bash(rm:*)", "--disallowedTools Bash"),
        ("--tools Read", "--tools Read"),
        ("--permission-prompt-tool stdio --setting-sources local,user,project", ""),
        ("--setting-sources=", "--setting-sources="),
        ("--max-turns 3 --max-budget-usd 1.5", "--max-turns 3 --max-budget-usd 1.5"),
        ("--model opus --allowedTools Read", "--model opus --allowedTools Read"),
    ],
)
def test_flags_no_stricter_than_the_session_add_no_restrictions(flags, session_flags):
    assert less(flags, session_flags) == JoinRestrictions()


def test_deny_rules_of_the_frontend_are_added_to_the_session():
    restrictions = less("--disallowedTools AskUserQuestion,Bash(rm:*)", "--disallowedTools Read")
    assert restrictions == JoinRestrictions(
        deny=("AskUserQuestion", "Bash(rm:*)"), sources=("--disallowedTools",)
    )


def test_settings_rules_are_resolved_against_the_folder_of_their_source():
    rules = parse_permission_rules(["Read(/secret/**)", "Bash"], "/home/me", "--settings")
    restrictions = less(settings=ClaudeSettings(deny=rules[:1], ask=rules[1:]))
    assert restrictions == JoinRestrictions(
        deny=("Read(//home/me/secret/**)",), ask=("Bash",), sources=("--settings",)
    )
    assert (
        less(settings=ClaudeSettings(ask=rules), known_settled=ClaudeSettings(ask=rules))
        == JoinRestrictions()
    )
    odd = parse_permission_rules(["Edit(/x/*)", "Read(//a)", "Edit(y)"], "/w/[slug]", "settings")
    assert less(settings=ClaudeSettings(deny=odd)).deny == (
        "Edit(//w/\\[slug]/x/*)",
        "Read(//a)",
        "Edit(y)",
    )


def test_rule_allowed_only_by_the_session_becomes_an_ask_rule():
    restrictions = less("--allowedTools Read", "--allowedTools Read,Bash(git:*)")
    assert restrictions == JoinRestrictions(ask=("Bash(git:*)",), sources=("--allowedTools",))


def test_rule_allowed_only_by_the_session_settings_becomes_an_ask_rule():
    allow = parse_permission_rules(["Bash"], "", "settings")
    assert less("--allowedTools Read", known_settled=ClaudeSettings(allow=allow)).ask == ("Bash",)
    both = ClaudeSettings(allow=allow)
    assert (
        less("--allowedTools Read", "--allowedTools Read", settings=both, known_settled=both)
        == JoinRestrictions()
    )


@pytest.mark.parametrize(
    ("flags", "mode", "known_mode", "chosen"),
    [
        ("--settings x", "plan", None, "plan"),
        ("--settings x", "plan", "plan", "plan"),
        ("", "plan", "plan", ""),
        ("", "plan", None, "plan"),
        ("--permission-mode default", "plan", None, "default"),
        ("--settings x", "bypassPermissions", None, ""),
    ],
)
def test_stricter_mode_from_frontend_settings_is_applied_to_the_session(
    flags, mode, known_mode, chosen
):
    """A session whose files ask for the same was begun in another mode by whoever began it."""
    restrictions = less(
        flags,
        mode="acceptEdits",
        settings=ClaudeSettings(mode=mode),
        known_settled=ClaudeSettings(mode=known_mode),
    )
    assert restrictions == JoinRestrictions(mode=chosen)


@pytest.mark.parametrize(
    "flag",
    [
        *(
            "--strict-mcp-config",
            "--no-session-persistence",
            "--bare",
            "--safe-mode",
            "--disable-slash-commands",
        ),
        *("--agent x", "--task-budget 3", "--resume-session-at x"),
    ],
)
def test_flag_that_reduces_a_running_session_is_refused_by_name(flag):
    assert less(flag).refusals == (f"{flag.partition(' ')[0]} leaves it less",)
    assert less(flag, flag) == JoinRestrictions()


def test_unsupported_restricting_settings_key_is_refused():
    key = "sandbox in --settings"
    assert less(settings=ClaudeSettings(unsupported_keys=(key,))).refusals == (
        f"{key} restricts it",
    )
    assert (
        less(
            settings=ClaudeSettings(unsupported_keys=(key,)),
            known_settled=ClaudeSettings(unsupported_keys=(key,)),
        )
        == JoinRestrictions()
    )


def test_repeated_flag_without_effect_is_listed_once_as_ignored():
    restrictions = less(
        "--chrome --betas a --betas b --nonsense --managed-settings {} --ide", "--ide"
    )
    assert restrictions == JoinRestrictions(ignored_flags=("--chrome", "--betas", "--nonsense"))


@pytest.mark.parametrize(
    ("flags", "mode", "chosen", "ignored_flags"),
    [
        ("--permission-mode plan", "default", "plan", ()),
        ("--permission-mode default", "acceptEdits", "default", ()),
        ("--permission-mode manual", "default", "", ()),
        ("--permission-mode acceptEdits", "default", "", ("--permission-mode",)),
        ("--permission-mode plan", "plan", "plan", ()),
        ("--permission-mode dontAsk", "plan", "dontAsk", ("--permission-mode",)),
        ("--dangerously-skip-permissions", "default", "", ("--dangerously-skip-permissions",)),
        ("", "acceptEdits", "", ()),
    ],
)
def test_stricter_mode_is_applied_and_wider_mode_is_ignored(flags, mode, chosen, ignored_flags):
    assert less(flags, mode=mode) == JoinRestrictions(mode=chosen, ignored_flags=ignored_flags)


def test_flags_that_widen_or_change_the_session_are_listed_as_ignored():
    flags = "--allowedTools Bash --mcp-config {} --effort low --append-system-prompt x --add-dir /d"
    restrictions = less(flags, "--add-dir /d")
    assert restrictions == JoinRestrictions(
        ignored_flags=("--allowedTools", "--mcp-config", "--effort", "--append-system-prompt")
    )
    assert (
        compute_restrictions_of_joining_frontend(
            parse_argv(["--system-prompt", ""]), NO_FILES, parse_argv([]), NO_FILES, "default"
        )
        == JoinRestrictions()
    )


@pytest.mark.parametrize(
    ("flags", "session_flags", "ignored_flag"),
    [
        ("--tools Read,Edit", "--tools Read", "--tools"),
        ("--max-thinking-tokens 0", "--max-thinking-tokens 9", "--max-thinking-tokens"),
        ("--permission-prompts here", "--permission-prompts there", "--permission-prompts"),
        ("--setting-sources=", "", "--setting-sources"),
        ("--setting-sources user", "--setting-sources user,project", "--setting-sources"),
        ("--agents {}", '--agents {"a":1}', "--agents"),
    ],
)
def test_flag_that_differs_from_the_session_value_is_listed_as_ignored(
    flags, session_flags, ignored_flag
):
    assert less(flags, session_flags) == JoinRestrictions(ignored_flags=(ignored_flag,))
    assert less(flags, flags) == JoinRestrictions()


def test_permission_prompt_tool_is_listed_as_ignored():
    assert less("--permission-prompt-tool mcp__judge__ask") == JoinRestrictions(
        ignored_flags=("--permission-prompt-tool",)
    )


def test_strict_mcp_config_with_fewer_servers_than_the_session_is_refused():
    restrictions = less(
        "--strict-mcp-config --mcp-config a", "--strict-mcp-config --mcp-config a b"
    )
    assert restrictions.refusals == ("--strict-mcp-config leaves it less",)
    assert (
        less("--strict-mcp-config --mcp-config a", "--strict-mcp-config --mcp-config a")
        == JoinRestrictions()
    )


def test_bypass_mode_is_blocked_while_a_frontend_that_forbids_bypass_is_joined():
    assert less(settings=ClaudeSettings(bypass_forbidden_by="managed")) == JoinRestrictions(
        mode="acceptEdits"
    )
    assert less(
        "--permission-mode plan", settings=ClaudeSettings(bypass_forbidden_by="managed")
    ) == JoinRestrictions(mode="plan")
    assert (
        less(
            settings=ClaudeSettings(bypass_forbidden_by="m"),
            known_settled=ClaudeSettings(bypass_forbidden_by="m"),
        )
        == JoinRestrictions()
    )


def test_join_requests_the_model_of_the_frontend():
    assert less("--model small", "--model large").model == "small"


def test_join_is_refused_if_a_running_session_cannot_apply_a_restriction():
    hook = SettingsHook("Bash", "./judge", source="--settings")
    assert less("--tools Read", settings=ClaudeSettings(hooks=(hook,))).refusals == (
        "--tools leaves fewer tools",
        "a hook in --settings judges calls",
    )
    assert less("--json-schema {}").refusals == ("--json-schema asks for another answer",)
    assert less("--restricted").refusals == ("--restricted forbids more",)
    forbids = ClaudeSettings(bypass_forbidden_by="managed")
    assert less(mode="bypassPermissions", settings=forbids).refusals == (
        "managed forbids the mode bypassPermissions",
    )


def test_lower_turn_or_budget_limit_is_refused_and_higher_limit_is_ignored():
    assert less("--max-turns 3").refusals == ("--max-turns ends a turn sooner",)
    assert less("--max-budget-usd 1", "--max-budget-usd 2").refusals == (
        "--max-budget-usd ends a turn sooner",
    )
    assert less("--max-turns 9", "--max-turns 3") == JoinRestrictions(
        ignored_flags=("--max-turns",)
    )


def test_relative_paths_are_resolved_against_the_folder_of_their_flags(tmp_path, monkeypatch):
    here, other_folder = tmp_path / "here", tmp_path / "there"
    for folder, denied in ((here, "mine"), (other_folder, "yours")):
        folder.mkdir()
        (folder / "s.json").write_text(
            f'{{"permissions": {{"deny": ["Read({denied}/**)", "Read(~/z)"]}}}}'
        )
    monkeypatch.chdir(here)
    session = parse_argv(
        ["--settings", "s.json", "--disallowedTools", "Edit(./x/y)", "--add-dir", "d"]
    )
    read = load_claude_settings(
        parse_argv(["--settings", f"{other_folder}/s.json"]), {}, str(other_folder)
    )

    def build_restrictions(*argv):
        return load_restrictions_of_joining_frontend(
            parse_argv(argv), session, read, str(other_folder), "default", {"HOME": str(tmp_path)}
        )

    assert build_restrictions() == JoinRestrictions()
    assert build_restrictions("--settings", "s.json").deny == (f"Read(/{here}/**/mine/**)",)
    assert (
        build_restrictions("--disallowedTools", f"Edit(/{other_folder}/x/y)") == JoinRestrictions()
    )
    assert build_restrictions("--disallowedTools", "Edit(./x/y)").deny == (f"Edit(/{here}/x/y)",)
    assert (
        build_restrictions("--add-dir", "d").ignored_flags == ("--add-dir",)
        and build_restrictions("--add-dir", f"{other_folder}/d") == JoinRestrictions()
    )
    monkeypatch.chdir(other_folder)
    assert (
        build_restrictions(
            "--settings", "s.json", "--disallowedTools", "Edit(./x/y)", "--add-dir", "d"
        )
        == JoinRestrictions()
    )
    assert build_restrictions("--disallowedTools", "Edit(./z)").deny == ("Edit(./z)",)

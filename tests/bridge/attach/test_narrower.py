"""What the flags of a frontend forbid beyond those of the session that it joins."""

import pytest

from shim.bridge.attach.restrictions import (
    JoinRestrictions,
    compute_join_restrictions,
    load_join_restrictions,
)
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.rules import parse_permission_rules
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook
from shim.state.claude_settings import load_claude_settings

NO_FILES = ClaudeSettings()


def less(flags="", session_flags="", mode="default", settings=NO_FILES, known_settled=NO_FILES):
    return compute_join_restrictions(
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
def test_flags_that_forbid_no_more_ask_for_nothing(flags, session_flags):
    assert less(flags, session_flags) == JoinRestrictions()


def test_calls_that_the_frontend_denies_are_denied_in_the_session():
    restrictions = less("--disallowedTools AskUserQuestion,Bash(rm:*)", "--disallowedTools Read")
    assert restrictions == JoinRestrictions(
        deny=("AskUserQuestion", "Bash(rm:*)"), sources=("--disallowedTools",)
    )


def test_rules_of_its_settings_count_with_the_folder_that_they_are_for():
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


def test_what_the_session_was_allowed_and_the_frontend_does_not_allow_is_asked_about():
    restrictions = less("--allowedTools Read", "--allowedTools Read,Bash(git:*)")
    assert restrictions == JoinRestrictions(ask=("Bash(git:*)",), sources=("--allowedTools",))


def test_what_the_sessions_settings_allowed_and_the_frontend_does_not_is_asked_about():
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
def test_a_narrower_mode_of_the_frontends_own_settings_is_chosen(flags, mode, known_mode, chosen):
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
def test_flags_that_leave_a_session_less_are_refused_by_their_names(flag):
    assert less(flag).refusals == (f"{flag.partition(' ')[0]} leaves it less",)
    assert less(flag, flag) == JoinRestrictions()


def test_a_key_of_its_settings_that_restricts_is_refused():
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


def test_every_other_flag_that_has_no_effect_is_named_once():
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
def test_a_mode_that_lets_less_run_is_chosen_and_a_wider_one_is_not_given(
    flags, mode, chosen, ignored_flags
):
    assert less(flags, mode=mode) == JoinRestrictions(mode=chosen, ignored_flags=ignored_flags)


def test_what_only_widens_or_changes_the_session_is_named():
    flags = "--allowedTools Bash --mcp-config {} --effort low --append-system-prompt x --add-dir /d"
    restrictions = less(flags, "--add-dir /d")
    assert restrictions == JoinRestrictions(
        ignored_flags=("--allowedTools", "--mcp-config", "--effort", "--append-system-prompt")
    )
    assert (
        compute_join_restrictions(
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
def test_a_flag_with_another_value_than_the_session_began_with_is_named(
    flags, session_flags, ignored_flag
):
    assert less(flags, session_flags) == JoinRestrictions(ignored_flags=(ignored_flag,))
    assert less(flags, flags) == JoinRestrictions()


def test_a_tool_that_is_to_be_asked_for_permission_is_named():
    assert less("--permission-prompt-tool mcp__judge__ask") == JoinRestrictions(
        ignored_flags=("--permission-prompt-tool",)
    )


def test_strictly_fewer_servers_than_the_session_has_are_refused():
    restrictions = less(
        "--strict-mcp-config --mcp-config a", "--strict-mcp-config --mcp-config a b"
    )
    assert restrictions.refusals == ("--strict-mcp-config leaves it less",)
    assert (
        less("--strict-mcp-config --mcp-config a", "--strict-mcp-config --mcp-config a")
        == JoinRestrictions()
    )


def test_who_is_forbidden_the_widest_mode_lets_nobody_choose_it_while_it_is_there():
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


def test_another_model_is_asked_for():
    assert less("--model small", "--model large").model == "small"


def test_what_no_living_session_can_be_kept_to_is_refused():
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


def test_a_limit_that_ends_a_turn_sooner_is_refused_and_a_later_one_has_no_effect():
    assert less("--max-turns 3").refusals == ("--max-turns ends a turn sooner",)
    assert less("--max-budget-usd 1", "--max-budget-usd 2").refusals == (
        "--max-budget-usd ends a turn sooner",
    )
    assert less("--max-turns 9", "--max-turns 3") == JoinRestrictions(
        ignored_flags=("--max-turns",)
    )


def test_paths_mean_what_they_meant_where_they_were_said(tmp_path, monkeypatch):
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
        return load_join_restrictions(
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

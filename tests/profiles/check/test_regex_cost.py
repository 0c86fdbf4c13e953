"""The regular expressions that a profile may have: expressions that may be slow are rejected."""

from sweeps import loop_over_rows

from shim.adapters import BUNDLED_PROFILES
from shim.profiles.check.regex_cost import AMBIGUOUS_GROUP, OVERLAPPING_REPEATS, explain_slow_regex
from shim.profiles.load.profile_file import load_bundled_profile


@loop_over_rows(
    "pattern",
    [
        *(
            "",
            "abc",
            "a+",
            "a*b",
            "[a-z]+x",
            "^.*$",
            r"(\w+)",
            "(a|b)+",
            "(ab)*c+",
            "(?:ab|cd)*",
            "(a+)?",
            "a{2,3}(b)",
        ),
        *(
            r"\(a+\)+",
            "[(a+)]+",
            r"(?P<x>[0-9a-f-]{36})",
            r"^([^:]*): (.*)$",
            r"^(\d+)/(\d+)",
            r"\d+ of \d+",
        ),
        *(
            r"\[exit:(-?[1-9]\d*) \| \d+ms\]",
            "^<system>.*?</system>",
            r"^mcp_([^_]+)_(.+)$",
            "^a.*b.*c",
        ),
        *(
            "(a|b)(c|d)",
            "^(?:x{3}){4}",
            r"^\s*\{",
            "(?:foo)+bar",
            "a{1,3}b{1,3}",
            r"(?i)error: \w+",
            r"\w+@\w+\.\w*",
        ),
        *("(a+){1}", "a*A*b", "(?:a*)(?:b*)c", "(?:a*)b(?P<i>c*)C*"),
        # Python parses these as one set of characters, and as an `a` followed by a choice.
        *(r"(\w|a)+", "(?:ab|ac)*", "^(?:x|y)*[xy]*"),
    ],
)
def test_fast_regex_is_accepted(pattern):
    assert explain_slow_regex(pattern) == ""


@loop_over_rows(
    "pattern",
    [
        *(
            "(a+)+",
            "(a*)*",
            "(?:a|b*){2,}",
            "((a+)b?)*",
            "(a+|b)*",
            "(?:x+){3,}",
            r"(\w+\s?)*",
            "(a{1,3})+",
        ),
        # There is no repetition inside, but a text can be matched in several ways.
        *(
            "(a|a)+",
            "(a|ab)*",
            "(aa?)+",
            "(a||b)+",
            "((a|a)b)*",
            "(?:(x)|(x))+",
            "(a|a){60}(a|a){2,70}",
        ),
        # A limited number of repetitions is as slow as an unlimited one.
        *("(?:a+){49}b", "(?:a{0,3}){40}b", "(a|a){60}", r"(a+){0,2}", r"(?i:[ab]+?){2}"),
    ],
)
def test_ambiguous_repeated_group_is_rejected(pattern):
    assert explain_slow_regex(pattern) == AMBIGUOUS_GROUP


@loop_over_rows(
    "pattern",
    [
        *(".*x.*y", r"\s*(.*?)\s*$", r"^\s*(.*?)\s*$", r"\d+\d+", r"^\d*\d*\d*x", "^a.*b.*c.*d"),
        *("(?:a.*|b)c.*", "(a.*)?.*", "(?:ab)*(?:ab)*", ".{0,500}x.{0,500}", r"[^a]*b?[^c]*"),
        # If case is ignored, `a` and `A` overlap.
        *("(?i)a*A*b", "(?i)^a*A*[aB]*b", "(?i:x*)(?i:X*)", "(?si)a*A*b", "(?P<x>a*)(?P=x)a*b"),
    ],
)
def test_overlapping_repetitions_are_rejected(pattern):
    assert explain_slow_regex(pattern) == OVERLAPPING_REPEATS


PATTERNS = ("regex", "capture", "strip", "ending", "resume_id_pattern")


def patterns(value):
    """Yield every pattern in the table of a profile."""
    if isinstance(value, list):
        return [pattern for inner in value for pattern in patterns(inner)]
    if not isinstance(value, dict):
        return []
    direct_patterns = [
        pattern for key, pattern in value.items() if key in PATTERNS and isinstance(pattern, str)
    ]
    return direct_patterns + [pattern for inner in value.values() for pattern in patterns(inner)]


@loop_over_rows("name", BUNDLED_PROFILES)
def test_bundled_profile_patterns_are_not_slow(name):
    """The patterns are not checked when a bundled profile is loaded."""
    assert {
        pattern: explain_slow_regex(pattern)
        for pattern in patterns(load_bundled_profile(f"{name}.toml").table)
        if explain_slow_regex(pattern)
    } == {}


def test_bundled_profiles_contain_patterns():
    assert (
        sum(len(patterns(load_bundled_profile(f"{name}.toml").table)) for name in BUNDLED_PROFILES)
        > 20
    )


def test_malformed_regex_does_not_raise():
    for pattern in (
        "(",
        ")",
        "a)+b+",
        "[",
        "{",
        "a{",
        "*",
        "(?",
        "\\",
        "a{,}b{}",
        "(?P<x>a)(?P=x)+b+",
    ):
        explain_slow_regex(pattern)

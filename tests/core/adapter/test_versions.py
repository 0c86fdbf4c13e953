"""The versions of vendors' programs: parsed from their output, and compared with the tested
versions.
"""

import pytest
from sweeps import loop_over_rows

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.versions import (
    MAX_ANSWER_CHARS,
    MAX_MODELS,
    ModelProbe,
    VersionProbe,
    format_newest_tested_version,
    parse_version_conditions,
    parse_version_numbers,
)

# The output of the programs, measured unless a comment says otherwise.
VERSION_OUTPUTS = [
    ("qwen", "0.24.4\n", "0.24.4"),
    ("pi", "0.73.1\n", "0.73.1"),
    (
        "codex",
        "codex-cli 0.169.0\n\nWARNING: proceeding, even though we could not create 1.2.3\n",
        "0.169.0",
    ),
    ("claude", "2.1.327 (Claude Code)\n", "2.1.327"),
    ("cursor", "2026.09.10-7ae6800\n", "2026.09.10-7ae6800"),  # as reported by users
    ("kimi", "kimi, version 1.49.0\n", "1.49.0"),  # as reported by users
    # The number alone.
    ("amp", "0.0.1790142911-g0123ab (released 2026-09-23, 2 days ago)\n", "0.0.1790142911-g0123ab"),
    ("copilot", "GitHub Copilot CLI 1.0.102.\nCommit: 0123abc\n", "1.0.102"),
    ("opencode", "1.18.33\n", "1.18.33"),
    ("acai", "acai 0.1.0\n", "0.1.0"),
    ("vibe", "vibe 3.0.2\n", "3.0.2"),
    ("cline", "v3.0.65\n", "3.0.65"),
]


@loop_over_rows(("name", "answer", "version"), VERSION_OUTPUTS)
def test_version_is_parsed_from_the_output_of_each_vendor(name, answer, version):
    how = get_adapter(name).version_probe
    assert how.parse_version(answer) == version
    assert how.classify_version(version) == "tested"


def test_version_is_matched_only_in_the_first_characters_of_the_output():
    """Threat: an output of 128 KB. The cost of a pattern is limited only by its input."""
    assert VersionProbe().parse_version("." * MAX_ANSWER_CHARS + " 1.2.3") is None
    assert VersionProbe().parse_version("." * (MAX_ANSWER_CHARS - 9) + " 1.2.3 and more") == "1.2.3"


@pytest.mark.parametrize(
    "answer", ["", "error: unknown option '--version'\n", "usage: see page 7\n", "\0\xff"]
)
def test_output_without_a_version_returns_none(answer):
    assert VersionProbe().parse_version(answer) is None


def test_version_regex_without_a_matched_group_returns_none():
    assert VersionProbe(regex="(x)?version").parse_version("version") is None


def test_version_is_limited_to_64_characters():
    assert len(VersionProbe().parse_version("1." + "2" * 100_000) or "") <= 64


@loop_over_rows(
    "name",
    [name for name in VENDORS if name != "demo" and not get_adapter(name).cli.unreleased_note],
)
def test_every_released_vendor_declares_a_tested_version_range(name):
    how = get_adapter(name).version_probe
    assert parse_version_conditions(how.tested_range) and format_newest_tested_version(
        how.tested_range
    )


@loop_over_rows(
    ("tested", "version", "classification"),
    [
        (">=0.169,<0.170", "0.169.0", "tested"),
        (">=0.169,<0.170", "0.169.99", "tested"),
        (">=0.169,<0.170", "0.170.0", "newer"),
        (">=0.169,<0.170", "0.168.12", "older"),
        (">=0.169,<0.170", "1.0", "newer"),
        (">=1.0.102,<1.1", "1.0.102", "tested"),
        (">=1.0.102,<1.1", "1.0.20", "older"),
        (">=0.61", "0.61", "tested"),
        (">=0.61.0", "0.61", "tested"),
        (">0.61", "0.61.0", "older"),
        ("<=0.24.4", "0.24.4", "tested"),
        ("<=0.24.4", "0.24.5", "newer"),
        ("<0.25", "0.25.0-nightly.3", "newer"),
        ("==0.0.1790142911", "0.0.1790142911-gabc", "tested"),
        ("==0.0.1790142911", "0.0.1790142912", "newer"),
        (">=2025.10,<2026.10", "2026.09.10-7ae6800", "tested"),
        (">=2025.10,<2026.10", "2025.09.18", "older"),
        (">=2026-07-07", "2026-07-06", "older"),
        (">=2026-07-07", "2026-08-22", "tested"),
        ("", "1.2", "unknown"),
        (">=1", "nonsense", "unknown"),
        (">=1", None, "unknown"),
    ],
)
def test_version_is_classified_against_the_tested_range(tested, version, classification):
    assert VersionProbe(tested_range=tested).classify_version(version) == classification


@loop_over_rows("text", ["0.169", ">=", ">= x", "~1.2", ">=1,", ">=1;<2", ",".join([">=1"] * 5)])
def test_invalid_version_condition_is_rejected(text):
    with pytest.raises(ValueError):
        parse_version_conditions(text)


def test_version_numbers_are_limited_in_count_and_size():
    assert len(parse_version_numbers(".".join("1" * 5000))) == 8
    assert parse_version_numbers("9" * 5000)[0] < 10**18


def test_upper_limit_of_the_tested_range_is_formatted():
    assert (
        format_newest_tested_version(">=1,<2"),
        format_newest_tested_version("==3.1"),
        format_newest_tested_version(">=1"),
        format_newest_tested_version(""),
    ) == ("2", "3.1", "", "")


@loop_over_rows(
    ("version", "numbers"),
    [
        ("v1.2.3", (1, 2, 3)),
        ("1.2rc1", (1, 2)),
        ("1.x", (1,)),
        ("2026-07-07", (2026, 7, 7)),
        ("2026.09.10-7ae6800", (2026, 9, 10)),
        ("0.25.0-nightly.3", (0, 25, 0)),
        ("1..2", (1,)),
        ("²", ()),
        ("", ()),
    ],
)
def test_version_numbers_are_parsed(version, numbers):
    assert parse_version_numbers(version) == numbers


PI_TABLE = """provider  model        context  max-out  thinking  images
mock      mock-1       128K     4.1K     yes       yes
openai    gpt/6:high   128K     4.1K     yes       yes
"""


@loop_over_rows(
    ("vendor", "answer", "models"),
    [
        ("pi", PI_TABLE, ["mock/mock-1", "openai/gpt/6:high"]),
        ("pi", "No models available. Use /login to log in.\n", []),
        (
            "opencode",
            "opencode/big-pickle\nmock/mock-1\nmock/mock-1\n",
            ["opencode/big-pickle", "mock/mock-1"],
        ),
        ("opencode", "Error: no /such/thing\n/path/of/it\n--x/y\n", []),
        ("codex", "anything\n", []),
    ],
)
def test_models_are_parsed_from_the_output_of_the_vendor(vendor, answer, models):
    assert get_adapter(vendor).cli.model_probe.parse_models(answer) == models or vendor == "codex"
    assert bool(get_adapter(vendor).cli.model_probe.args) is (vendor != "codex")


def test_group_of_the_models_pattern_that_matches_nothing_is_left_out():
    probe = ModelProbe(("models",), r"^(\w+)(?: by (\w+))?$")
    assert probe.parse_models("big by me\nsmall\n") == ["big/me", "small"]


def test_model_list_is_truncated():
    assert (
        len(
            ModelProbe(("models",)).parse_models(
                "".join(f"m{number}\n" for number in range(MAX_MODELS + 5))
            )
        )
        == MAX_MODELS
    )

"""Claude's model names, and the names that a vendor receives in their place."""

from sweeps import loop_over_rows

from shim.core.claude.argv.models import (
    MAX_MODEL_TEXT_CHARS,
    OfferedModel,
    is_claude_model,
    is_impossible_claude_model,
    map_model_name,
    map_model_names,
    parse_offered_models,
)

CLAUDES = (
    *(
        "sonnet",
        "opus",
        "haiku",
        "fable",
        "best",
        "opusplan",
        "default",
        "sonnet[1m]",
        "opus[1m]",
        "Sonnet",
    ),
    *(
        "claude-sonnet-4-5-20250929",
        "claude-opus-5-5",
        "claude-3-5-haiku-latest",
        "claude-sonnet-4-5[1m]",
    ),
)


@loop_over_rows("name", CLAUDES)
def test_claude_model_name_without_a_mapping_is_not_passed(name):
    assert is_claude_model(name)
    assert map_model_name(name, ()) is None


# Names of earlier, current and possible later models.
POSSIBLE_NAMES = (
    *CLAUDES,
    *("claude-v1", "claude-1.3-100k", "claude-2.1", "claude-instant-v1", "claude-instant"),
    *("claude-3-opus-20240229", "claude-sonnet-4@20250514", "claude-3-5-sonnet-v2@20241022"),
    *("claude-mythos-preview", "claude-newfamily-7", "claude-newfamily-latest", "Claude-Opus[1m]"),
    *("qwen3-coder", "my-claude", "anthropic/claude-x", ""),
)
IMPOSSIBLE_NAMES = (
    *(
        "claude-nonexistent-model-for-sdk-e2e",
        "claude-",
        "claude-x",
        "claude-vx",
        "claude-code[1m]",
    ),
)


@loop_over_rows("name", POSSIBLE_NAMES)
def test_model_name_of_any_family_is_possible(name):
    assert not is_impossible_claude_model(name)


@loop_over_rows("name", IMPOSSIBLE_NAMES)
def test_claude_name_without_family_and_version_is_impossible(name):
    assert is_impossible_claude_model(name)


@loop_over_rows(
    "name", ["qwen3-coder", "anthropic/claude-sonnet-4-5", "sonnet-4.5", "gpt-6", "opusX", "[1m]"]
)
def test_vendor_model_name_is_passed_unchanged(name):
    assert not is_claude_model(name)
    assert map_model_name(name, ({"sonnet": "big"}, {})) == name


@loop_over_rows(
    ("name", "expected"),
    [
        ("sonnet", "big"),
        ("sonnet[1m]", "big"),
        ("claude-sonnet-4-5-20250929", "big"),
        ("claude-sonnet-4-5", "exact"),
        ("claude-sonnet-4-5[1m]", "exact"),
        ("opus[1m]", "wide"),
        ("opus", None),
        ("opusplan", None),
        ("haiku", "small"),
        ("default", None),
        ("fast", "quick"),
        (None, None),
        ("", None),
    ],
)
def test_first_model_map_takes_precedence(name, expected):
    vendor_models = {
        "sonnet": "big",
        "claude-sonnet-4-5": "exact",
        "opus[1m]": "wide",
        "fast": "quick",
    }
    assert map_model_name(name, (vendor_models, {"sonnet": "other", "haiku": "small"})) == expected


def test_model_list_is_mapped_and_unmapped_names_are_dropped():
    maps = ({"haiku": "small"},)
    assert map_model_names("opus,haiku, m2", lambda name: map_model_name(name, maps)) == "small,m2"
    assert (
        map_model_names("opus", lambda name: map_model_name(name, maps))
        is map_model_names(None, str)
        is None
    )


def test_offered_models_are_parsed_without_unusable_entries():
    entries = [
        {"id": "m-1", "label": "One", "description": "The first."},
        {"id": "m-2", "label": 2, "description": "x" * (MAX_MODEL_TEXT_CHARS + 1)},
        {"id": "--flag", "label": "A name that would be a flag"},
        {"label": "no name"},
        "no entry",
    ]
    assert parse_offered_models(entries, "id", "label") == (
        OfferedModel("m-1", "One", "The first."),
        OfferedModel("m-2"),
    )
    assert parse_offered_models({"id": "m"}, "id", "label") == ()

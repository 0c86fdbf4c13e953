"""The variables of our environment that a child receives."""

import os

import pytest

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.adapter import VendorEnvironment
from shim.process.environment import MAX_DEPTH, build_child_environment, parse_shim_depth
from shim.state.config import VendorSettings

OURS = {
    "PATH": "/bin",
    "HOME": "/h",
    "OPENAI_API_KEY": "k",
    "CLAUDECODE": "1",
    "CLAUDE_CODE_SSE_PORT": "1",
    "CLAUDE_AGENT_SDK_VERSION": "1",
    "CLAUDE_CONFIG_DIR": "/c",
    "ANTHROPIC_API_KEY": "a",
    "ANTHROPIC_MODEL": "m",
    "SHIM_VENDOR": "qwen",
    "CLAUDE_SHIM_VENDOR": "qwen",
    "SHIM_DEPTH": "1",
}


def build_variables(name, **settings):
    return build_child_environment(get_adapter(name), VendorSettings(**settings), OURS)


@pytest.mark.parametrize("name", [name for name in VENDORS if name != "claude"])
def test_vendor_environment_contains_no_claude_or_shim_variables(name):
    assert build_variables(name) == {
        "PATH": "/bin", "HOME": "/h", "OPENAI_API_KEY": "k", "CLAUDE_CONFIG_DIR": "/c", "SHIM_DEPTH": "2",
        "PWD": os.getcwd(),
    }  # fmt: skip


def test_claude_environment_contains_everything_except_shim_vendor_variables():
    passed_variables = {
        key: value for key, value in OURS.items() if not key.endswith("SHIM_VENDOR")
    }
    assert build_variables("claude") == passed_variables | {"SHIM_DEPTH": "2", "PWD": os.getcwd()}


def test_variable_listed_by_the_vendor_is_passed_on():
    vendor = get_adapter("pi").copy_with(
        environment=VendorEnvironment(visible_variables=("ANTHROPIC_API_KEY",))
    )
    child = build_child_environment(vendor, VendorSettings(), OURS)
    assert child["ANTHROPIC_API_KEY"] == "a" and "ANTHROPIC_MODEL" not in child


def test_configured_variables_take_precedence():
    child = build_variables("pi", env={"ANTHROPIC_API_KEY": "mine", "HOME": "/other"})
    assert (child["ANTHROPIC_API_KEY"], child["HOME"]) == ("mine", "/other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("2", 2), ("3", 3), ("999", 999), ("1000", MAX_DEPTH), ("-1", MAX_DEPTH), ("x", MAX_DEPTH),
     ("1.0", MAX_DEPTH), ("²", MAX_DEPTH), (" 1", MAX_DEPTH)],
)  # fmt: skip
def test_invalid_or_large_shim_depth_is_treated_as_max_depth(text, expected):
    assert parse_shim_depth({"SHIM_DEPTH": text}) == expected


def test_missing_shim_depth_is_zero():
    assert parse_shim_depth({}) == 0

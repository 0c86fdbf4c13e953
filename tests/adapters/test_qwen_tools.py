"""qwen's names for the tools of MCP servers."""

from sweeps import loop_over_rows

from shim.adapters.qwen import strip_tool_name_hash
from shim.adapters.qwen_stream import QwenTranslator


@loop_over_rows(
    ("vendor_name", "name"),
    [
        ("mcp__s_x__do_it_1lf321w", "mcp__s_x__do_it"),
        ("mcp__s_x__do_it_0v7ebcs", "mcp__s_x__do_it"),
        ("mcp__s__do_it", "mcp__s__do_it"),
        ("mcp__s__do_it_2v7ebcs", "mcp__s__do_it_2v7ebcs"),  # not 32 bits in base 36
        ("mcp__s__do_it_1lf321wx", "mcp__s__do_it_1lf321wx"),
        ("mcp__s__do_it_1V7ebcs", "mcp__s__do_it_1V7ebcs"),
        ("run_1lf321w", "run_1lf321w"),
    ],
)
def test_hash_suffix_is_stripped_from_mcp_tool_names(vendor_name, name):
    assert strip_tool_name_hash(vendor_name) == name


def test_tool_call_gets_the_claude_tool_name():
    for name in ("mcp__s_x__do_it_1lf321w", "mcp__s_x__do_it"):
        assert QwenTranslator.translate_tool_use({"name": name, "input": {"a": 1}}) == (
            "mcp__s_x__do_it",
            {"a": 1},
        )
    wrapped = {"name": "tool_call", "input": {"name": "mcp__s_x__do_it_1lf321w", "arguments": {}}}
    assert QwenTranslator.translate_tool_use(wrapped) == ("mcp__s_x__do_it", {})

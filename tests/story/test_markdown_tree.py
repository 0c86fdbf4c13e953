"""The parser from Markdown to a tree of elements, and the elements that it never creates."""

from collections.abc import Iterator
from typing import Any

import pytest
import sweeps
from sweeps import loop_over_rows

from shim.story.markdown import MAX_NESTING, MarkdownNode, build_markdown_tree

TAGS = {
    "a", "blockquote", "code", "del", "div", "em", "h3", "h4", "h5", "h6",
    "hr", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td",
    "th", "thead", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {"class", "data-language", "href", "rel", "start", "tabindex", "target", "title"}
CLASSES = {"added", "diff", "place", "removed", "said", "same", "table", "task"}


def elements(trees: list[MarkdownNode]) -> Iterator[list[Any]]:
    for tree in trees:
        if isinstance(tree, list):
            yield tree
            yield from elements([inner for inner in tree[1:] if not isinstance(inner, dict)])


def collect_text(trees: list[MarkdownNode]) -> str:
    return "".join(
        tree if isinstance(tree, str) else collect_text(tree[1:])
        for tree in trees
        if not isinstance(tree, dict)
    )


def link(address: str, *inside: MarkdownNode) -> list[Any]:
    return [
        "a",
        {
            "href": address,
            "title": address,
            "rel": "noopener noreferrer nofollow",
            "target": "_blank",
        },
        *inside,
    ]


@loop_over_rows(
    ("source", "trees"),
    [
        (
            "a *b* **c** `d` ~~e~~",
            [["p", "a ", ["em", "b"], " ", ["strong", "c"], " ", ["code", "d"], " ", ["del", "e"]]],
        ),
        ("one\ntwo", [["p", "one", "\n", "two"]]),
        ("# a\n\n###### b", [["h3", "a"], ["h6", "b"]]),
        ("- a\n- b\n  1. c", [["ul", ["li", "a"], ["li", "b", ["ol", ["li", "c"]]]]]),
        ("3. a\n\n   b", [["ol", {"start": 3}, ["li", ["p", "a"], ["p", "b"]]]]),
        (
            "- [ ] a\n- [x] b",
            [["ul", ["li", {"class": "task"}, "☐ a"], ["li", {"class": "task"}, "☑ b"]]],
        ),
        ("> a", [["blockquote", ["p", "a"]]]),
        ("***", [["hr"]]),
        (
            "```py x\na < b\n```",
            [["pre", {"tabindex": 0, "data-language": "py"}, ["code", "a < b"]]],
        ),
        (
            "```diff\n-a\n+b\n```",
            [
                [
                    "pre",
                    {"class": "diff", "tabindex": 0},
                    [
                        "code",
                        ["span", {"class": "removed"}, "-a\n"],
                        ["span", {"class": "added"}, "+b\n"],
                    ],
                ]
            ],
        ),
        (
            "| a |\n| ---: |\n| b \\| c |",
            [
                [
                    "div",
                    {"class": "table", "tabindex": 0},
                    ["table", ["thead", ["tr", ["th", "a"]]], ["tbody", ["tr", ["td", "b | c"]]]],
                ]
            ],
        ),
        ("[a](https://e.example/x)", [["p", link("https://e.example/x", "a")]]),
        ("<https://e.example/>", [["p", link("https://e.example/", "https://e.example/")]]),
        (
            "see https://e.example/a_(b).",
            [["p", "see ", link("https://e.example/a_(b)", "https://e.example/a_(b)"), "."]],
        ),
        (
            "[https://a.example](https://b.example)",
            [["p", link("https://b.example", "https://a.example")]],
        ),
        ("![a](https://e.example/p.png)", [["p", link("https://e.example/p.png", "image: a")]]),
        ("&amp; <b>x</b> \\*", [["p", "&amp; <b>x</b> *"]]),
    ],
)
def test_markdown_is_parsed_to_elements(source, trees):
    assert build_markdown_tree(source) == trees


@loop_over_rows(
    "source",
    [
        "[x](javascript:alert(1))",
        "[x](data:text/html,y)",
        "[x](file.py)",
        "![p](data:image/png;base64,AA==)",
        "<a@b.example>",
    ],
)
def test_non_web_link_is_rendered_as_text(source):
    assert collect_text(build_markdown_tree(source)) == source
    assert not [element for element in elements(build_markdown_tree(source)) if element[0] == "a"]


SIGNS = "[]()!*_`~<>#|-+=:\\ \n0.1"
STEPS = range(1, 40, 1 if sweeps.full else 3)  # each step builds a different hostile text
HOSTILE = [
    "<script>alert(1)</script>\n\n<img src=x onerror=alert(1)>",
    "[a\u202eb](https://e.example/%E2%80%AE%1b) <https://e.example/%E2%80%AE>",
    "```\x1b]0;x\x07\n\x1b[2J\n```",
    *(
        "".join(SIGNS[(at * at * step + at * 7) % len(SIGNS)] for at in range(4000))
        for step in STEPS
    ),
]


@loop_over_rows("source", HOSTILE)
def test_hostile_markdown_produces_only_allowed_elements(source):
    trees = build_markdown_tree(source)
    for tag, *inside in elements(trees):
        attributes = inside[0] if inside and isinstance(inside[0], dict) else {}
        assert tag in TAGS and set(attributes) <= ATTRIBUTES
        assert set(attributes.get("class", "said").split()) <= CLASSES
        assert not {"\x1b", "\x07", "\u202e"} & set(
            "".join([*map(str, attributes.values()), collect_text(inside)])
        )
        assert attributes.get("href", "https://").lower().startswith(("https://", "http://"))


@pytest.mark.parametrize("sign", ["> ", "- ", "1. "])
def test_too_deeply_nested_markdown_is_rendered_as_source(sign):
    source = "x\n\n" + sign * MAX_NESTING + "deep"
    assert build_markdown_tree(source) == [["div", {"class": "said"}, source]]
    assert collect_text(build_markdown_tree("x\n\n" + sign * 5 + "deep")).endswith("deep")

"""The rules that a person could add for the rest of the conversation. The rows were measured with
the real claude 2.1.329.
"""

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows

from shim.core.policy.policy import ANSWER_SOURCE, PermissionRule, parse_permission_rules
from shim.core.policy.suggestions import INTERACTIVE_TOOLS, suggest_rule_updates

EDITS = "setMode acceptEdits"


def list_suggestions(tool, tool_input, mode="default", *, edits=True, **rules):
    """Return each suggestion as a text."""
    texts = []
    for update in suggest_rule_updates(
        build_policy(**rules), tool, tool_input, mode, can_edit=edits
    ):
        assert update["destination"] == "session"
        if update["type"] == "addRules":
            texts.append(
                ", ".join(
                    str(PermissionRule(rule["toolName"], rule.get("ruleContent")))
                    for rule in update["rules"]
                )
            )
        else:
            texts.append(
                f"{update['type']} {update.get('mode') or ' '.join(update['directories'])}"
            )
    return texts


@loop_over_rows(
    ("command", "expected"),
    [
        ("touch one", ["Bash(touch one *)", EDITS]),
        ("touch /tmp/zz-one", ["Bash(touch /tmp/zz-one)", "addDirectories /tmp", EDITS]),
        ("npm run build", ["Bash(npm run *)"]),
        ("git push origin main", ["Bash(git push *)"]),
        ("cd /tmp && touch x", []),
        ("python3 a.py && node b.js", ["Bash(python3 a.py), Bash(node b.js)"]),
        ("rm -rf foo", ["Bash(rm -rf foo)", EDITS]),
        ("curl http://x.invalid/a", ["Bash(curl http://x.invalid/a)"]),
        ("cp a b", ["Bash(cp a *)", EDITS]),
        ("sed -i s/a/b/ hello.txt", ["Bash(sed -i s/a/b/ hello.txt)", EDITS]),
        ("rm *.txt", []),  # as a rule, its star would match more than it does here
        ("touch $(make)", []),
        ("x " + "y" * 2000, []),
    ],
)
def test_command_suggests_a_prefix_rule_and_edit_mode(command, expected):
    assert list_suggestions("Bash", {"command": command}) == expected


@loop_over_rows(
    ("tool", "tool_input", "expected"),
    [
        ("Write", {"file_path": "/work/made", "content": "x"}, [EDITS]),
        ("Write", {"file_path": "/tmp/made", "content": "x"}, ["addDirectories /tmp", EDITS]),
        ("Edit", {"file_path": "/work/a", "old_string": "a", "new_string": "b"}, [EDITS]),
        ("Write", {"file_path": "/work/.git/hooks/pre-push", "content": "x"}, []),
        ("Read", {"file_path": "/etc/hosts"}, ["Read(//etc/**)"]),
        ("Read", {"file_path": "/etc/ssl/openssl.cnf"}, ["Read(//etc/ssl/**)"]),
        (
            "WebFetch",
            {"url": "http://example.com/a", "prompt": "x"},
            ["WebFetch(domain:example.com)"],
        ),
        ("WebFetch", {"url": "no address"}, []),
        ("WebSearch", {"query": "x y"}, ["WebSearch"]),
        ("mcp__notes__add", {"text": "x"}, ["mcp__notes__add"]),
        # The vendor does not name the tool, so the rule would match any other tool too.
        ("unknown", {"title": "a"}, []),
        *((tool, {}, []) for tool in INTERACTIVE_TOOLS),
    ],
)
def test_suggestions_for_a_call_match_claude(tool, tool_input, expected):
    assert list_suggestions(tool, tool_input) == expected


@loop_over_rows(
    ("tool", "path", "expected"),
    [
        ("Grep", "/etc", ["Read(//etc/**)"]),
        ("LS", "/srv/a", ["Read(//srv/a/**)"]),
        ("Grep", "/", []),
        ("Read", "/x", []),
        ("Read", "/srv/a", ["Read(//srv/**)"]),
    ],
)
def test_search_suggests_its_folder_but_never_the_root(tool, path, expected):
    tool_input = {"file_path": path} if tool == "Read" else {"path": path, "pattern": "x"}
    assert list_suggestions(tool, tool_input) == expected


def test_no_rule_is_suggested_if_an_ask_rule_matches():
    assert list_suggestions("Bash", {"command": "touch one"}, ask=["Bash(touch:*)"]) == []


def test_edit_mode_is_suggested_only_if_selectable():
    assert list_suggestions("Write", {"file_path": "/work/made"}, edits=False) == []
    assert list_suggestions("Write", {"file_path": "/tmp/made"}, "acceptEdits", edits=False) == [
        "addDirectories /tmp"
    ]


@pytest.mark.parametrize(
    "command", ["touch one", "git push origin main", "python3 a.py && node b.js", "cp a b"]
)
def test_suggested_rule_allows_the_call(command):
    from shim.core.policy.evaluate import PolicyEvaluator

    session_policy = build_policy()
    (update, *_) = suggest_rule_updates(
        session_policy, "Bash", {"command": command}, "default", can_edit=False
    )
    rules = [f"{rule['toolName']}({rule['ruleContent']})" for rule in update["rules"]]
    assert (
        PolicyEvaluator(session_policy)
        .evaluate_tool_call("Bash", {"command": command}, "default")
        .outcome
        == "ask"
    )
    session_policy.add_rules({"allow": parse_permission_rules(rules, source=ANSWER_SOURCE)})
    assert (
        PolicyEvaluator(session_policy)
        .evaluate_tool_call("Bash", {"command": command}, "default")
        .outcome
        == "allow"
    )

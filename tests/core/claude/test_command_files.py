"""Claude's commands and skills that are Markdown files. The expected texts were measured with the
real claude 2.1.332.
"""

import pytest

from shim.core.claude.command_files import (
    CommandCall,
    CommandFile,
    CommandPiece,
    find_command_call,
    format_typed_command,
    merge_command_files,
    parse_command_file,
    split_command_body,
)
from shim.core.claude.messages import parse_user_message

SESSION = "2b12a82f-5796-4519-aaf1-cdab63fa89ab"


def parse(text, name="deploy", source="project", **options):
    return parse_command_file(text, name, source, **options)


def message(content):
    return parse_user_message({"message": {"role": "user", "content": content}}, "")


def expand(body, arguments="", **fields):
    call = CommandCall(CommandFile("deploy", "project", body, **fields), arguments)
    return split_command_body(call, SESSION)


def expand_text(body, arguments="", **fields):
    return "".join(piece.text for piece in expand(body, arguments, **fields))


# -- the header and the entry in `initialize` --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "description", "hint"),
    [
        ("---\ndescription: Deploys\nargument-hint: [file] [level]\n---\nx", "Deploys", "[file] [level]"),
        ("---\nargument-hint: [file]\n---\nx", "x", "file"),
        ('---\nargument-hint: "[x] | y"\ndescription: [a, b]\n---\nx', "x", "[x] | y"),
        ("---\ndescription: >\n  folded\n  text\n---\nx", "folded text", ""),
        ("---\ndescription: [unclosed\n---\nbad", "[unclosed", ""),
        ("\n# Heading line\n\nbody", "Heading line", ""),
        ("x" * 3000, "x" * 97 + "...", ""),
        ("", "Custom command", ""),
        ('---\ndescription: a <b> & "c"\n---\n', 'a &lt;b&gt; & "c"', ""),
    ],
)  # fmt: skip
def test_entry_has_the_header_or_the_first_line(text, description, hint):
    assert parse(text).to_json() == {
        "name": "deploy",
        "description": f"{description} (project)",
        "argumentHint": hint,
    }


def test_skill_is_listed_by_the_name_in_its_header_and_has_two_names():
    skill = parse("---\nname: other\n---\nx", "folder", "user", skill_folder="/s/folder")
    assert (skill.to_json()["name"], skill.to_json()["aliases"]) == ("other", ["folder"])
    for name in ("other", "folder"):
        call = find_command_call(message(f"/{name}"), (skill,))
        assert call is not None and call.file is skill
    assert parse("---\nname: deploy\n---\n", skill_folder="/s").display_name == ""
    assert parse("---\nname: other\n---\n").display_name == ""


def test_header_fields_are_parsed():
    file = parse(
        '---\nallowed-tools: Bash(git log:*, x), Read\nmodel: haiku\narguments: [first, "2nd"]\n'
        "user-invocable: false\n---\nx"
    )
    assert file.allowed_tools == ("Bash(git log:*, x)", "Read")
    assert (file.model, file.argument_names, file.can_be_invoked) == ("haiku", ("first",), False)
    file = parse('---\nallowed-tools: ["Bash(touch:*)", Read]\nmodel: inherit\n---\nx')
    assert (file.allowed_tools, file.model) == (("Bash(touch:*)", "Read"), "")


def test_skills_come_first_and_the_first_file_of_a_name_counts():
    skills = [parse("s", "zeta")]
    commands = [parse("1", "UPPER"), parse("2", "both"), parse("3", "zeta"), parse("4", "both")]
    files = merge_command_files(skills, commands)
    assert [(file.name, file.body) for file in files] == [
        ("zeta", "s"),
        ("both", "2"),
        ("UPPER", "1"),
    ]


# -- messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ("/deploy", ""),
        ("/deploy ", ""),
        ("/deploy  two  spaces ", "two  spaces"),
        ("/deploy\nline two", "line two"),
        ([{"type": "text", "text": "first"}, {"type": "text", "text": "/deploy z"}], "z"),
        (" /deploy", None),
        ("/Deploy", None),
        ("/", None),
        ("/ deploy", None),
        ("/deployed", None),
        ("/usr/bin/deploy", None),
        ([{"type": "text", "text": "/deploy"}, {"type": "text", "text": "more"}], None),
        ([], None),
    ],
)
def test_command_is_the_start_of_the_last_block(content, arguments):
    call = find_command_call(message(content), (parse("x"),))
    assert (call and call.arguments) == arguments


def test_expanded_message_has_the_invocation_and_the_text():
    files = (parse("x"),)
    for content, before in (("/deploy a b", ""), ([{"type": "text", "text": "/deploy a b"}], "")):
        invoked = message(content)
        call = find_command_call(invoked, files)
        header = (
            "<command-message>deploy</command-message>\n<command-name>/deploy</command-name>\n"
            "<command-args>a b</command-args>"
        )
        named = call.name_invocation(invoked)
        assert named.raw_message == {"role": "user", "content": header}
        expanded = call.expand_message(named, "the text")
        assert expanded.text == f"{before}{header}\nthe text"
        assert expanded.raw_message == named.raw_message


def test_earlier_blocks_stay_before_the_text():
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }
    invoked = message(
        [{"type": "text", "text": "first"}, image, {"type": "text", "text": "/deploy"}]
    )
    call = find_command_call(invoked, (parse("x"),))
    expanded = call.expand_message(invoked, "body")
    assert [block.kind for block in expanded.blocks] == ["text", "image", "text"]
    assert expanded.blocks[-1].text == f"{call.header}\nbody"
    assert expanded.text == f"first\n{call.header}\nbody"


# -- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "arguments", "expected"),
    [
        ("<$ARGUMENTS> <$0> <$1> <$2> <$3>", "one 'two words' three",
         "<one 'two words' three> <one> <two words> <three> <$3>"),
        ("<$ARGUMENTS> <$1> <$ARGUMENTS[0]>", "", "<> <$1> <$ARGUMENTS[0]>"),
        ("<$ARGUMENTS[1]> <$ARGUMENTS[5]>", "a b", "<b> <$ARGUMENTS[5]>"),
        ("<\\$1> <$10> <$1x> <${1}> <$ARGUMENTSx>", "a b", "<$1> <$10> <$1x> <${1}> <a bx>"),
        ("body\n", "x y", "body\n\n\nARGUMENTS: x y"),
        ("body\n", "", "body\n"),
        ("$0", "it's", "it's"),
        ("${CLAUDE_SKILL_DIR} ${CLAUDE_SESSION_ID}", "", f"${{CLAUDE_SKILL_DIR}} {SESSION}"),
    ],
)  # fmt: skip
def test_arguments_replace_their_placeholders(body, arguments, expected):
    assert expand_text(body, arguments) == expected


def test_named_arguments_replace_their_names():
    text = expand_text("<$first> <$second> <$firstly>", "A B", argument_names=("first", "second"))
    assert text == "<A> <B> <$firstly>"


def test_skill_text_begins_with_its_folder():
    text = expand_text("in ${CLAUDE_SKILL_DIR}", skill_folder="/s/sk")
    assert text == "Base directory for this skill: /s/sk\n\nin /s/sk"


# -- shell code --------------------------------------------------------------------------------------


def test_shell_code_stands_after_white_space_or_in_a_fenced_block():
    body = "a!`echo one`b !`echo two` x`!`\n```!\necho three\necho four\n```\n!`echo five`|\n"
    codes = [piece.text for piece in expand(body) if piece.is_shell_code]
    assert codes == ["echo two", "echo three\necho four", "echo five"]
    texts = [piece.text for piece in expand(body) if not piece.is_shell_code]
    assert texts == ["a!`echo one`b ", " x`!`\n", "\n", "|\n"]


def test_arguments_are_inserted_into_shell_code_but_add_none():
    assert CommandPiece("ls a", is_shell_code=True) in expand("!`ls $0`", "a")
    pieces = expand("text $ARGUMENTS", "!`touch x`")
    assert not any(piece.is_shell_code for piece in pieces)
    assert not any(piece.is_shell_code for piece in expand("text", "\n```!\ntouch x\n```"))


@pytest.mark.parametrize("typed", ["/deploy", "/deploy one 'two'\nthree"])
def test_header_is_formatted_as_the_typed_command(typed):
    call = find_command_call(message(typed), (parse("x"),))
    assert format_typed_command(call.header) == typed
    assert format_typed_command("<command-message>x") == "<command-message>x"

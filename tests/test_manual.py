"""Checks the facts in the README and the topics of the manual: links, commands, settings, vendors,
paths, and the example.
"""

import json
import os
import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer
from fixture_cases import ROOT
from picture import PICTURE, render_svg
from profile_reference import PAGE, update_reference
from stream_invariants import check_turns
from stream_lines import parse_lines, summarize_lines

from shim import adapters
from shim.commands.claude.claude_help import SUBCOMMAND_TEXTS
from shim.commands.cli import app
from shim.commands.help.topics import MANUAL_FOLDER, load_manual_topics
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.bridge.join_table import JOIN_TABLE, JoinRule
from shim.core.claude.argv import flags as argv
from shim.core.turn.outcome import ChildExit
from shim.profiles.schema.tables import PROFILE_TABLES
from shim.state import settings_file
from shim.state.own_profiles import register_user_profiles
from tests.test_contract import read_rules
from tests.test_layering import FLOORS

README = ROOT / "README.md"
MANUAL = Path(MANUAL_FOLDER)
GITHUB = ROOT / ".github"
PAGES = (README, *sorted(MANUAL.glob("*.md")), *sorted(GITHUB.glob("*.md")))
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
COMMANDS = typer.main.get_command(app)

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:shim|tests|fixtures)/[a-z0-9_/.-]*")


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page):
    """Return the fenced blocks of a page: language and text."""
    return BLOCK.findall(text_of(page))


def code(page):
    """Return the code spans in the sentences and tables of a page."""
    return [snippet.replace("\\|", "|") for snippet in CODE.findall(BLOCK.sub("", text_of(page)))]


def command_lines(page, program):
    """Yield the arguments of every command line of `program` on a page, without assignments and
    comments.
    """
    lines = [line for language, text in blocks(page) if not language for line in text.splitlines()]
    for line in (*lines, *code(page)):
        args = shlex.split(line.partition(" #")[0]) if program in line and "='" not in line else []
        while args and re.match(r"[A-Z_]+=", args[0]):
            args.pop(0)
        if args and args[0].rpartition("/")[2] == program and args[1:]:
            yield args[1:]


def test_readme_is_short_and_shows_commands():
    assert len(text_of(README).splitlines()) <= 130
    assert len(list(command_lines(README, "shim"))) >= 10 and list(command_lines(README, "claude"))


@EVERY_PAGE
def test_every_link_points_to_a_file(page):
    links = re.findall(r"\]\(([^)]+)\)", text_of(page))
    assert links or page.stem in ("settings", "measurements")
    for link in links:
        path, has_anchor, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        if has_anchor:
            assert anchor in list_anchors(target), link


def list_anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text_of(page)), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


TOPICS_WITH_REFERENCE = [page for page in PAGES if "\n## Reference\n" in text_of(page)]


@pytest.mark.parametrize(
    "page", TOPICS_WITH_REFERENCE, ids=[page.stem for page in TOPICS_WITH_REFERENCE]
)
def test_table_of_contents_lists_the_sections_of_the_reference(page):
    reference = BLOCK.sub("", text_of(page)).partition("\n## Reference\n")[2]
    contents, _, sections = reference.partition("\n### ")
    listed_titles = re.findall(r"^- \[([^]]+)\]\(#", contents, re.MULTILINE)
    assert listed_titles == re.findall(r"^### (.+)$", f"### {sections}", re.MULTILINE)


def test_bridge_topic_is_short_before_its_reference():
    tasks = text_of(MANUAL / "bridge.md").partition("\n## Reference\n")[0]
    assert len(tasks.split()) <= 1500


def test_readme_links_every_topic_and_the_picture():
    text = text_of(README)
    for file in (*MANUAL.glob("*.md"), PICTURE):
        assert f"(shim/manual/{file.name})" in text


@EVERY_PAGE
def test_every_documented_command_exists(page):
    for args in command_lines(page, "shim"):
        if args[0] in ("claude", "…"):
            continue
        command = COMMANDS
        while hasattr(command, "commands") and args and not args[0].startswith("-"):
            assert args[0] in command.commands, f"shim {shlex.join(args)}"
            command = command.commands[args.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        command_args = args[: args.index("--")] if "--" in args else args
        for arg in command_args:
            assert not re.match(r"-+\w", arg) or arg.partition("=")[0] in options, (
                f"{command.name} {arg}"
            )


@EVERY_PAGE
def test_every_documented_claude_flag_is_supported(page):
    for args in command_lines(page, "claude"):
        if args != ["…"]:
            assert argv.parse_argv(args).unknown_flags == (), args
    for args in command_lines(page, "shim"):
        if args[0] == "claude" and args[1:] != ["…"]:
            assert argv.parse_argv(args[1:]).unknown_flags == (), args


@EVERY_PAGE
def test_every_documented_path_exists(page):
    for snippet in code(page):
        if PATH.fullmatch(snippet):
            assert (ROOT / snippet).exists(), snippet


def list_files_of_the_way(title):
    """Return the files of the numbered list below a heading of the topic, in order."""
    _, _, rest = text_of(MANUAL / "how-it-works.md").partition(f"\n## {title}\n")
    section = rest.partition("\n## ")[0]
    return re.findall(r"^\d+\. `(shim/[a-z_/]+\.[a-z]+)`", section, re.MULTILINE)


@pytest.mark.parametrize(
    "title, max_files",
    [
        ("One line of output", 5),
        ("A one-shot turn", 11),
        ("A permission prompt", 8),
        ("A line to a browser and back", 12),
    ],
)
def test_manual_lists_the_files_of_a_way_in_order(title, max_files):
    files = list_files_of_the_way(title)
    assert 3 <= len(files) <= max_files
    assert all((ROOT / path).is_file() for path in files)


def test_names_in_the_way_of_a_permission_prompt_are_in_its_files():
    _, _, rest = text_of(MANUAL / "how-it-works.md").partition("\n## A permission prompt\n")
    spans = CODE.findall(rest.partition("\n## ")[0])
    code_text = "".join(text_of(ROOT / span) for span in spans if PATH.fullmatch(span))
    names = {span.rpartition(".")[2] for span in spans if re.fullmatch(r"[\w.]+", span)}
    assert names <= set(re.findall(r"\w+", code_text))


def test_manual_lists_the_folders_in_import_order():
    rows = re.findall(r"^\| `shim/([a-z]+)/` \|", text_of(MANUAL / "how-it-works.md"), re.MULTILINE)
    assert [*rows, "__main__"] == list(FLOORS)


@EVERY_PAGE
def test_every_documented_make_target_exists(page):
    makefile = text_of(ROOT / "Makefile")
    for text in (*code(page), *(text for _, text in blocks(page))):
        for target in re.findall(r"^make ([a-z0-9]+)$", text, re.MULTILINE):
            assert f"\n{target}:" in makefile, target


def test_workflow_runs_the_two_commands_of_the_readme():
    workflow = text_of(GITHUB / "workflows" / "test.yml")
    assert re.findall(r"^ *- run: (make [a-z]+)", workflow, re.MULTILINE) == [
        "make run",
        "make test",
    ]
    assert "ubuntu-latest, macos-latest" in workflow


def test_settings_page_lists_exactly_the_supported_settings():
    text = text_of(MANUAL / "settings.md")
    rows = [
        code[0]
        for line in text.splitlines()
        if line.startswith("| `") and (code := CODE.findall(line))
    ]
    tools = [f"[tools] {key}" for key in settings_file.TOOL_KEY_KINDS]
    keys = [
        key
        for key in settings_file.KEY_KINDS
        if key not in ("tools", "vendors", "models", "machines")
    ]
    tools += ["[models]", "[machines]"]
    assert sorted(rows) == sorted([*keys, *tools, *settings_file.VENDOR_KEY_KINDS])


def silent():
    """Return the vendors that never ask for permission."""
    adapters_by_name = {name: adapters.get_adapter(name) for name in adapters.VENDORS}
    return {
        name
        for name, adapter in adapters_by_name.items()
        if adapter.unattended and not adapter.cli.has_two_way
    }


def table_rows(page):
    """Yield the vendors and the cells of each table row that starts with names of vendors."""
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "/PIPE/").split("|")[1:-1]]
        cells = [cell.replace("/PIPE/", "|") for cell in cells]
        names = CODE.findall(cells[0]) if cells else []
        if names and set(names) <= set(adapters.VENDORS):
            yield names, cells


def test_vendor_tables_list_every_vendor_and_its_permission_support():
    page = MANUAL / "vendors.md"
    rows = {
        name: line
        for line in text_of(page).partition("### Install commands")[0].splitlines()
        if line.startswith("| `")
        for name in CODE.findall(line.split("|")[1])
    }
    assert not set(adapters.VENDORS) - set(rows)
    for name in adapters.VENDORS:
        vendor = adapters.get_adapter(name)
        assert ("| **no** |" in rows[name]) == (name in silent()), name
        assert ("| in a conversation" in rows[name]) == (vendor.cli.has_two_way), name


def test_readme_names_every_vendor():
    text = text_of(README)
    missing = {name for name in adapters.VENDORS if not re.search(rf"\b{name}\b", text)}
    assert missing <= {"qwen-rfc"}


def test_readme_ticks_match_the_adapters():
    rows = [row for row in table_rows(README) if len(row[1]) == 5]
    assert len(rows) == 5
    for (name,), (_, in_conversations, in_one_shot, *_) in rows:
        adapter = adapters.get_adapter(name)
        assert in_conversations == "✓" and name not in silent(), name
        assert (in_one_shot == "✗") == adapter.unattended, name
        assert in_one_shot.startswith(("✓", "✗")), name


@pytest.mark.parametrize(
    "page, column, number_of_rows",
    [(README, 3, 5), (MANUAL / "vendors.md", -4, 16)],
    ids=["README", "vendors"],
)
def test_documented_versions_are_tested_versions(page, column, number_of_rows):
    versions = [
        (name, version)
        for names, cells in table_rows(page)
        if len(cells) >= 5
        for version in re.findall(r"(?<!≤ )\b\d+(?:\.\d+)+", cells[column])
        for name in names
    ]
    assert len({name for name, _ in versions}) >= number_of_rows
    for name, version in versions:
        probe = adapters.get_adapter(name).version_probe
        assert probe.classify_version(version) == "tested", (name, version)


def test_documented_install_commands_match_the_adapters():
    documented = {
        page: {
            name: cells[-1].strip("`")
            for names, cells in table_rows(page)
            if re.search(r"^`[^`]*install[^`]*`$", cells[-1])
            for name in names
        }
        for page in (README, MANUAL / "vendors.md")
    }
    install_commands = {
        name: adapters.get_adapter(name).cli.install_command for name in adapters.VENDORS
    }
    expected = {name: command for name, command in install_commands.items() if command}
    assert documented[MANUAL / "vendors.md"] == expected
    assert len(documented[README]) == 5
    assert documented[README].items() <= expected.items()


@pytest.mark.parametrize("page", [README, MANUAL / "security.md"], ids=["README", "security"])
def test_warning_lists_exactly_the_vendors_that_never_ask(page):
    (warning,) = re.findall(r"\*\*\s*(.*?) never ask", text_of(page))
    vendor_names = set(re.findall(r"[a-z]+", warning.replace("Warning", ""))) - {"and"}
    assert vendor_names == silent()
    # in one-shot mode it does not ask either
    assert "opencode" in text_of(page).partition(warning)[2][:200]


def test_contract_topic_has_each_cited_rule_with_its_level():
    rows = re.findall(
        r"^\| ([PSCF]\d+[a-z]?) \| ([A-Z]+) \| \S", text_of(MANUAL / "contract.md"), re.M
    )
    assert len(rows) == len(dict(rows))
    cited = {
        rule
        for folder in ("shim", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for rule in re.findall(r"contract ([PSCF]\d+[a-z]?)\b", text_of(file))
    }
    assert len(cited) > 20 and cited <= set(dict(rows))
    for rule, (level, _) in read_rules().items():
        assert dict(rows)[rule] == level, rule


def test_documented_claude_subcommands_exist():
    text = text_of(MANUAL / "frontends.md")
    (subcommand_list,) = re.findall(r"subcommands \((.*?) …\)", text)
    assert set(CODE.findall(subcommand_list)) <= set(SUBCOMMAND_TEXTS)


# -- add a vendor ----------------------------------------------------------------------------------


ADD_A_VENDOR = MANUAL / "add-a-vendor.md"


@pytest.fixture
def module(monkeypatch):
    """Load the module of the topic under the name that the topic uses."""
    (source,) = [text for language, text in blocks(ADD_A_VENDOR) if language == "python"]
    module = ModuleType("shim.adapters.echo")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, module.__dict__)
    ((name, reference),) = re.findall(r'`"(\w+)": "(\w+:\w+)",`', text_of(ADD_A_VENDOR))
    monkeypatch.setitem(adapters.VENDORS, name, reference)


@pytest.fixture
def profile(local_box, monkeypatch):
    """Write the profile of the topic into a user's folder. Restore the table of vendors afterwards."""
    monkeypatch.setattr(adapters, "VENDORS", dict(adapters.VENDORS))
    monkeypatch.setattr(adapters, "profile_loaders", list(adapters.profile_loaders))
    folder = local_box.config.parent / "vendors"
    folder.mkdir(parents=True)
    source, agent = [text for _, text in blocks(ADD_A_VENDOR) if "schema = 1" in text]
    (folder / "mine.toml").write_text(agent, encoding="utf-8")
    (folder / "echo.toml").write_text(textwrap.dedent(source), encoding="utf-8")
    register_user_profiles(os.environ)


@pytest.mark.usefixtures("profile")
def test_profile_example_registers_a_vendor():
    assert adapters.get_adapter("mine").cli.always_keeps_child


def echo_agent():
    """Return the output of the program of the topic."""
    (program,) = [text for _, text in blocks(ADD_A_VENDOR) if "#!/bin/sh" in text]
    return "".join(f"{event}\n" for event in re.findall(r"^echo '(.*)'$", program, re.MULTILINE))


@pytest.mark.parametrize("way", ["module", "profile"])
def test_vendor_examples_translate_the_output_of_their_program(way, request):
    request.getfixturevalue(way)
    translation = create_standalone_child_stream("echo", stable_ids=True)
    output = translation.feed(echo_agent().encode())[0] + translation.close(ChildExit(0))[0]
    check_turns(output, False)
    assert summarize_lines(parse_lines(output)) == [
        "init",
        "call:1 Bash",
        "result:1 Sunday",
        "text:It is Sunday.",
        "end:success It is Sunday.",
        ".",
    ]


def test_vendor_check_reports_nothing_to_fix_in_the_profile_example(shim, local_box, profile):
    (local_box.cwd / "day.ndjson").write_text(echo_agent(), encoding="utf-8")
    status, stdout, _ = shim("vendor", "check", "echo", "day.ndjson")
    assert status == 0 and b"nothing to fix" in stdout


def test_case_example_uses_keys_of_the_fixtures():
    (example,) = [text for _, text in blocks(ADD_A_VENDOR) if text.startswith("source =")]
    explained = CODE.findall(text_of(ROOT / "fixtures" / "README.md"))
    assert set(tomllib.loads(example)) <= set(explained)


# -- the picture -----------------------------------------------------------------------------------


def list_svg_texts(svg):
    return re.findall(r">([^<>\n]+)</text>", svg)


def test_picture_is_small_and_loads_no_resources():
    svg = text_of(PICTURE)
    assert len(svg.encode()) < 60_000
    assert (
        "Done:" in svg and "@font-face" not in svg and "href" not in svg and "url(http" not in svg
    )


def test_picture_shows_its_rows_one_after_another():
    svg = text_of(PICTURE)
    starts = [float(start) for start in re.findall(r"hidden \} ([0-9.]+)% \{", svg)]
    assert len(starts) == len(re.findall(r'<clipPath id="demo-line-', svg)) + 1
    assert starts == sorted(starts) and len(set(starts)) > 5
    assert "prefers-reduced-motion" in svg


def test_picture_matches_the_demo_output():
    assert list_svg_texts(text_of(PICTURE)) == list_svg_texts(render_svg()), (
        "`make picture` draws it again"
    )


# -- shim help -------------------------------------------------------------------------------------


def test_help_lists_every_topic_with_its_summary(shim):
    status, stdout, _ = shim("help")
    assert status == 0
    for topic in load_manual_topics():
        assert f"{topic.name} " in stdout.decode()
        assert topic.summary.endswith(".") and topic.summary in stdout.decode()
        assert topic.text.startswith("# ")


@pytest.mark.parametrize("args", [("add-a-vendor",), ("add", "a", "vendor"), ("Add a vendor",)])
def test_help_in_a_pipe_prints_the_markdown(shim, args):
    assert shim("help", *args) == (0, (MANUAL / "add-a-vendor.md").read_bytes(), "")


@pytest.mark.parametrize("topic", [topic.name for topic in load_manual_topics()])
def test_help_in_a_terminal_is_rendered_without_markdown_syntax(shim, monkeypatch, topic):
    monkeypatch.setenv("FORCE_COLOR", "1")
    status, stdout, complaint = shim("help", topic)
    assert (status, complaint) == (0, "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stdout.decode())
    assert ".md)" not in plain and "```" not in plain and "\n# " not in plain
    assert "](#" not in plain
    assert max(map(len, plain.splitlines())) <= 120


def test_help_in_a_narrow_terminal_truncates_no_word(shim, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for topic in load_manual_topics():
        ellipsis_counts = {}
        for columns in ("80", "200"):
            monkeypatch.setenv("COLUMNS", columns)
            drawn = re.sub(r"\x1b\[[0-9;]*m", "", shim("help", topic.name)[1].decode())
            ellipsis_counts[columns] = drawn.count("…")
        assert ellipsis_counts["80"] == ellipsis_counts["200"], topic.name


def test_unknown_topic_exits_with_status_2_and_lists_the_topics(shim):
    status, stdout, complaint = shim("help", "nonsense")
    assert (status, stdout) == (2, b"")
    assert (
        "unknown topic or command 'nonsense'" in complaint
        and "add-a-vendor" in complaint
        and "Traceback" not in complaint
    )


@pytest.mark.parametrize("args", [("doctor",), ("cast", "list"), ("cast",)])
def test_help_of_a_command_prints_its_help_page(shim, args):
    assert shim("help", *args) == shim(*args, "--help") == shim(*args, "-h")


def test_misspelled_topic_prints_a_suggestion(shim):
    assert "did you mean `permissions`?" in shim("help", "permision")[2]


def test_package_contains_the_manual():
    """Hatchling packs a complete folder. `e2e/test_wheel.py` builds the wheel and checks it."""
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["shim"]}
    assert (
        MANUAL.parent == ROOT / "shim" and json.dumps(project["project"]["readme"]) == '"README.md"'
    )


@pytest.mark.parametrize("group", [(), ("cast",), ("vendor",)], ids=["shim", "cast", "vendor"])
def test_command_list_truncates_no_sentence(shim, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    status, stdout, _ = shim(*group, "--help")
    assert status == 0 and b"..." not in stdout.partition(b"Commands:")[2]


def test_bridge_topic_lists_what_each_flag_does_when_a_frontend_joins():
    text = text_of(MANUAL / "bridge.md")
    for rule in JoinRule:
        flags = ", ".join(f"`{flag}`" for flag, each in JOIN_TABLE.items() if each is rule)
        assert f"\n| {flags or 'all others'} | {rule.value} |\n" in text


def test_profile_topic_has_the_reference_of_the_schema():
    """`make accept` writes the reference."""
    page = text_of(PAGE)
    assert update_reference(page) == page
    table = page.partition("| key | instead |\n")[2].partition("\n\n")[0]
    assert "protocol" not in table
    assert all(key.description for keys in PROFILE_TABLES.values() for key in keys.values())

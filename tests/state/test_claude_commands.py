"""The files that define Claude's commands and skills: which are read, and in which order."""

import pytest

from shim.core.claude.argv.flags import parse_argv
from shim.state import claude_commands
from shim.state.claude_commands import find_excluded_commands, load_command_files


def write(path, text="text\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def load(tmp_path):
    """Return a function that loads the files for a working directory inside a repository."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    (tmp_path / "work" / "sub").mkdir()

    def load_files(*args, cwd="work/sub"):
        environment = {"HOME": str(tmp_path / "home")}
        return load_command_files(parse_argv(list(args)), environment, str(tmp_path / cwd))

    return load_files


def test_files_of_user_and_project_are_named_by_their_folders(load, tmp_path):
    write(tmp_path / "home/.claude/commands/mine.md")
    write(tmp_path / "home/.claude/skills/sk/SKILL.md")
    write(tmp_path / "work/.claude/commands/top.md")
    write(tmp_path / "work/sub/.claude/commands/a/b/deep.md")
    write(tmp_path / "work/sub/.claude/commands/a/SKILL.md")
    write(tmp_path / "work/sub/.claude/commands/no.txt")
    write(tmp_path / "work/.claude/skills/group/inner/SKILL.md")  # the real claude ignores it
    write(tmp_path / ".claude/commands/outside-of-the-repository.md")
    files = [(file.name, file.source, bool(file.skill_folder)) for file in load()]
    assert files == [
        ("sk", "user", True),
        ("a", "project", True),
        ("a:b:deep", "project", False),
        ("mine", "user", False),
        ("top", "project", False),
    ]


def test_user_takes_precedence_over_the_nearest_folder_of_the_project(load, tmp_path):
    write(tmp_path / "home/.claude/commands/plain.md", "of the user")
    for folder in ("work", "work/sub"):
        write(tmp_path / folder / ".claude/commands/plain.md", folder)
        write(tmp_path / folder / ".claude/commands/both.md", folder)
    assert {file.name: file.body for file in load()} == {
        "plain": "of the user",
        "both": "work/sub",
    }


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("--setting-sources", "user"), ["mine"]),
        (("--setting-sources", "project"), ["theirs"]),
        (("--setting-sources", ""), []),
        (("--disable-slash-commands",), []),
        (("--bare",), []),
        ((), ["mine", "theirs"]),
    ],
)
def test_flags_select_the_files(load, tmp_path, args, names):
    write(tmp_path / "home/.claude/commands/mine.md")
    write(tmp_path / "work/.claude/commands/theirs.md")
    assert [file.name for file in load(*args)] == names


def test_file_that_is_too_large_or_a_folder_is_skipped(load, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(claude_commands, "MAX_FILE_BYTES", 10)
    write(tmp_path / "work/.claude/commands/large.md", "x" * 11)
    write(tmp_path / "work/.claude/commands/small.md", "x" * 10)
    (tmp_path / "work/.claude/commands/folder.md").mkdir()
    assert [file.name for file in load()] == ["small"]
    assert "large.md is skipped: the file is larger than 10 bytes" in capfd.readouterr().err


def test_number_of_files_is_limited(load, tmp_path, monkeypatch):
    monkeypatch.setattr(claude_commands, "MAX_FILES", 3)
    for number in range(5):
        write(tmp_path / f"work/.claude/commands/c{number}.md")
        write(tmp_path / f"work/.claude/skills/s{number}/SKILL.md")
    assert [file.name for file in load()] == ["s0", "s1", "s2", "c0", "c1", "c2"]


def test_link_may_not_lead_out_of_the_project(load, tmp_path, capfd):
    write(tmp_path / "home/secret.md", "a secret")
    write(tmp_path / "work/docs/inside.md", "inside")
    commands = tmp_path / "work/.claude/commands"
    commands.mkdir(parents=True)
    (commands / "out.md").symlink_to(tmp_path / "home/secret.md")
    (commands / "in.md").symlink_to(tmp_path / "work/docs/inside.md")
    (tmp_path / "home/.claude/commands").mkdir(parents=True)
    (tmp_path / "home/.claude/commands/own.md").symlink_to(tmp_path / "home/secret.md")
    assert [file.name for file in load()] == ["in", "own"]
    assert (
        "out.md is skipped: the file is a link to a file outside the project"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("file", "args", "expected"),
    [
        ("work/.claude/commands/x.md", ["--setting-sources", "user"], "--setting-sources"),
        ("work/.claude/commands/x.md", ["--setting-sources", ""], "--setting-sources"),
        (
            "work/.claude/skills/x/SKILL.md",
            ["--disable-slash-commands"],
            "--disable-slash-commands",
        ),
        ("work/.claude/commands/x.md", ["--setting-sources", "user,project"], ""),
        ("work/.claude/commands/x.md", [], ""),
        ("work/.claude/settings.json", ["--setting-sources", "user"], ""),
        ("home/.claude/commands/x.md", ["--setting-sources", "project"], ""),
    ],
)
def test_commands_of_the_project_are_excluded_by_a_flag(tmp_path, file, args, expected):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    (tmp_path / "work" / "sub").mkdir()
    write(tmp_path / file)
    excluded = find_excluded_commands(
        parse_argv(args), {"HOME": str(tmp_path / "home")}, str(tmp_path / "work/sub")
    )
    folder = "/".join(file.split("/")[:3])
    assert excluded == ((expected, str(tmp_path / folder)) if expected else None)

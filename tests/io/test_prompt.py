"""The prompt: the first positional argument, followed by the text on stdin."""

import os
import select

import pytest

from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.io import prompt as prompts
from shim.io.prompt import load_system_prompt_files, read_prompt


@pytest.fixture
def make_pipe():
    """Return a function that creates a pipe with these bytes and returns its reading end."""
    opened = []

    def pipe(data, *, ends=True):
        reader, writer = os.pipe()
        os.write(writer, data)
        if ends:
            os.close(writer)
        opened.extend([reader] if ends else [reader, writer])
        return reader

    yield pipe
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("args", "data", "expected"),
    [
        (["hi"], b"", "hi"),
        (["hi"], b"more\n", "hi\nmore\n"),
        ([], b"only this", "only this"),
        (["hi"], b" \n", "hi"),
        ([""], b"x", "x"),
        (["first", "second"], b"", "first"),
        ([" spaced "], b"", " spaced "),
        ([], "grüße".encode(), "grüße"),
        ([], b"caf\xe9", "caf\ufffd"),
    ],
)
def test_stdin_is_appended_to_the_first_positional(make_pipe, args, data, expected):
    assert read_prompt(parse_argv(args), make_pipe(data)) == expected


def test_closed_stdin_is_ignored(make_pipe):
    reader = make_pipe(b"")
    other = os.dup(reader)
    os.close(other)
    assert read_prompt(parse_argv(["hi"]), other) == "hi"


def test_terminal_stdin_is_not_read():
    controller, terminal = os.openpty()
    try:
        assert read_prompt(parse_argv(["hi"]), terminal) == "hi"
    finally:
        os.close(controller)
        os.close(terminal)


def test_file_on_stdin_is_read_to_its_end(tmp_path):
    path = tmp_path / "prompt"
    path.write_bytes(b"x" * 600_000)
    with path.open("rb") as file:
        assert len(read_prompt(parse_argv([]), file.fileno())) == 600_000


def script_select(monkeypatch, *answers):
    """Replace `select` by a script: True is data, False is a timeout. Return the list of the
    timeouts.
    """
    waits, script, real = [], list(answers), select.select

    def answer(readers, *_):
        if not readers:
            return real(readers, *_)
        waits.append(_[-1])
        return (readers if script.pop(0) else [], [], [])

    monkeypatch.setattr(select, "select", answer)
    return waits


def test_silent_stdin_with_a_prompt_prints_a_warning_after_3_seconds(make_pipe, monkeypatch, capfd):
    waits = script_select(monkeypatch, False)
    assert read_prompt(parse_argv(["hi"]), make_pipe(b"", ends=False)) == "hi"
    assert waits == [prompts.OPTIONAL_STDIN_TIMEOUT_S] == [3.0]
    assert capfd.readouterr().err.startswith(
        "Warning: no stdin data received in 3s, proceeding without it."
    )


def test_stdin_without_a_prompt_argument_has_a_longer_timeout(make_pipe, monkeypatch):
    waits = script_select(monkeypatch, True, True)
    assert read_prompt(parse_argv([]), make_pipe(b"hi")) == "hi"
    assert waits[0] > prompts.OPTIONAL_STDIN_TIMEOUT_S


def test_paused_stdin_gets_the_longer_timeout_after_its_first_byte(make_pipe, monkeypatch):
    """The short timeout applies only to a stdin without a byte (contract P20). An incomplete prompt
    would be worse than a long wait.
    """
    waits = script_select(monkeypatch, True, True)
    assert read_prompt(parse_argv(["hi"]), make_pipe(b"one")) == "hi\none"
    assert waits[0] == prompts.OPTIONAL_STDIN_TIMEOUT_S
    assert waits[1] > prompts.OPTIONAL_STDIN_TIMEOUT_S


def test_stdin_that_stalls_during_the_prompt_raises_an_error(make_pipe, monkeypatch):
    waits = script_select(monkeypatch, True, False)
    with pytest.raises(
        FrontendError, match="stdin was silent for 600 s in the middle of the prompt"
    ):
        read_prompt(parse_argv([]), make_pipe(b"half a lo", ends=False))
    assert waits == [prompts.REQUIRED_STDIN_TIMEOUT_S] * 2


def test_missing_prompt_raises_the_error_of_real_claude(make_pipe):
    with pytest.raises(
        FrontendError, match="Error: Input must be provided either through stdin"
    ) as refused:
        read_prompt(parse_argv([]), make_pipe(b"\n"))
    assert "was read as" not in str(refused.value)


def test_error_quotes_a_prompt_consumed_by_a_flag(make_pipe):
    with pytest.raises(
        FrontendError, match='"go" was read as a value of --allowedTools, not as a prompt'
    ) as refused:
        read_prompt(parse_argv(["--allowedTools", "Bash", "go"]), make_pipe(b""))
    assert refused.value.hint == "put a prompt before --allowedTools or after --"


def test_nul_in_the_prompt_is_rejected(make_pipe):
    with pytest.raises(FrontendError, match="NUL"):
        read_prompt(parse_argv([]), make_pipe(b"a\0b"))


def test_prompt_larger_than_max_bytes_is_rejected(make_pipe):
    with pytest.raises(FrontendError, match="larger than 10 bytes"):
        read_prompt(parse_argv([]), make_pipe(b"x" * 11), max_bytes=10)


# -- system prompts from files ---------------------------------------------------------------------


def test_prompt_files_are_loaded_into_the_system_prompts(tmp_path):
    first_file, other = tmp_path / "one", tmp_path / "other"
    first_file.write_text("You are X.", encoding="utf-8")
    other.write_bytes(b"caf\xe9")
    invocation = load_system_prompt_files(
        parse_argv(
            ["--system-prompt-file", str(first_file), "--append-system-prompt-file", str(other)]
        )
    )
    assert (invocation.system_prompt, invocation.append_system_prompt) == (
        "You are X.",
        "caf\ufffd",
    )
    assert (invocation.system_prompt_file, invocation.append_system_prompt_file) == (
        None,
        None,
    )


@pytest.mark.parametrize("flag", ["--system-prompt-file", "--append-system-prompt-file"])
def test_missing_prompt_file_is_reported(tmp_path, flag):
    with pytest.raises(FrontendError, match=r"nowhere cannot be read: No such file"):
        load_system_prompt_files(parse_argv([flag, str(tmp_path / "nowhere")]))


def test_prompt_file_larger_than_the_limit_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "MAX_SYSTEM_PROMPT_BYTES", 4)
    path = tmp_path / "large"
    path.write_text("12345", encoding="utf-8")
    with pytest.raises(FrontendError, match="larger than 4 bytes"):
        load_system_prompt_files(parse_argv(["--system-prompt-file", str(path)]))

"""`shim show`: recordings of every end and every version, and the command itself."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sweeps
from box import Done, run_shim, start_shim
from cast_builder import HEADER, build_case_recording, build_recording
from fixture_cases import Case, find_case, list_fixture_cases
from recording_renderer import (
    CASES,
    GOLDENS,
    MARKDOWN,
    build_conversation_recording,
    encode_line,
    render_goldens,
    render_recording,
    strip_styles,
)
from rich.console import Console
from story_builder import (
    INIT,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
)
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows
from terminal_injection import (
    BAD,
    TRICKS,
    VISIBLE_FRAGMENTS,
    build_hostile_events,
    build_hostile_recording,
    find_control_characters,
)

from shim.commands.turn.live_turn import TerminalTurnRunner
from shim.core.cast.format import RecordingError
from shim.story.model import SessionStepTracker
from shim.story.terminal.raw_renderer import MAX_PLAIN_CHARS
from shim.story.terminal.renderer import TerminalSessionRenderer

RECORDING = build_conversation_recording()
CUT = "the recording was cut off here"


@pytest.fixture(scope="module")
def rendered_goldens() -> dict[str, str]:
    return render_goldens()


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDENS.glob("*.txt")))
def test_piped_output_matches_its_golden_file(rendered_goldens: dict[str, str], name: str) -> None:
    assert rendered_goldens[name] == (GOLDENS / f"{name}.txt").read_bytes().decode()


def test_every_rendered_session_has_a_golden_file(rendered_goldens: dict[str, str]) -> None:
    assert set(rendered_goldens) == {path.stem for path in GOLDENS.glob("*.txt")}


def test_piped_output_is_uncoloured_and_independent_of_the_width() -> None:
    assert render_recording(RECORDING, width=40) == render_recording(RECORDING, width=200)
    assert render_recording(RECORDING, width=40, raw=True) == render_recording(
        RECORDING, width=200, raw=True
    )
    assert "\x1b" not in render_recording(RECORDING)


def test_terminal_output_renders_markdown_and_wraps_lines() -> None:
    lines = strip_styles(render_recording(RECORDING, terminal=True, width=60)).split("\n")
    assert "A heading" in lines and "Some bold words and a link (https://example.com/a?b)." in lines
    assert max(map(len, lines)) <= 60
    long = build_assistant_line(
        build_tool_use("a", command="ls"),
        build_tool_use("b", "Task", description="d"),
        build_tool_use("c", command="word " * 30, x="y"),
    )
    nested = long | {"parent_tool_use_id": None}
    lines = strip_styles(
        render_recording(build_recording([(1, "O", encode_line(nested))]), terminal=True, width=60)
    ).split("\n")
    assert max(map(len, lines)) <= 60


def test_edits_are_coloured() -> None:
    assert "\x1b[31m- b = 2\x1b[0m" in render_recording(RECORDING, terminal=True)
    assert "\x1b[32m+ b = 3\x1b[0m" in render_recording(RECORDING, terminal=True)


# -- incomplete recordings -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES[:3], "conversation"])
def test_recording_truncated_anywhere_is_still_rendered(name: str, tmp_path: Path) -> None:
    data = RECORDING if name == "conversation" else build_case_recording(find_case(name))
    header = data.index(b"\n") + 1
    ends = [at + 1 for at in range(header, len(data) - 1) if data[at : at + 1] == b"\n"]
    middles = [
        (offset + other) // 2
        for offset, other in zip([header, *ends], [*ends, len(data)], strict=True)
    ]
    full_lines = render_recording(data).split("\n")
    for end in [header, *ends, *middles]:
        lines = render_recording(data[:end]).split("\n")
        assert CUT in lines
        assert lines[0] == full_lines[0]
        assert CUT in render_recording(data[:end], raw=True)
    assert CUT not in full_lines


def test_truncated_header_raises_an_error() -> None:
    with pytest.raises(RecordingError, match="not a recording"):
        render_recording(RECORDING[:50])


def test_damaged_lines_are_counted_and_other_lines_are_rendered() -> None:
    lines = RECORDING.split(b"\n")
    lines[3], lines[9] = lines[3][:20], b"\xff" + lines[9]
    output = render_recording(b"\n".join(lines))
    assert "2 lines of the recording cannot be read: `shim cast verify` shows where" in output
    assert CUT not in output and "Bash" in output


def test_running_call_in_a_truncated_recording_is_unanswered() -> None:
    cut = build_recording(
        [
            (1, "O", encode_line(build_assistant_line(build_tool_use("a", command="ls")))),
            (3, "O", encode_line(INIT)),
        ],
        end=False,
    )
    assert "… Bash ls · unanswered · 2.0 s" in render_recording(cut)


# -- a recording that is still written -------------------------------------------------------------


class Writer:
    """A replacement for the sleep of `shim show --follow`. Each call writes the next piece of the
    recording.
    """

    def __init__(self, path: Path, *steps: bytes | Callable[[], Any]) -> None:
        self._path = path
        self._steps = list(steps)
        self.waits = 0
        self.snapshots: list[str] = []
        self.console = Console(file=io.StringIO(), _environ={})

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        assert 0 < seconds <= 0.2 and isinstance(self.console.file, io.StringIO)
        self.snapshots.append(self.console.file.getvalue())
        step = self._steps.pop(0)
        if isinstance(step, bytes):
            with self._path.open("ab") as file:
                file.write(step)
        else:
            step()


def follow(
    path: Path, monkeypatch: pytest.MonkeyPatch, *steps: bytes | Callable[[], Any], **options: Any
) -> Writer:
    from shim.story.terminal.show import draw_recording

    writer = Writer(path, *steps)
    monkeypatch.setattr("shim.story.terminal.show.time.sleep", writer.sleep)
    draw_recording(str(path), writer.console, follow=True, **options)
    assert isinstance(writer.console.file, io.StringIO)
    writer.snapshots.append(writer.console.file.getvalue())
    return writer


@pytest.fixture
def partial_recording(tmp_path: Path) -> Path:
    """Write the first third of a recording."""
    path = tmp_path / "a.cast"
    path.write_bytes(RECORDING[: len(RECORDING) // 3])
    return path


def test_recording_is_followed_until_its_last_checkpoint(
    partial_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = len(RECORDING) // 3
    writer = follow(
        partial_recording,
        monkeypatch,
        b"",
        RECORDING[third : 2 * third],
        b"",
        RECORDING[2 * third :],
    )
    assert writer.snapshots[-1] == render_recording(RECORDING)
    sizes = [len(text) for text in writer.snapshots]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3] < sizes[4]
    assert writer.waits == 4


def test_follow_does_not_wait_for_a_complete_recording(
    partial_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial_recording.write_bytes(RECORDING)
    assert follow(partial_recording, monkeypatch).waits == 0


@pytest.mark.parametrize("raw", [False, True])
def test_keyboard_interrupt_ends_following(
    partial_recording: Path, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    writer = follow(partial_recording, monkeypatch, interrupt, raw=raw)
    assert CUT not in writer.snapshots[-1]
    assert raw or "░ model" in writer.snapshots[-1]


def test_following_ends_if_the_recording_is_deleted(
    partial_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = follow(partial_recording, monkeypatch, partial_recording.unlink)
    assert "the file no longer exists" in writer.snapshots[-1]


def test_following_ends_if_the_recording_is_replaced_by_its_redacted_copy(
    partial_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = partial_recording.with_suffix(".new")
    swept.write_bytes(RECORDING)

    def replace() -> None:
        with partial_recording.open("ab") as file:
            file.write(RECORDING[len(RECORDING) // 3 :][: -(len(b'["h","","end"]\n') + 64)])
        os.replace(swept, partial_recording)

    assert follow(partial_recording, monkeypatch, replace).snapshots[-1] == render_recording(
        RECORDING
    )


# -- raw output ------------------------------------------------------------------------------------


def test_raw_output_contains_the_time_and_direction_of_each_record() -> None:
    lines = render_recording(RECORDING, raw=True).split("\n")
    assert [(row[:9].strip(), row[10:20].strip()) for row in lines[1:6]] == [
        ("0.1000", "frontend →"),
        ("0.3000", "→ frontend"),
        ("0.3000", "start"),
        ("0.3000", "→ child"),
        ("0.3000", "child →"),
    ]


def test_long_raw_line_is_truncated_unless_full_output_is_requested() -> None:
    cast = build_recording([(1, "O", b"x" * 5000 + b"\n")])
    row = render_recording(cast, raw=True).split("\n")[1]
    assert len(row) < MAX_PLAIN_CHARS + 30 and row.endswith(f"… (+{5000 - MAX_PLAIN_CHARS})")
    assert "x" * 5000 in render_recording(cast, raw=True, full=True)


# -- a run -----------------------------------------------------------------------------------------


def run_of(
    *lines: bytes, terminal: bool = False, width: int = 100, prompt: str = "hi"
) -> tuple[int, str]:
    """Render a run whose drop-in prints these lines. Return its exit status and the output."""
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False,
        color_system="standard" if terminal else None, _environ={},
    )  # fmt: skip
    program = f"import sys; sys.stdout.buffer.write({b''.join(lines)!r}); sys.exit(3)"
    status = TerminalTurnRunner(console).run([sys.executable, "-c", program], prompt)
    assert isinstance(console.file, io.StringIO)
    return status, console.file.getvalue()


def test_live_run_is_rendered_like_its_recording() -> None:
    stream = [
        INIT,
        build_message_start(),
        build_delta("He"),
        build_delta("llo"),
        build_assistant_line(build_text_block("Hello")),
        build_assistant_line(build_tool_use("a", command="ls")),
    ]
    lines = [
        encode_line(event)
        for event in (*stream, build_tool_result_line("a", "x"), build_result_line(0.1))
    ]
    status, output = run_of(*lines, b"no event\n", prompt="say hello")
    assert status == 3
    recorded = render_recording(build_recording((0.01, "O", part) for part in lines))
    expected_rows = "> say hello", "Hello", "● Bash  ls", "    x", "claude · m · /repo"
    assert [row for row in output.split("\n") if row in expected_rows] == [
        row for row in recorded.split("\n") if row in expected_rows
    ]
    assert "Hello" in output and "✓ done" in output


def test_live_run_prints_a_waiting_line_in_a_terminal() -> None:
    _, output = run_of(
        encode_line(INIT),
        encode_line(build_message_start()),
        *(encode_line(build_delta(fragment)) for fragment in ("One ", "**two**")),
        terminal=True,
    )
    assert "waiting for the agent" in output


# -- hostile output on a terminal ------------------------------------------------------------------


@loop_over_rows("terminal", [False, True])
@loop_over_rows("options", [{}, {"full": True, "thinking": True}, {"raw": True}])
def test_rendered_recording_escapes_control_characters(
    options: dict[str, Any], terminal: bool
) -> None:
    output = render_recording(build_hostile_recording(), terminal=terminal, width=4000, **options)
    assert find_control_characters(output) == []
    assert terminal or "\x1b" not in output
    for phrase in VISIBLE_FRAGMENTS:
        assert phrase in strip_styles(output)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_followed_recording_escapes_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bool, terminal: bool
) -> None:
    cast = tmp_path / "a.cast"
    cast.write_bytes(build_hostile_recording()[:-20])
    monkeypatch.setattr("shim.story.terminal.show.time.sleep", lambda _: cast.unlink())
    output = render_recording(cast, terminal=terminal, width=4000, follow=True, raw=raw)
    assert find_control_characters(output, live=terminal) == []
    for phrase in VISIBLE_FRAGMENTS:
        assert phrase in strip_styles(output)


@pytest.mark.parametrize("terminal", [False, True])
def test_live_run_escapes_control_characters(terminal: bool) -> None:
    _, output = run_of(
        *map(encode_line, build_hostile_events()), terminal=terminal, width=4000, prompt=BAD
    )
    assert find_control_characters(output, live=terminal) == []
    for phrase in VISIBLE_FRAGMENTS:
        assert phrase in strip_styles(output)


def test_markdown_links_images_html_and_entities_are_rendered_as_text() -> None:
    output = strip_styles(
        render_recording(
            build_recording(
                [(1, "O", encode_line(build_assistant_line(build_text_block(TRICKS))))]
            ),
            terminal=True,
            width=4000,
        )
    )
    for phrase in (
        "https://good.example (https://evil.example)",
        "https://track.example/p.png",
        "<script>a</script>",
        "<https://auto.example>",
        "&#27;[31m &#x202e;",
        "<div>html</div>",
        "inside",
        "after",
    ):
        assert phrase in output
    assert "**b**" not in output


def test_text_too_long_for_markdown_is_rendered_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.story.terminal.screen.MAX_MARKDOWN_CHARS", 50)
    assert "**bold**" in render_recording(
        build_recording([(1, "O", encode_line(build_assistant_line(build_text_block(MARKDOWN))))]),
        terminal=True,
    )


def test_control_code_filter_removes_controls_and_links() -> None:
    from rich.control import Control
    from rich.text import Text

    from shim.story.terminal.markdown import ControlCodeFilter

    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", _environ={})
    console.print(
        ControlCodeFilter(Control.bell()),
        ControlCodeFilter(Text("a\x1b]b", style="bold link http://evil.example")),
    )
    assert isinstance(console.file, io.StringIO)
    assert (
        find_control_characters(console.file.getvalue()) == []
        and "evil" not in console.file.getvalue()
    )


# -- the command -----------------------------------------------------------------------------------


def shim_show(*args: str, **options: Any) -> Done:
    return run_shim(["show", *args], **options)


def test_show_command_renders_a_recording(tmp_path: Path) -> None:
    (tmp_path / "a.cast").write_bytes(RECORDING)
    done = shim_show(str(tmp_path / "a.cast"))
    assert (done.status, done.stdout.decode(), done.stderr) == (0, render_recording(RECORDING), "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"{}\n", "not a recording"), (b"", "no first line")],
)
def test_invalid_recording_is_reported_with_its_path(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "a.cast").write_bytes(content)
    done = shim_show(str(tmp_path / "a.cast"))
    assert done.status == 1 and reason in done.stderr and not done.stdout
    assert done.stderr.startswith(f"error: {tmp_path / 'a.cast'}"), "of several files it says which"


def test_show_command_exits_cleanly_if_its_stdout_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a.cast").write_bytes(
        build_recording(
            (n, "O", encode_line(build_assistant_line(build_text_block("word " * 50))))
            for n in range(20_000)
        )
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start_shim(["show", str(tmp_path / "a.cast")], **pipes)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_recording_header_is_rendered_as_the_title() -> None:
    assert render_recording(build_recording([], end=True)).startswith(
        f"pi · {HEADER['cwd']} · 2026-11-20 10:00:00 UTC · shim 0.1.0"
    )


# -- all fixtures ----------------------------------------------------------------------------------


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_fixture_recordings_are_rendered_without_control_characters(case: Case) -> None:
    cast = build_case_recording(case)
    assert find_control_characters(render_recording(cast)) == []
    assert find_control_characters(render_recording(cast, terminal=True, width=80)) == []
    assert find_control_characters(render_recording(cast, terminal=True, width=160, raw=True)) == []


ODD: tuple[Any, ...] = (None, 7, -1.5, True, "x", [], {}, [None, 7], {"a": {"b": 1}}, 10**400)


def vary_value(value: Any, odd: Any) -> Iterator[Any]:
    """Yield copies of a value. In each copy, another part is replaced by `odd`."""
    yield odd
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in vary_value(part, odd))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in vary_value(part, odd))


@loop_over_rows("odd", ODD)
def test_malformed_events_are_rendered_without_an_exception(odd: Any) -> None:
    console = Console(file=io.StringIO(), _environ={})
    every = 1 if sweeps.full else len(ODD)  # each part of an event gets one of the values
    for number, event in enumerate(build_hostile_events()):
        for other in islice(vary_value(event, odd), (ODD.index(odd) + number) % every, None, every):
            story = SessionStepTracker()
            drawing = TerminalSessionRenderer(console, story)
            lines = (
                [*build_hostile_events()[:number][-3:], other, build_result_line(1)]
                if isinstance(other, dict)
                else []
            )
            for at, drawn_event in enumerate(lines):
                for change in story.add_claude_event(at, drawn_event):
                    drawing.draw_step_change(change)
            drawing.close()

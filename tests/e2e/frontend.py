"""The drop-in as a frontend uses it: a process that is started with Claude's flags and read line by
line.

Every wait has a limit. `check_contract` has the assertions for every run (the rules are those of
the contract: process P, stream S).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox import TURN_SECONDS, Line, LineProcess, Sandbox
from stream_invariants import RESULT_KEYS

END_SECONDS = 60.0  # from an interrupt to the end of the process

USAGE_KEYS = {
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
}
TERMINATOR: Line = {"type": "message_stop"}


@dataclass
class DropInRun:
    """The output of one run of the drop-in, and how it exited."""

    lines: list[Line]
    exit: int
    stderr: str

    def list_lines(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["type"] == kind]

    @property
    def init(self) -> Line:
        return self.lines[0]

    @property
    def result(self) -> Line:
        (result,) = self.list_lines("result")
        return result

    def list_blocks(self, line_type: str, block_type: str) -> list[Line]:
        """Return the content blocks of a kind, in order of appearance."""
        return [
            block
            for line in self.list_lines(line_type)
            for block in line["message"]["content"]
            if block["type"] == block_type
        ]

    @property
    def texts(self) -> list[str]:
        """The text blocks of the assistant lines."""
        return [block["text"] for block in self.list_blocks("assistant", "text")]

    @property
    def tool_uses(self) -> list[Line]:
        return self.list_blocks("assistant", "tool_use")

    @property
    def tool_results(self) -> list[Line]:
        return self.list_blocks("user", "tool_result")

    @property
    def user_texts(self) -> list[str]:
        return [block["text"] for block in self.list_blocks("user", "text")]

    @property
    def events(self) -> list[Line]:
        return [line["event"] for line in self.list_lines("stream_event")]

    @property
    def streamed_text(self) -> str:
        """The joined text deltas."""
        return "".join(delta["text"] for delta in self._iterate_deltas("text_delta"))

    @property
    def streamed_input(self) -> str:
        """The joined deltas of tool arguments."""
        return "".join(delta["partial_json"] for delta in self._iterate_deltas("input_json_delta"))

    def _iterate_deltas(self, kind: str) -> Iterator[Line]:
        deltas = (event["delta"] for event in self.events if event["type"] == "content_block_delta")
        return (delta for delta in deltas if delta["type"] == kind)


def join_result_text(block: Line) -> str:
    """Return the text of a tool result, whose content is a string or a list of blocks."""
    content = block["content"]
    return (
        content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    )


@dataclass
class DropInFrontend(Sandbox):
    """A sandbox whose `claude` is started like a frontend does."""

    extra_args: Sequence[str] = ()  # flags that every run here needs

    def start_run(self, prompt: str, *args: str) -> Process:
        """Start a run like a frontend does, with the prompt in argv and an empty pipe as stdin."""
        argv = [str(self.claude), "-p", prompt, "--output-format", "stream-json", "--verbose"]
        argv += [*self.extra_args, *args]
        process = Process(argv, self.folder, self.environment)
        self.started.append(process)
        return process

    def run_messages(self, *prompts: str) -> DropInRun:
        """Run a conversation to its end. All messages are sent to stdin at once, in the format of
        the SDKs.
        """
        flags = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        process = LineProcess(
            [str(self.claude), "-p", *flags, *self.extra_args], self.folder, self.environment
        )
        self.started.append(process)
        for prompt in prompts:
            process.send({"type": "user", "message": {"role": "user", "content": prompt}})
        process.close_stdin()
        return DropInRun(process.lines, process.read_to_end(), process.stderr)

    def run_prompt(self, prompt: str, *args: str) -> DropInRun:
        """Run one prompt to the end of the process."""
        return self.start_run(prompt, *args).finish()


class Process(LineProcess):
    """A running drop-in with one prompt."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(argv, folder, environment)
        self.close_stdin()

    def finish(self, seconds: float = TURN_SECONDS) -> DropInRun:
        """Read to the end of stdout, and wait for the process."""
        code = self.read_to_end(seconds)
        return DropInRun(self.lines, code, self.stderr)

    def check_line(self, raw: bytes, line: object) -> None:
        """Assert P8-P11: UTF-8 JSON, one object per line, each with a type."""
        super().check_line(raw, line)
        assert isinstance(line, dict) and isinstance(line.get("type"), str), raw


def check_contract(run: DropInRun, *, partial: bool = False) -> None:
    """Assert the rules that hold for every run of one turn, for any prompt and any end."""
    kinds = [line["type"] for line in run.lines]
    inits = [line for line in run.list_lines("system") if line["subtype"] == "init"]
    assert inits == [run.init]
    assert kinds.count("result") == 1
    # `-p` with text input has the terminator
    assert kinds[-2] == "result" and run.lines[-1] == TERMINATOR
    lines = run.lines[:-1]
    assert {line["session_id"] for line in lines} == {run.init["session_id"]}
    assert len({line["uuid"] for line in lines}) == len(lines)
    _check_result(run)
    _check_tools(run)
    if partial:
        _check_events(run)
    else:
        assert "stream_event" not in kinds


def _check_result(run: DropInRun) -> None:
    result = run.result
    assert result.keys() >= set(RESULT_KEYS)
    assert result["usage"].keys() >= USAGE_KEYS
    if result["subtype"] == "success":
        assert isinstance(result["result"], str)
    else:
        assert result["is_error"] and result["errors"] and "result" not in result


def _check_tools(run: DropInRun) -> None:
    """Assert S16c: every call has exactly one result, and the result comes after it. The parent of a
    subagent's line is a call that is still open.
    """
    open_calls: set[str] = set()
    for line in run.lines:
        if line["type"] not in ("assistant", "user"):
            continue
        assert line["parent_tool_use_id"] in (None, *open_calls)
        for block in line["message"]["content"]:
            if block["type"] == "tool_use":
                assert block["id"] not in open_calls
                open_calls.add(block["id"])
            elif block["type"] == "tool_result":
                open_calls.remove(block["tool_use_id"])
    assert not open_calls


def _check_events(run: DropInRun) -> None:
    """Assert S11: blocks are numbered from 0, closed in order, and written completely before they
    are closed.
    """
    message_blocks: list[Line] | None = None  # the blocks of the open reply
    block_open = has_full_line = False
    for line in run.lines:
        if line["type"] == "assistant" and line["message"]["model"] != "<synthetic>":
            assert message_blocks is not None and block_open and not has_full_line
            (block,) = line["message"]["content"]
            assert block["type"] == message_blocks[-1]["type"]
            has_full_line = True
        if line["type"] != "stream_event":
            continue
        assert line["parent_tool_use_id"] is None
        event = line["event"]
        match event["type"]:
            case "message_start":
                assert message_blocks is None and event["message"]["usage"].keys() >= USAGE_KEYS
                message_blocks = []
            case "content_block_start":
                assert (
                    message_blocks is not None
                    and not block_open
                    and event["index"] == len(message_blocks)
                )
                message_blocks.append(event["content_block"])
                block_open, has_full_line = True, False
            case "content_block_delta":
                assert (
                    message_blocks is not None
                    and block_open
                    and event["index"] == len(message_blocks) - 1
                    and not has_full_line
                )
            case "content_block_stop":
                assert (
                    message_blocks is not None
                    and block_open
                    and has_full_line
                    and event["index"] == len(message_blocks) - 1
                )
                block_open = False
            case "message_delta":
                assert (
                    message_blocks is not None
                    and not block_open
                    and "output_tokens" in event["usage"]
                )
            case "message_stop":
                assert message_blocks is not None and not block_open
                message_blocks = None
            case other:
                raise AssertionError(f"Claude has no such event: {other}")
    assert message_blocks is None

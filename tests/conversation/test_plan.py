"""`shim explain` prints the plan that a run executes. 50 invocations are run both ways."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import anyio.lowlevel
import pytest
from box import CONVERSE
from memory_run import MemoryEnds, MemoryLauncher

from shim.adapters import get_adapter
from shim.commands.turn.explain import build_invocation_explanation
from shim.conversation import runner, startup
from shim.conversation.drivers.launcher import LaunchPlan
from shim.conversation.plan import (
    ConversationPlan,
    ConversationPlanInput,
    PromptSource,
    RunMode,
    StdinInput,
    plan_conversation,
    resolve_requested_permission_mode,
)
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import ShimError, VendorError
from shim.core.reading.json_text import dump_json
from shim.core.reading.lines import LineSplitter
from shim.core.secrets.redactor import redact_argv
from shim.io.signals import SignalRecorder
from shim.state.config import ShimSettings

PROMPT = "(the prompt)"  # what `shim explain` prints in place of a message on stdin
STREAM = ("--output-format", "stream-json", "--verbose")
STDIO = ("--permission-prompt-tool", "stdio")
SCHEMA = ("--json-schema", '{"type": "object"}')
AGENTS = '{"a": {"description": "d", "prompt": "p"}}'
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
GENERATED_FILE = re.compile(r"/spill/\S+")

FLAGS = {
    "one-shot": ("-p", PROMPT),
    "partial": ("-p", PROMPT, *STREAM, "--include-partial-messages"),
    "conversation": CONVERSE,
    "conversation, asks": (*CONVERSE, *STDIO),
    "asks": ("-p", PROMPT, *STREAM, *STDIO),
    "bypass": ("-p", PROMPT, "--permission-mode", "bypassPermissions"),
    "rules": ("-p", PROMPT, "--allowedTools", "Bash(git diff:*)"),
    "schema": ("-p", PROMPT, *SCHEMA),
}
VENDORS = ("claude", "codex", "cursor", "demo", "gemini", "opencode", "pi", "qwen")
# Additional flags and settings of one vendor.
SPECIAL = [
    ("qwen", ("-p", PROMPT, "--permission-mode", "plan"), ""),
    ("qwen", ("-p", PROMPT, "--permission-mode", "acceptEdits"), ""),
    ("qwen", ("-p", PROMPT, "--permission-mode", "acceptEdits", *SCHEMA), ""),
    ("qwen", ("-p", PROMPT, "--permission-mode", "dontAsk"), ""),
    ("qwen", ("-p", PROMPT, "--disallowedTools", "Bash"), '[vendors.qwen]\ndriver = "one-way"\n'),
    ("qwen", CONVERSE, '[vendors.qwen]\ndriver = "one-way"\n'),
    ("qwen", ("-p", PROMPT), '[tools]\ndeny = ["Bash(rm:*)"]\n'),
    ("pi", ("-p", PROMPT, "--agents", AGENTS), ""),
    ("pi", ("-p", PROMPT, "--permission-mode", "acceptEdits"), ""),
    ("gemini", ("-p", PROMPT), '[vendors.gemini]\ndriver = "two-way"\n'),
    ("gemini", CONVERSE, '[vendors.gemini]\ndriver = "one-way"\n'),
    ("codex", ("-p", PROMPT, *STREAM), '[vendors.codex]\ndriver = "two-way"\n'),
    ("demo,qwen", ("-p", PROMPT), ""),
    ("qwen,demo", (*CONVERSE, *STDIO), ""),
    ("claude,qwen", ("-p", PROMPT, "--disallowedTools", "Bash"), ""),
    ("claude", CONVERSE, 'dialect = "yume"\n'),
]
INVOCATIONS = [(vendor, FLAGS[name], "") for vendor in VENDORS for name in FLAGS] + SPECIAL


def test_table_has_at_least_50_invocations():
    assert len({(vendor, *args, toml) for vendor, args, toml in INVOCATIONS}) >= 50


class MessageSource:
    """The stdin of a frontend that sends one message."""

    max_bytes = 1_000_000

    def __init__(self) -> None:
        self.line_splitter = LineSplitter(self.max_bytes)
        self.received_lines: list[bytes] = []
        message = {"type": "user", "message": {"role": "user", "content": PROMPT}}
        self._chunks = [dump_json(message) + b"\n", b""]

    async def read(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self._chunks.pop(0)


class ExecutedRun(NamedTuple):
    """What a run did until its first child would have started."""

    plan: ConversationPlan
    run_method: str  # of the runner
    children: list[tuple[LaunchPlan, bool]]  # with "one child serves the whole conversation"
    error: str


@pytest.fixture
def execute(local_box, monkeypatch):
    """Run a command line in this process until its first child would start."""

    def run(vendor: str, args: tuple[str, ...]) -> ExecutedRun:
        plans: list[ConversationPlan] = []
        methods: list[str] = []
        children: list[tuple[LaunchPlan, bool]] = []

        class StoppingLauncher(MemoryLauncher):
            """A launcher that plans a child but does not start it."""

            def start_child(self, prompt: str, *, persistent: bool = False) -> Any:
                children.append((self.plan_child_launch(prompt, persistent=persistent), persistent))
                raise VendorError("no child is started here")

        class RecordingRunner(runner.ConversationRunner):
            """A runner that records the plan and what it does with the plan."""

            def __init__(self, launcher: Any, plan: ConversationPlan, *parts: Any, **more: Any):
                super().__init__(launcher, plan, *parts, **more)
                plans.append(plan)

        def record_call(name: str) -> None:
            method = getattr(runner.ConversationRunner, name)

            def call(self: runner.ConversationRunner, *parts: Any) -> int:
                methods.append(name.removeprefix("_run_"))
                return 0 if children else method(self, *parts)

            setattr(RecordingRunner, name, call)

        for name in ("_run_passthrough", "_run_one_shot", "_run_conversation"):
            record_call(name)
        start_child = startup._start_first_child

        def start_first_child(*parts: Any) -> None:
            with suppress(VendorError):
                start_child(*parts)

        error = ""
        ends = MemoryEnds()
        ends.source = MessageSource()
        with monkeypatch.context() as patch:
            patch.setattr(runner, "ConversationRunner", RecordingRunner)
            patch.setattr(startup, "_start_first_child", start_first_child)
            patch.setattr(startup, "read_prompt", lambda invocation, *_: invocation.prompt)
            conversation = startup.prepare_conversation(
                parse_argv(args), {"vendor": vendor}, launcher_class=StoppingLauncher
            )
            try:
                conversation.run(SignalRecorder(), ends)
            except ShimError as raised:
                error = str(raised)
        return ExecutedRun(plans[0], methods[0], children, error)

    return run


def mask_generated(argv: list[str]) -> list[str]:
    """Replace the ids and file names that each run creates."""
    return [GENERATED_FILE.sub("/FILE", UUID.sub("ID", argument)) for argument in redact_argv(argv)]


def name_driver(executed: ExecutedRun) -> str:
    """Return the driver that the runner used."""
    if executed.run_method == "passthrough":
        return "pass-through"
    _, persistent = executed.children[0]
    return "two-way" if persistent else "one-way"


@pytest.mark.parametrize(
    ("vendor", "args", "toml"),
    INVOCATIONS,
    ids=[f"{number}-{row[0]}" for number, row in enumerate(INVOCATIONS)],
)
def test_explain_prints_the_plan_that_a_run_executes(local_box, execute, vendor, args, toml):
    for name in vendor.split(","):
        program = {"cursor": "cursor-agent"}.get(name, name)
        path = local_box.write_program(program, "exit 1\n")
        assert path
    local_box.write_settings(toml)
    explanation = build_invocation_explanation(parse_argv(args), {"vendor": vendor})
    assert not explanation["refused"]
    executed = execute(vendor, args)
    plan = executed.plan
    assert executed.children, executed.error
    child, persistent = executed.children[0]
    assert explanation["driver"] == plan.driver_name == name_driver(executed)
    assert persistent == plan.persistent
    assert (executed.run_method == "one_shot") == (plan.run_mode is RunMode.ONE_SHOT)
    assert explanation["driver_why"] == plan.reason
    assert explanation["asks_frontend"] == plan.asks_frontend
    assert explanation["vendor"] == plan.adapter.display_name
    assert (explanation["stdin"] == "messages") == persistent
    assert mask_generated(explanation["argv"]) == mask_generated(child.argv)
    assert explanation["mode_arguments"] == list(child.request.mode_arguments)
    reads_messages = "--input-format" in args
    assert (plan.prompt_source is PromptSource.MESSAGES) == reads_messages


def build_plan(vendor: str, args: tuple[str, ...], **fields: Any) -> ConversationPlan:
    """Return the plan of a command line whose vendor is driven as its adapter specifies."""
    invocation = parse_argv(args)
    is_translated = fields.get("is_translated", False)
    return plan_conversation(
        ConversationPlanInput(
            adapters=(get_adapter(vendor, without_passthrough=is_translated),),
            reason="",
            invocation=invocation,
            settings=ShimSettings(),
            mode=resolve_requested_permission_mode(invocation),
            has_rules=fields.get("has_rules", False),
            is_translated=is_translated,
            stdin_input=fields.get("stdin_input"),
        )
    )


ACCEPT_EDITS = ("-p", PROMPT, "--permission-mode", "acceptEdits")
BYPASS = ("-p", PROMPT, "--permission-mode", "bypassPermissions")


@pytest.mark.parametrize(
    ("vendor", "args", "fields", "run_mode", "prompt_source", "driver"),
    [
        ("qwen", BYPASS, {}, "ONE_SHOT", "ARGUMENT_AND_STDIN", "one-way"),
        ("qwen", BYPASS, {"has_rules": True}, "RULES_ONLY", "ARGUMENT_AND_STDIN", "two-way"),
        ("demo", BYPASS, {"has_rules": True}, "ONE_SHOT", "ARGUMENT_AND_STDIN", "one-way"),
        ("qwen", (*BYPASS, *STREAM, *STDIO), {}, "ANSWERS", "ARGUMENT", "two-way"),
        # The frontend cannot see a request in text format, so stdin is a part of the prompt.
        ("qwen", (*BYPASS, *STDIO), {}, "RULES_ONLY", "ARGUMENT_AND_STDIN", "two-way"),
        ("qwen", CONVERSE, {}, "MESSAGES", "MESSAGES", "two-way"),
        ("demo", CONVERSE, {}, "MESSAGES", "MESSAGES", "one-way"),
        ("claude", CONVERSE, {}, "PASSTHROUGH", "MESSAGES", "pass-through"),
        ("claude", CONVERSE, {"is_translated": True}, "MESSAGES", "MESSAGES", "two-way"),
        # Yume: stdin was the prompt. Only qwen's permission requests keep its edits inside the
        # folder.
        ("qwen", BYPASS, {"stdin_input": StdinInput()}, "ONE_SHOT", "ARGUMENT", "one-way"),
        ("qwen", ACCEPT_EDITS, {"stdin_input": StdinInput()}, "RULES_ONLY", "ARGUMENT", "two-way"),
        (
            "qwen",
            BYPASS,
            {"stdin_input": StdinInput(may_send_more=True, wants_answers=True)},
            "ANSWERS",
            "ARGUMENT",
            "two-way",
        ),
    ],
)
def test_run_mode_prompt_source_and_driver_follow_from_the_input(
    vendor, args, fields, run_mode, prompt_source, driver
):
    plan = build_plan(vendor, args, **fields)
    assert (plan.run_mode.name, plan.prompt_source.name) == (run_mode, prompt_source)
    assert plan.driver_name == driver


@pytest.mark.parametrize(
    ("vendor", "args", "keeps_transcript"),
    [
        ("qwen", BYPASS, True),
        ("qwen", (*BYPASS, "--no-session-persistence"), False),
        ("claude", BYPASS, False),  # it writes its own
    ],
)
def test_transcript_is_written_unless_disabled_or_over_claude(vendor, args, keeps_transcript):
    assert build_plan(vendor, args).keeps_transcript == keeps_transcript

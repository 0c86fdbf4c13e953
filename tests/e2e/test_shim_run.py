"""`shim run` on a real terminal with real vendors: Ctrl-C, permission requests, denied calls,
sessions; and `shim explain`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from sandbox import EXIT_SECONDS, TURN_SECONDS, wait_until
from terminal import CTRL_C, Terminal, on_terminal
from test_scenarios import ENDLESS_COMMAND
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

SHIM = (sys.executable, "-m", "shim")
MADE = "made"
TOUCH = f"[[shell]] touch {MADE}"


def parametrize_vendors(*short: Vendor, full: tuple[Vendor, ...] = ()) -> pytest.MarkDecorator:
    """Parametrize a test with the vendors of `make e2e`, and those that only `make full` runs."""
    full_params = [pytest.param(vendor, marks=pytest.mark.full) for vendor in full]
    return pytest.mark.parametrize("vendor", [*short, *full_params], indirect=True, ids=str)


@contextmanager
def shim_run(frontend: DropInFrontend, prompt: str, *flags: str) -> Iterator[Terminal]:
    """Start `shim run` with the installed vendor on a new terminal."""
    command = [*SHIM, "run", *frontend.extra_args, *flags, prompt]
    environment = {
        **frontend.environment,
        "PATH": f"{frontend.claude.parent}:{frontend.environment['PATH']}",
    }
    with on_terminal(
        command, env=environment, cwd=str(frontend.folder), timeout_s=TURN_SECONDS
    ) as terminal:
        yield terminal


def has_no_processes(frontend: DropInFrontend) -> bool:
    """Return whether every process with this sandbox's mark ends in time."""
    return wait_until(lambda: not frontend.list_processes(), EXIT_SECONDS)


@parametrize_vendors(QWEN, PI, full=(CODEX, GEMINI, OPENCODE, CLAUDE_ITSELF))
def test_ctrl_c_interrupts_the_vendor_and_leaves_no_process(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    with shim_run(frontend, "[[slow]] hi") as terminal:
        terminal.wait_for_condition(
            lambda: bool(model.list_requests("slow")), "the model to be asked"
        )
        if vendor.fragments:
            terminal.wait_for_text("word")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert "■ interrupted" in terminal.plain and "✗" not in terminal.plain, terminal.plain
        assert terminal.clean
        assert has_no_processes(frontend)


@parametrize_vendors(full=(QWEN, PI, CLAUDE_ITSELF))
def test_second_ctrl_c_ends_a_running_command(frontend: DropInFrontend, vendor: Vendor) -> None:
    # Otherwise the real claude lets root bypass nothing.
    frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    with shim_run(
        frontend, f"[[shell]] {ENDLESS_COMMAND}", "--permission-mode", "bypassPermissions"
    ) as terminal:
        terminal.wait_for_condition(
            lambda: frontend.wait_for_start(ENDLESS_COMMAND, 0), "the command to run"
        )
        terminal.type_keys(CTRL_C)
        terminal.wait_for_text("interrupting")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == 130
        assert terminal.clean
        assert has_no_processes(frontend)


@parametrize_vendors(QWEN, full=(CLAUDE_ITSELF,))
@pytest.mark.parametrize(
    "answer", ["a", *(pytest.param(letter, marks=pytest.mark.full) for letter in "yn")]
)
def test_typed_answer_decides_whether_the_command_runs(
    frontend: DropInFrontend, vendor: Vendor, answer: str
) -> None:
    with shim_run(frontend, TOUCH) as terminal:
        terminal.wait_for_text(f"? Allow Bash touch {MADE}")
        terminal.wait_for_text("y = yes, n = no")
        terminal.type_keys(answer + "\n")
        assert terminal.wait_for_exit() == 0
        assert (frontend.folder / MADE).exists() == (answer != "n")
        assert ("⊘ ended with 1 denied call" in terminal.plain) == (answer == "n")
        assert "to allow it" not in terminal.plain, "the person has just denied it"


@parametrize_vendors(full=(QWEN, CODEX, GEMINI))
@pytest.mark.parametrize("call", [TOUCH, "[[write]] @"], ids=["touch", "write"])
def test_suggested_allow_rule_permits_a_call_denied_without_a_terminal(
    frontend: DropInFrontend, vendor: Vendor, call: str
) -> None:
    command = [*SHIM, "run", *frontend.extra_args]
    environment = {
        **frontend.environment,
        "PATH": f"{frontend.claude.parent}:{frontend.environment['PATH']}",
    }
    call = call.replace("@", str(frontend.folder / MADE))

    def run_piped(*args: str) -> str:
        done = subprocess.run(
            [*command, *args, call], env=environment, cwd=frontend.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TURN_SECONDS, check=False,
        )  # fmt: skip
        return done.stdout

    output = run_piped()
    assert "⊘ ended with 1 denied call" in output and "✓ done" not in output
    assert not (frontend.folder / MADE).exists()
    (advice,) = (
        line for line in output.splitlines() if line.startswith("to allow this call: shim run ")
    )
    assert "on a terminal, `shim run` asks you" in advice
    flags = shlex.split(advice.removeprefix("to allow this call: shim run ").partition(" …")[0])
    assert "✓ done" in run_piped(*flags), flags
    assert (frontend.folder / MADE).exists()
    # In plan mode qwen reports that a write failed, not that it was denied.
    if call == TOUCH:
        assert "plan mode allows no changes" in run_piped("--permission-mode", "plan")


@parametrize_vendors(full=(QWEN, PI, CODEX, CLAUDE_ITSELF))
def test_continue_resumes_the_session(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    with shim_run(frontend, "[[text]] the word is heron") as terminal:
        assert terminal.wait_for_exit() == 0
    with shim_run(frontend, "[[text]] and then", "--continue") as terminal:
        assert terminal.wait_for_exit() == 0
    assert "the word is heron" in json.dumps(model.list_requests("text")[-1].body)


@parametrize_vendors(PI, full=(QWEN, CODEX, GEMINI, OPENCODE))
def test_explain_prints_the_command_that_a_turn_starts(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    flags = ("-p", "[[text]] hi", *frontend.extra_args, "--permission-mode", "plan")
    cast = frontend.folder.parent / "a.cast"
    environment = {**frontend.environment, "SHIM_RECORD": str(cast)}
    argv = [str(frontend.claude), *flags, "--output-format", "stream-json", "--verbose"]
    subprocess.run(
        [*argv],
        env=environment,
        cwd=frontend.folder,
        stdin=subprocess.DEVNULL,
        timeout=TURN_SECONDS,
    )
    records = [json.loads(line) for line in cast.read_text().splitlines()]
    (ran,) = [
        record[2]["argv"] for record in records if isinstance(record, list) and record[1] == "s"
    ]
    request_count = len(model.requests)
    command = [*SHIM, "explain", "--json", "--", *flags, "--shim-vendor", vendor.name, *argv[-3:]]
    done = subprocess.run(
        command,
        env=frontend.environment,
        cwd=frontend.folder,
        capture_output=True,
        timeout=TURN_SECONDS,
        check=True,
    )
    explained = json.loads(done.stdout)
    # fresh ids
    fresh_ids = {
        arg for arg in (*ran, *explained["argv"]) if len(arg) == 36 and arg.count("-") == 4
    }
    assert [arg for arg in explained["argv"] if arg not in fresh_ids] == [
        arg for arg in ran if arg not in fresh_ids
    ]
    assert explained["help_known"] and len(model.requests) == request_count
    assert has_no_processes(frontend)

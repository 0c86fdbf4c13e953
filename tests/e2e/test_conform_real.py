"""`shim conform` with real programs: the real claude is the reference, and the shim must match it.

A rule that the real claude breaks is wrong, even if a page states it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import pytest
import sweeps
from clis import Cli
from sandbox import Sandbox
from vendor_setups import CLAUDE_ITSELF, GEMINI, PI, QWEN

from shim.commands.conform.observations import ConformanceRuleResult
from shim.commands.conform.runner import run_and_evaluate_conformance_rules
from shim.commands.conform.scenarios import ConformanceOptions

pytestmark = pytest.mark.e2e

PROMPTS = {
    "prompt": "[[text]] hi",
    "tool_prompt": "[[shell]] touch conform.txt",
    "long_prompt": "[[slow]]",
}
FAILING = PROMPTS | {"prompt": "[[error]] 401"}
TIMEOUT_S = 60.0
only_real = pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF, bare=True)], ids=str)


def findings(
    sandbox: Sandbox, prompts: Mapping[str, str], **options: bool
) -> dict[str, ConformanceRuleResult]:
    """Return the result of every rule by its name. The sandbox's environment is the user's."""
    results = run_and_evaluate_conformance_rules(
        [str(sandbox.claude)],
        sandbox.environment,
        os.getcwd(),
        ConformanceOptions(**options, **prompts),
        TIMEOUT_S,
    )
    return {finding.rule.name: finding for finding in results}


def filter_findings(
    results: Mapping[str, ConformanceRuleResult], verdict: str, *levels: str
) -> dict[str, str]:
    """Return the results of some levels that have the verdict."""
    return {
        name: json.dumps(finding.to_json(), ensure_ascii=False)
        for name, finding in results.items()
        if finding.verdict == verdict and finding.rule.level in (levels or ("MUST", "SHOULD"))
    }


@only_real
@pytest.mark.full
def test_claude_passes_every_must_rule(sandbox: Sandbox) -> None:
    """This proves the test. claude may break SHOULD rules: it loses the result of a SIGINT in some
    runs (P17).
    """
    results = findings(sandbox, PROMPTS, drop_in=False)
    assert filter_findings(results, "fail", "MUST") == {}, str(filter_findings(results, "fail"))
    assert set(filter_findings(results, "fail")) <= {"sigint-says-so"}
    # No request fails here. It reaches its model without a further process, but one may
    # run at its start.
    assert set(filter_findings(results, "skipped")) - {"nothing-survives"} == {"api-failures"}


@pytest.mark.full  # the scenario "error" of test_clients shows a failure to an SDK
@pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF, bare=True), Cli(QWEN), Cli(PI)], ids=str)
def test_api_failure_passes_its_contract_rules(sandbox: Sandbox, cli: Cli) -> None:
    """The process is started as the SDKs start it. A scenario of every vendor covers a process of
    one turn.
    """
    results = findings(sandbox, FAILING, drop_in=not cli.bare, yume=sweeps.full)
    assert results["api-failures"].verdict == "pass", results["api-failures"]
    assert (
        results["errors-exit-1"].verdict == "pass" and results["errors-are-last"].verdict == "pass"
    )
    # In one-shot mode pi never asks, so a turn with a rule for some calls is refused. An SDK never
    # uses that mode.
    cannot = {"tools"} if cli.vendor is PI and sweeps.full else set()
    assert set(filter_findings(results, "fail", "MUST")) == cannot, str(
        filter_findings(results, "fail")
    )


@pytest.mark.parametrize(
    ("cli", "cannot"),
    [
        pytest.param(Cli(QWEN), set(), marks=pytest.mark.full),  # three times the time of pi
        (Cli(PI), {"tools"}),
        pytest.param(Cli(GEMINI), {"forked-session", "tools"}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_drop_in_passes_every_supported_rule(sandbox: Sandbox, cannot: set[str]) -> None:
    results = findings(sandbox, PROMPTS)
    assert set(filter_findings(results, "fail")) == cannot, str(filter_findings(results, "fail"))
    assert set(filter_findings(results, "skipped")) == {"api-failures"}


# A real claude that the shim starts refuses these itself. The shim passes invalid stdin lines on to
# it. For a session that it does not know, or that already exists, the shim writes a turn of its own
# with an init, and the text on stdout.
REFUSED_BY_CLAUDE = {"bad-lines", "bad-sessions", "unknown-session", "unknown-session-in-text"}


@pytest.mark.full
@pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF)], ids=str)
def test_drop_in_over_claude_fails_only_the_expected_rules(sandbox: Sandbox) -> None:
    results = findings(sandbox, PROMPTS)
    assert set(filter_findings(results, "fail")) == REFUSED_BY_CLAUDE, str(
        filter_findings(results, "fail")
    )
    assert set(filter_findings(results, "skipped")) == {"api-failures"}

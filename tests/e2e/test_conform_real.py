"""`shim conform` over real programs: what the real claude does is right, and ours does it too.

A rule that the real one breaks is a wrong rule, whatever a page says.
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
PATIENCE = 60.0
only_real = pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF, bare=True)], ids=str)


def findings(
    sandbox: Sandbox, prompts: Mapping[str, str], **options: bool
) -> dict[str, ConformanceRuleResult]:
    """Every rule's finding, by its name. The place's environment is the user's."""
    results = run_and_evaluate_conformance_rules(
        [str(sandbox.claude)],
        sandbox.environment,
        os.getcwd(),
        ConformanceOptions(**options, **prompts),
        PATIENCE,
    )
    return {finding.rule.name: finding for finding in results}


def filter_findings(
    results: Mapping[str, ConformanceRuleResult], verdict: str, *levels: str
) -> dict[str, str]:
    """The rules of some levels with a verdict, each with what was found."""
    return {
        name: json.dumps(finding.to_json(), ensure_ascii=False)
        for name, finding in results.items()
        if finding.verdict == verdict and finding.rule.level in (levels or ("MUST", "SHOULD"))
    }


@only_real
@pytest.mark.full
def test_claude_passes_every_must_rule(sandbox: Sandbox) -> None:
    """The test of the test. SHOULDs are its own to break: it loses the result of a SIGINT now and
    then (P17).
    """
    results = findings(sandbox, PROMPTS, drop_in=False)
    assert filter_findings(results, "fail", "MUST") == {}, str(filter_findings(results, "fail"))
    assert set(filter_findings(results, "fail")) <= {"sigint-says-so"}
    # No request of it fails here. It needs no process to talk to its model; one of its own may be
    # seen at its start.
    assert set(filter_findings(results, "skipped")) - {"nothing-survives"} == {"api-failures"}


@pytest.mark.full  # the scenario "error" of test_clients shows a failure to an SDK
@pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF, bare=True), Cli(QWEN), Cli(PI)], ids=str)
def test_api_failure_passes_its_contract_rules(sandbox: Sandbox, cli: Cli) -> None:
    """As the SDKs start it; what a process of one turn says of it is a scenario of every vendor."""
    results = findings(sandbox, FAILING, drop_in=not cli.bare, yume=sweeps.full)
    assert results["api-failures"].verdict == "pass", results["api-failures"]
    assert (
        results["errors-exit-1"].verdict == "pass" and results["errors-are-last"].verdict == "pass"
    )
    # Given one message, pi asks nobody, so that it is refused under a rule about some calls; an SDK
    # gives none so.
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


# A real claude below us refuses these itself: what it refuses on stdin passes on to it, and a
# session that it does not know, or has already, is told in the form of a turn of ours, with an
# init, and in text on stdout.
REFUSED_BY_CLAUDE = {"bad-lines", "bad-sessions", "unknown-session", "unknown-session-in-text"}


@pytest.mark.full
@pytest.mark.parametrize("cli", [Cli(CLAUDE_ITSELF)], ids=str)
def test_drop_in_over_claude_fails_only_the_expected_rules(sandbox: Sandbox) -> None:
    results = findings(sandbox, PROMPTS)
    assert set(filter_findings(results, "fail")) == REFUSED_BY_CLAUDE, str(
        filter_findings(results, "fail")
    )
    assert set(filter_findings(results, "skipped")) == {"api-failures"}

"""acai as rules beside acai by hand: the same lines, but for the patience that only a module can have."""

import pytest
from bench_profile import profile
from support import as_parameters, check_turns, fixture_cases, parse

from shim.events import TERMINATORS, ClaudePen
from shim.terms import Terms
from shim.translate import STABLE_IDENTITY, STABLE_SESSION
from shim.translation import Translation
from shim.vendors import find

# The founding dialect never says what a call returned, or says it behind the next message; arguments that are no JSON.
BY_HAND_ONLY = {
    "acai/0.1.0-badargs",
    "acai/0.1.0-nonutf8",
    "acai/0.1.0-parallel",
    "acai/0.1.0-shellok",
    "acai/seed-complete-example",
    "acai/seed-outputs-crossed",
    "acai/seed-tool-role",
}
RULES = profile("acai")
CASES = [one for one in fixture_cases("acai", "cake") if one.folder.parent.name in ("acai", "cake")]


def said(vendor, case, partial):
    pen = ClaudePen(STABLE_IDENTITY, partial=partial, terminator=TERMINATORS["message_stop"])
    terms = Terms(vendor="acai", fresh_id=STABLE_SESSION, tools=find("acai").listed, unattended=True, retracts=False)
    translation = Translation(vendor.translator, terms, pen)
    return translation.feed(case.data) + translation.close(case.exit, case.stderr)


@pytest.mark.parametrize(**as_parameters(CASES))
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_rules_say_what_a_module_says(case, partial):
    by_rules = said(RULES, case, partial)
    check_turns(by_rules, partial)
    if case.name not in BY_HAND_ONLY:
        assert parse(by_rules) == parse(said(find("acai"), case, partial))

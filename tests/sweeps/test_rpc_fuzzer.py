"""Random conversations with the state machines that speak JSON-RPC with a child. `make full` runs a
million messages.
"""

import pytest
import sweeps
from fuzzing.rpc_fuzzer import find_failures
from fuzzing.vendor_agents import AGENTS

MESSAGES = 1500
FULL_MESSAGES = 4000


@pytest.mark.parametrize("machine", AGENTS)
def test_random_conversations_break_no_invariant(machine):
    assert (
        next(find_failures(machine, FULL_MESSAGES if sweeps.full else MESSAGES, seed=0), None)
        is None
    )

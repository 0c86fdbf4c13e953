"""Random clients against a plain model of the hub. `make full` runs many more."""

import sweeps
from fuzzing.hub_interleavings import Bridge
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

EXAMPLES, FULL_EXAMPLES = 40, 1000
STEPS = 60


def test_hub_invariants_hold_for_random_client_interleavings():
    always = settings(
        max_examples=FULL_EXAMPLES if sweeps.full else EXAMPLES,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Bridge, settings=always)

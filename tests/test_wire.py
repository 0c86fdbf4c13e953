"""Detects changes of names in the wire format: a change in `tests/golden/wire.json` is a change of
the product.
"""

import json

from wire_names import GOLDEN, describe_wire

# Names in the golden file that were never part of the wire format, and that the code does not have
# any more. The next `make accept` removes them from the file.
FORMER_PARAMETERS = frozenset(('"transcript"',))


def test_wire_names_match_the_golden_file():
    frozen = json.loads(GOLDEN.read_bytes())
    current = json.loads(describe_wire())
    changes = []
    for kind in frozen | current:
        before = {json.dumps(name) for name in frozen.get(kind, ())}
        after = {json.dumps(name) for name in current.get(kind, ())}
        changes += [f"{kind}: {name} is new" for name in sorted(after - before)]
        changes += [
            f"{kind}: {name} is missing" for name in sorted(before - after - FORMER_PARAMETERS)
        ]
    assert not changes, "run `make accept` if the product is meant to change: " + "; ".join(changes)

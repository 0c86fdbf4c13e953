"""The program that judges one call, where a vendor runs a hook before each: `python -I -m … MODULE POLICY`.

MODULE reads the event on stdin as calls, POLICY is a text of `core.policy.carried`. Exit code 0 lets the call run; 2
refuses it, with a sentence for the model on stderr. Every other end is a failure, which the vendor's line has to take
for a refusal.
"""

import json
import os
import sys
from importlib import import_module

from shim.core.policy.carried import read
from shim.core.policy.judge import Judge

EVENT_BYTES = 64 * 1024 * 1024  # a patch may hold whole files
REFUSED = 2


def main() -> int:
    """Judge the event on stdin."""
    module, text = sys.argv[1:]
    policy, mode = read(text, _real)
    data = sys.stdin.buffer.read(EVENT_BYTES + 1)
    if len(data) > EVENT_BYTES:
        return _refuse("the call is too large to be judged")
    try:
        calls = import_module(module).calls(json.loads(data), policy.place)
    except (ValueError, RecursionError) as error:
        return _refuse(f"the call cannot be judged: {error}")
    judge = Judge(policy)
    for name, arguments in calls:
        verdict = judge.verdict(name, arguments, mode)
        if verdict.decided != "allow":
            nobody = " and nobody can be asked" if verdict.decided == "ask" else ""
            return _refuse(f"{name} is not allowed{nobody} ({verdict.why})")
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return REFUSED


def _real(path: str) -> str:
    """Where a path's links lead; the path itself where nobody can tell."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


if __name__ == "__main__":
    sys.exit(main())

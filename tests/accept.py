"""`make accept`: rewrite every golden. A person reads the diff before it is committed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support import FIXTURES, check_turns, fixture_cases, translate_case


def main() -> int:
    """Write what the shim says now for each fixture; stale goldens go; prints which changed."""
    changed = 0
    for case in fixture_cases():
        said, _ = translate_case(case)
        check_turns(said, case.partial, passthrough=case.passthrough)
        old = case.golden.read_bytes() if case.golden.exists() else None
        if said == old:
            continue
        case.golden.write_bytes(said)
        changed += 1
        sys.stdout.write(f"{'new    ' if old is None else 'changed'}  {case.name}\n")
    for golden in sorted(FIXTURES.glob("*/*/claude.ndjson")):
        if not (golden.parent / "vendor.ndjson").exists():
            golden.unlink()
            changed += 1
            sys.stdout.write(f"removed  {golden.parent.parent.name}/{golden.parent.name}\n")
    sys.stdout.write(f"{changed} of {len(fixture_cases())} goldens changed; read the diff before you commit it\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

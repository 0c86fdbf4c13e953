"""`make accept`: rewrites every golden. A person reads the diff before it is committed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from drift import RECORDED_FILE
from fixture_cases import FIXTURES, ROOT, list_fixture_cases, translate_case
from profile_reference import PAGE, update_reference
from recorded_fields import encode_recorded_fields
from recording_renderer import GOLDENS, render_goldens
from session_builder import export_full_session
from stream_invariants import check_turns
from wire_names import GOLDEN as WIRE
from wire_names import describe_wire
from yume_stream import check_flat, translate_flat


def main() -> int:
    """Write the current output for each fixture, remove stale goldens, and print which ones have
    changed.
    """
    changed = 0
    for case in list_fixture_cases():
        output, _ = translate_case(case)
        check_turns(output, case.partial, passthrough=case.passthrough)
        changed += write_golden(case.golden, output)
        if "yume" in case.metadata:
            flat, _ = translate_flat(case)
            check_flat(flat)
            changed += write_golden(case.folder / "yume.ndjson", flat)
    for golden in sorted((*FIXTURES.glob("*/*/claude.ndjson"), *FIXTURES.glob("*/*/yume.ndjson"))):
        if not (golden.parent / "vendor.ndjson").exists():
            golden.unlink()
            changed += 1
            sys.stdout.write(f"removed  {golden.parent.parent.name}/{golden.parent.name}\n")
    changed += write_golden(FIXTURES / "exports" / "everything.md", export_full_session())
    changed += write_golden(RECORDED_FILE, encode_recorded_fields())
    changed += write_golden(WIRE, describe_wire())
    page = PAGE.read_text(encoding="utf-8")
    changed += write_golden(PAGE, update_reference(page).encode())
    rendered_goldens = {
        GOLDENS / f"{name}.txt": text.encode() for name, text in render_goldens().items()
    }
    changed += sum(write_golden(golden, text) for golden, text in rendered_goldens.items())
    for golden in sorted(set(GOLDENS.glob("*.txt")) - set(rendered_goldens)):
        golden.unlink()
        changed += 1
        sys.stdout.write(f"removed  {golden.name}\n")
    sys.stdout.write(
        f"{changed} of {len(list_fixture_cases()) + len(rendered_goldens)} goldens changed; "
        "read the diff before you commit it\n"
    )
    return 0


def write_golden(golden: Path, content: bytes) -> bool:
    """Write one golden. Return whether it has changed."""
    old = golden.read_bytes() if golden.exists() else None
    if content == old:
        return False
    golden.parent.mkdir(parents=True, exist_ok=True)
    golden.write_bytes(content)
    name = golden.relative_to(FIXTURES if golden.is_relative_to(FIXTURES) else ROOT)
    sys.stdout.write(f"{'new    ' if old is None else 'changed'}  {name}\n")
    return True


if __name__ == "__main__":
    raise SystemExit(main())

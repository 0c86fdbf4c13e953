"""A program of an unknown vendor, for tests: `heron fly [FLAGS] -- PROMPT`. Its lines have their
own format.

Words in the prompt select what happens: `run_look_turn` makes two parallel tool calls, `fall` fails
with its own message, `limit` is refused by the model, `drop` exits without output, and any other
prompt is answered. HERON_LOG is a file that records how the program was started.
"""

import json
import os
import sys

FLAGS = {"--nest": "nest", "--brain": "brain", "--care": "care", "--quiet": None}


def main() -> int:
    """Run one turn."""
    options, prompt = read_arguments(sys.argv[2:])
    if log := os.environ.get("HERON_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"arguments": sys.argv[1:], "prompt": prompt}) + "\n")
    if "drop" in prompt:
        sys.stderr.write("the heron did not feel like it\n")
        return 9
    nest = options.get("nest") or f"nest-{os.getpid()}"
    write_line("wake", nest=nest, brain=options.get("brain") or "small", skills=["swim", "dig"])
    if "limit" in prompt:
        write_line("fall", cry="429 Too Many Requests", again_in=3)
        return 4
    write_line("muse", about="What is ")
    write_line("muse", about="asked?")
    if "look" in prompt:
        return run_look_turn()
    if "fall" in prompt:
        write_line("call", part=1, so_far="I try")
        write_line("fall", cry="my wing is broken")
        return 5
    write_line("call", part=1, so_far="Hear")
    write_line("call", part=1, so_far="Heard: ")
    write_line("call", part=1, so_far=f"Heard: {prompt}")
    write_line("eat", bill={"fish": 40, "frozen": 30, "bones": 5})
    write_line("land", sound=True)
    return 0


def run_look_turn() -> int:
    """Run a turn with tools."""
    write_line("call", part=1, so_far="I look.")
    jobs = [
        {"ref": 7, "skill": "swim", "how": json.dumps({"to": "/repo/a.txt", "from_line": 3})},
        {"ref": 8, "skill": "dig", "how": json.dumps({"words": ["ls", "-a"]})},
    ]
    write_line("work", jobs=jobs)
    write_line("eat", bill={"fish": 10, "frozen": 0, "bones": 2})
    reports = [
        {"ref": 8, "found": ["no such", "place"], "went": "badly"},
        {"ref": 7, "found": ["one"], "went": "well"},
    ]
    write_line("report", reports=reports)
    write_line("call", part=2, so_far="One is there.")
    write_line("eat", bill={"fish": 20, "frozen": 10, "bones": 3})
    write_line("land", sound=True)
    return 0


def read_arguments(args: list[str]) -> tuple[dict[str, str], str]:
    """Return the flags, and the prompt after `--` or from stdin."""
    options: dict[str, str] = {}
    while args and args[0] != "--":
        name = args.pop(0)
        if name not in FLAGS:
            raise SystemExit(f"heron: what is {name}?")
        if key := FLAGS[name]:
            options[key] = args.pop(0)
    return options, args[1] if args else sys.stdin.read()


def write_line(act: str, **body: object) -> None:
    sys.stdout.write(json.dumps({"heron": 2, "act": act, "body": body}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

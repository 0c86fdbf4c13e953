"""Shell lines, and a real shell that runs them to find out what they touch in spite of a deny rule.

A line contains only harmless programs and relative paths, so that it can be run in a new folder
with six programs on its PATH. Only lines that the policy allows are run. A line that creates
the file `m`, changes the folder `secret` or prints the contents of that folder has bypassed a deny
rule.

    python -m fuzzing.shell_lines LINES [SEED]
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules

PROGRAMS = (
    "touch",
    "cat",
    "cp",
    "head",
    "ls",
    "env",
    "xargs",
    "timeout",
    "nice",
    "tee",
    "sed",
    "rm",
    "mv",
    "sh",
    "find",
)
LINE_SECONDS = 2.0
HIDDEN = "what nobody may read"
DENIED = {
    "touched it": "Bash(touch:*)",
    "changed it": "Edit(./secret/**)",
    "read it": "Read(./secret/**)",
}
DEPTH = 3


class ShellLineGenerator:
    """Lines that try to do what is denied, created from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def create_line(self) -> str:
        return self._create_command(DEPTH)

    def _create_command(self, depth: int) -> str:
        choose = self._random.choice
        if depth == 0 or self._random.random() < 0.3:
            return self._create_access()
        inner, other = self._create_command(depth - 1), self._create_command(depth - 1)
        quoted = "'" + inner.replace("'", "'\\''") + "'"
        forms = (
            "{a}; {b}", "{a} && {b}", "{b} || {a}", "{a} | {b}", "{a} & {b}; wait", "({a})", "{{ {a}; }}", "$({a})",
            "`{a}`", "echo $({a})", 'echo "$({a})"', "cat <({a})", "! {a}", "if {a}; then {b}; fi", "{a}\n{b}",
            "for i in 1 2; do {a}; done", "while {a}; do {b}; break; done", "case x in x) {a};; esac",
            "f() {{ {a}; }}; f",
            "time {a}", "X=1 {a}", "env A=1 {a}", "timeout 5 {a}", "nice {a}", "command {a}", "exec {a}", "eval {q}",
            "sh -c {q}", "bash -c {q}", "echo x | xargs {a}", "trap {q} EXIT", "cat <<E\n$({a})\nE",
            "cat <<'E'\n{b}\nE",
            "echo {q}", "{a} # {b}", "# {a}\n{b}", "{a} \\\n", "[[ -n $({a}) ]]", "[ -n \"$({a})\" ]", "X=$({a})",
            "echo $(( $({a}) + 1 ))", "echo ${{X:-$({a})}}", "coproc {a}", "{a} 2>&1", "{a} >/dev/null", "cd sub; {a}",
            "cd secret; {a}", "cd sub && cd ../secret && {a}", "source <({a})", "builtin {a}",
            "find . -name m -o -exec {a} \\;", "X={q}; $X", "X={q}; eval \"$X\"",
            "select i in 1; do {a}; break; done <<< 1",
            "ls\r#; {a}", "[ a ]#; {a}", "ls \\ #; {a}", "ls\\\t#; {a}", "for X in 'b[$({a})]'; do [[ X -eq 1 ]]; done",
            "for i in 1 2; do {a}; cd secret; done", "f() {{ {a}; }}; cd secret; f", "trap {q} EXIT; cd secret",
            "env -C secret {a}", "env --chdir=secret {a}", "env -S{q}", "cd secret\n{a}", "time cd secret; {a}",
            "sed -n 1p -e {q} notes.txt", "X=secret; cd $X; {a}", "pushd secret; {a}", "mv sub z; {a}",
            "echo {q} | sh", "sh <<< {q}", "sh <<'E'\n{a}\nE", "sed -n 1p -e {q} -e 2p notes.txt", "X={q}; (( X ))",
            "a[{q}]=1", "let X={q}", "[ -v {q} ]", "unset {q}", "declare -i X={q}", "read {q} <<< 1",
            "until {a}; do {b}; break; done", "(( $({a}) ))", "a=($({a}))", "export X=$({a})", "printf -v X %s $({a})",
        )  # fmt: skip
        return choose(forms).format(a=inner, b=other, q=quoted)

    def _create_access(self) -> str:
        secret, disguise, choose = (
            self._pick_secret_path(),
            self._disguise_word,
            self._random.choice,
        )
        return choose((
            f"{disguise('touch')} m", f"{disguise('touch')} m", f"{disguise('cat')} {secret}/x",
            f"{disguise('head')} {secret}/x",
            f"echo hi > {secret}/q", f"echo hi >> {secret}/q", f"> {secret}/q echo hi", f"echo hi 2> {secret}/q",
            f"echo hi &> {secret}/q", f"echo hi >| {secret}/q", f"cat <> {secret}/q", f"cat < {secret}/x",
            f"{disguise('cp')} notes.txt {secret}/q", f"{disguise('cp')} {secret}/x y; cat y",
            f"{disguise('rm')} {secret}/x", f"{disguise('mv')} {secret}/x y", f"echo hi | {disguise('tee')} {secret}/q",
            f"{disguise('sed')} -n 1p {secret}/x", f"{disguise('sed')} -i s/w/v/ {secret}/x",
            f"exec 3< {secret}/x; cat <&3", f"echo hi 3> {secret}/q",
            "cat notes.txt", "echo hi", "true", "ls", "cat", "", f"read X < {secret}/x; echo $X", "cat x",
            "cat ../secret/x", f"mapfile -t X < {secret}/x; echo ${{X[0]}}",
            f"{disguise('cat')} -- {secret}/x", f"{disguise('cat')} -n{secret}/x",
        ))  # fmt: skip

    def _disguise_word(self, token: str) -> str:
        choose = self._random.choice
        cut = self._random.randrange(1, len(token))
        head, tail = token[:cut], token[cut:]
        return choose((
            token, token, token, f"'{token}'", f'"{token}"', f"{head}\\{tail}", f"{head}''{tail}", f'{head}"{tail}"',
            f"\\{token}", f"$'{token}'",
            f"$'\\x{ord(token[0]):02x}{token[1:]}'", f"${{X:-{token}}}", f"$(echo {token})",
            f"`echo {token}`", f"X={token}; $X", f"{head}$Y{tail}", f"{{{token},}}",
            f"{head}\\\n{tail}", f"[{token[0]}]{token[1:]}", f"./{token}",
        ))  # fmt: skip

    def _pick_secret_path(self) -> str:
        return self._random.choice((
            "secret", "secret", "./secret", "sub/../secret", "secret/.", "secret//", "'secret'", 'se"cr"et', "se\\cret",
            "s*t", "secre?", "[s]ecret", "$PWD/secret", "~+/secret", "alias", "${X:-secret}", "$(echo secret)",
            "{secret,}",
            "sub/up/secret", "$'secret'", "SECRET/../secret",
        ))  # fmt: skip


class Shell:
    """A folder with the files that the rules protect, and a real bash that runs lines there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._work = root / "work"
        binaries = root / "bin"
        binaries.mkdir()
        for name in PROGRAMS:
            executable = shutil.which(name)
            assert executable, name
            (binaries / name).symlink_to(executable)
        self._bash = shutil.which("bash") or ""
        self.environment = {"PATH": str(binaries), "HOME": str(root / "home"), "LANG": "C.UTF-8"}
        self.environment["FUNCNEST"] = "8"  # stops a function that calls itself
        workspace = Workspace(str(self._work), self.environment["HOME"], (), os.path.realpath)
        self.judges = {
            what: PolicyEvaluator(Policy(workspace=workspace, deny=parse_permission_rules([rule])))
            for what, rule in DENIED.items()
        }
        self.create_files()

    def create_files(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        (self._work / "secret").mkdir(parents=True)
        (self._work / "sub").mkdir()
        (self._work / "secret/x").write_text(HIDDEN)
        (self._work / "notes.txt").write_text("notes\n")
        (self._work / "alias").symlink_to("secret")
        (self._work / "sub/up").symlink_to("..")

    def _run_line(self, line: str) -> str:
        """Return what a line writes to stdout and stderr, and end its process group."""
        process = subprocess.Popen(
            [self._bash, "-c", line],
            cwd=self._work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.communicate(timeout=LINE_SECONDS)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def find_violation(self, line: str) -> str:
        """Return which denied action a line performed although its rule allowed the line, or ""."""
        let = {
            what
            for what, evaluator in self.judges.items()
            if evaluator.find_restricting_decision("Bash", {"command": line}) is None
        }
        if not let:
            return ""
        output = self._run_line(line)
        secret = self._work / "secret"
        here = {"secret", "sub", "notes.txt", "alias"}
        did = {
            "read it": HIDDEN in output,
            "changed it": [path.name for path in secret.iterdir()] != ["x"]
            or (secret / "x").read_text() != HIDDEN,
            "touched it": any(path.name == "m" for path in self._work.rglob("m")),
        }
        if (
            any(did.values())
            or set(os.listdir(self._work)) != here
            or len(os.listdir(self._work / "sub")) != 1
        ):
            self.create_files()
        return ", ".join(what for what in did if did[what] and what in let)


def find_violations(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield each of `count` lines that bypassed a rule, with its effect."""
    lines = ShellLineGenerator(seed)
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder).resolve())
        for _ in range(count):
            line = lines.create_line()
            if what := shell.find_violation(line):
                yield line, what


def main() -> int:
    count, seed = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    violations = list(find_violations(count, seed))
    for line, what in violations:
        sys.stdout.write(f"{what}: {line!r}\n")
    sys.stdout.write(f"{count} lines, seed {seed}: {len(violations)} passed a deny rule\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""The policy against a real shell: an allowed line is run and may not do what a rule denies."""

from fuzzing.shell_lines import Shell, ShellLineGenerator, find_violations

LINES = 100
SEED = 1


def test_allowed_shell_lines_do_not_violate_deny_rules():
    assert list(find_violations(LINES, SEED)) == []


def test_generated_lines_violate_every_rule_without_a_policy(tmp_path):
    class Nobody:
        def find_restricting_decision(self, tool, tool_input):
            return None

    shell = Shell(tmp_path)
    shell.judges = dict.fromkeys(shell.judges, Nobody())
    lines = ShellLineGenerator(SEED)
    did = {
        what
        for _ in range(LINES)
        for what in shell.find_violation(lines.create_line()).split(", ")
        if what
    }
    assert did == set(shell.judges)

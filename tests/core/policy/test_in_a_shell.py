"""The policy against a real shell: what it lets through is run, and nothing that a rule denies may
come of it.
"""

from fuzzing.shell_lines import Shell, ShellLineGenerator, find_violations

LINES = 100
SEED = 1


def test_no_line_that_is_let_through_does_what_a_rule_denies():
    assert list(find_violations(LINES, SEED)) == []


def test_the_same_lines_do_it_where_nothing_is_denied(tmp_path):
    class Nobody:
        def find_restriction(self, tool, tool_input):
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

"""Implements `shim completion`, which prints a shell script that completes `shim` and `claude`."""

import os
import shlex
import sys
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # no __all__

from shim.commands.completion.values import create_completer
from shim.story.terminal.console import check_option_value

CLAUDE_SCRIPTS = {
    "bash": """\
_claude_shim_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( COMMAND bash "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null ) )
}
complete -o default -F _claude_shim_completion claude
""",
    "zsh": """\
_claude_shim_completion() {
    local -a completions
    completions=("${(@f)$(COMMAND zsh "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    if [[ -n "$completions[1]" ]]; then
        _describe 'claude' completions
    else
        _files
    fi
}
compdef _claude_shim_completion claude
""",
    "fish": """\
function __claude_shim_completion
    set -l previous (commandline -opc)
    set -l current (commandline -ct)
    COMMAND fish $previous[2..-1] "$current" 2>/dev/null
end
complete --command claude --no-files --condition 'count (__claude_shim_completion) >/dev/null' \\
    --arguments '(__claude_shim_completion)'
""",
}
SHELLS = tuple(CLAUDE_SCRIPTS)


def print_completion_script(
    shell: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(SHELLS)}; by default the shell in $SHELL.",
            autocompletion=create_completer(SHELLS),
        ),
    ] = None,
) -> None:
    """Print a script that completes `shim` and `claude` in your shell.

    It completes commands and options, and values: vendors, formats, permission modes, sessions and
    recordings.

    To load it in each new shell, add `eval "$(shim completion bash)"` to ~/.bashrc, the same with
    zsh to ~/.zshrc, or `shim completion fish | source` to config.fish.

    Example: shim completion zsh
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    check_option_value(SHELLS, name, "SHELL")
    sys.stdout.write(
        f"{get_completion_script(prog_name='shim', complete_var='_SHIM_COMPLETE', shell=name)}\n"
    )
    command = shlex.join([sys.executable, "-I", "-m", "shim.commands.claude.completion"])
    sys.stdout.write(CLAUDE_SCRIPTS[name].replace("COMMAND", command))

"""What codex is told of a conversation's rules before it runs anything. Measured with 0.169.0.

Its sandbox is wider than Claude's modes: it runs any command, and knows folders only. So a hook of ours stands in front
of every call (`hooks.PreToolUse`). codex starts the hook for commands, patches, tools of MCP, subagents and what
subagents call, and for what a script calls in its code mode. A hook that ends with code 2 and a reason on stderr stops
the call; with another failure the call would run, so a shell makes a 2 of every failure. A hook that nobody has
reviewed is left out without a word unless `--dangerously-bypass-hook-trust` stands there.

Below bypassPermissions codex also keeps from files that widen: `.rules` files, which let commands out of the sandbox,
and all that the working directory says (`.codex/config.toml`: servers, roles, folders that may be written to).
The web is searched by the model's service, which no hook sees, so that tool is taken away.
"""

from shim.core.errors import ModeError
from shim.core.policy.carried import written
from shim.core.policy.policy import BYPASS, Policy
from shim.core.policy.rules import Rule
from shim.core.vendor.vendor import ARGUMENT_BYTES, Request

HOOK = "shim.vendors.codex_hook"  # what reads an event of the hook
HOOK_SECONDS = (
    600  # that codex waits for a hook; a call whose hook takes longer runs, so this is far from what it takes
)
WEB = "WebSearch"
# Any failure of the hook is a refusal, and a refusal needs a reason.
UNASKED = "the permission rules could not be asked about this call"
CLOSED = f'"$@"; s=$?; [ $s = 0 ] && exit 0; [ $s = 2 ] || echo "{UNASKED}" >&2; exit 2'


def arguments(request: Request) -> list[str]:
    """The words that keep codex to the rules of a request."""
    policy, mode = request.policy, request.permission_mode
    if policy is None:
        return []
    words: list[str] = []
    if not usable(policy, WEB, mode):
        words += _set("web_search", '"disabled"')
    if mode == BYPASS and not policy.narrows:
        return words
    words += _untrusted(policy)
    if mode != BYPASS:
        words += ["--ignore-rules", *_sandbox(policy, mode)]
    if request.unheard:
        raise ModeError(
            f"codex may not start the hook that keeps it to the permission rules: {request.unheard}",
            hint=f"take that away, or ask for {BYPASS} without rules",
        )
    hook = _hook(request.judge, written(policy, mode))
    return [*words, "--dangerously-bypass-hook-trust", *_set("features.hooks", "true"), *hook]


def binds(rule: Rule, request: Request) -> bool:
    """Whether our hook judges by a rule. It runs no hooks of Claude's settings."""
    return request.policy is None or rule not in request.policy.hooks


def usable(policy: Policy, tool: str, mode: str) -> bool:
    """Whether some call of a tool that asks in every mode below the widest runs without a question."""
    if not policy.listed([tool]) or any(rule.names(tool, narrows=True) for rule in policy.ask):
        return False
    return mode == BYPASS or any(rule.names(tool) for rule in policy.allowed)


def _sandbox(policy: Policy, mode: str) -> list[str]:
    """The sandbox below the hook. It is open for changes where the mode or a rule may allow one."""
    if mode == "plan" or (mode == "default" and not policy.allowed):
        return []
    table = "sandbox_workspace_write"
    roots = ",".join(_text(policy.place.absolute(folder)) for folder in policy.place.directories)
    commands = any(rule.tool == "Bash" for rule in policy.allowed)  # `Bash(git push:*)` needs the network
    return [
        *_set("sandbox_mode", '"workspace-write"'),
        *_set(f"{table}.exclude_slash_tmp", "true"),
        *_set(f"{table}.exclude_tmpdir_env_var", "true"),
        *_set(f"{table}.writable_roots", f"[{roots}]"),
        *_set(f"{table}.network_access", "true" if commands else "false"),
    ]


def _untrusted(policy: Policy) -> list[str]:
    """Nothing that the working directory says of codex counts, nor what a folder around it says.

    codex asks whether a folder is trusted first, and only then about its repository, so each folder is named.
    """
    named: dict[str, None] = {}
    for folder in policy.place.spellings(policy.place.cwd):
        while folder not in named:
            named[folder] = None
            folder = folder.rpartition("/")[0] or "/"
    return _set("projects", "{" + ",".join(f'{_text(one)}={{trust_level="untrusted"}}' for one in named) + "}")


def _hook(judge: tuple[str, ...], policy: str) -> list[str]:
    command = " ".join(map(_quoted, ("/bin/sh", "-c", CLOSED, "sh", *judge, HOOK, policy)))
    if len(command) > ARGUMENT_BYTES:
        raise ModeError(
            "codex cannot be told so many permission rules", hint="take rules away, or choose another vendor"
        )
    handler = f'{{type="command",command={_text(command)},timeout={HOOK_SECONDS}}}'
    return _set("hooks.PreToolUse", f"[{{hooks=[{handler}]}}]")


def _set(key: str, value: str) -> list[str]:
    return ["-c", f"{key}={value}"]


def _text(value: str) -> str:
    """A string of TOML."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(one if one >= " " and one != "\x7f" else f"\\u{ord(one):04x}" for one in escaped) + '"'


def _quoted(word: str) -> str:
    """A word of a shell's line."""
    return "'" + word.replace("'", "'\"'\"'") + "'"

"""Parses yume-cli's command line (Yume's reference, section 1). Every command line is accepted.

yume-cli start --provider P --model M --cwd D --session-id ID [--prompt P] [--resume ID] …
"""

from collections.abc import Sequence

from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.unknown_flags import find_similar_permission_flag
from shim.core.reading.typed import Any, NamedTuple

MODE_FLAG = "--permission-mode"
# The YumeInvocation field that each flag sets, or None for a flag without a value. A flag that is
# missing from the table takes the next argument as its value, unless that argument is a flag. Flags
# are also accepted in camelCase, such as `--historyFile`.
FLAGS: dict[str, str | None] = {
    "--provider": "provider",
    "--model": "model",
    "--cwd": "cwd",
    "--session-id": "session",
    "--prompt": "prompt",
    "--resume": "resume",
    MODE_FLAG: "mode",
    "--history-file": "history",
    "--api-base": "api_base",
    "--protocol-version": "protocol",
    "--output-format": "format",
    "--reasoning-effort": "effort",
    "--effort": "effort",
    "--append-system-prompt": "system",
    "--verbose": None,
    "--version": None,
    "-v": None,
    "--help": None,
    "-h": None,
}
# flags that take the next argument as their value even if it begins with a dash
TEXT_FLAGS = ("--prompt", "--append-system-prompt")

# The vendor for each provider. A vendor's name is also accepted as a provider.
VENDOR_BY_PROVIDER = {
    "openai": "codex",
    "anthropic": "claude",
    "google": "gemini",
    "github": "copilot",
}
COMMANDS = ("start", "auth", "version", "help")
PROTOCOL_VERSION = "1"


class YumeInvocation(NamedTuple):
    """A parsed command line of yume-cli.

    `args` are the arguments of commands other than `start`. `warnings` are lines for stderr.
    `misspelled` is an unknown flag that most likely means `--permission-mode`.
    """

    command: str = "start"
    args: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    cwd: str = ""
    session: str = ""
    prompt: str = ""
    resume: str = ""
    mode: str = ""
    history: str = ""
    api_base: str = ""
    protocol: str = PROTOCOL_VERSION
    format: str = "stream-json"
    effort: str = ""
    system: str = ""
    warnings: tuple[str, ...] = ()
    misspelled: str = ""

    @property
    def vendor_name(self) -> str:
        """The name of the provider's vendor, or "" if no provider is given."""
        name = self.provider.strip().lower()
        return VENDOR_BY_PROVIDER.get(name, name)

    def to_claude_invocation(self) -> Invocation:
        """Return the command line as an Invocation, as if it were Claude's. The result has no
        session ids and no permission mode; the caller reads them from this object.
        """
        texts: dict[str, Any] = {
            "prompt": self.prompt,
            "model": self.model,
            "permission_mode": self.mode,
            "append_system_prompt": self.system,
            "effort": self.effort,
            "shim_vendor": self.vendor_name,
        }
        return Invocation(
            print_mode=True,
            output_format="stream-json",
            verbose=True,
            partial=True,
            shim_dialect="yume",
            **{name: text for name, text in texts.items() if text},
        )


def parse_yume_argv(argv: Sequence[str]) -> YumeInvocation:
    """Parse yume-cli's arguments, without the program's name. An unknown flag is skipped with its
    value, and a warning names the flag.
    """
    args = list(argv)
    command = ""
    if args and args[0] in COMMANDS:
        command = args.pop(0)
    fields: dict[str, str] = {}
    operands: list[str] = []
    warnings: list[str] = []
    switches: set[str] = set()
    position = 0
    while position < len(args):
        arg = args[position]
        position += 1
        if arg == "--":
            operands += args[position:]
            break
        if len(arg) < 2 or arg[0] != "-":
            operands.append(arg)
            continue
        typed_flag, equals, value = arg.partition("=")
        name = _convert_to_kebab_case(typed_flag)
        field = FLAGS.get(name, "")
        if field is None:
            switches.add(name)
            continue
        if (
            not equals
            and position < len(args)
            and (name in TEXT_FLAGS or args[position][:1] != "-")
        ):
            value = args[position]
            position += 1
            equals = "="
        if name not in FLAGS and find_similar_permission_flag(name, value) == MODE_FLAG:
            fields["misspelled"] = typed_flag
        elif name not in FLAGS:
            warnings.append(f"unknown flag {typed_flag[:60]} was skipped")
        elif not equals:
            warnings.append(f"{name} has no value and was skipped")
        else:
            fields[field] = value
    return _build_invocation(command, fields, operands, switches, warnings)


def _build_invocation(
    command: str,
    fields: dict[str, str],
    operands: list[str],
    switches: set[str],
    warnings: list[str],
) -> YumeInvocation:
    if switches & {"--version", "-v"}:
        command = "version"
    elif switches & {"--help", "-h"}:
        command = "help"
    if not command:
        command = "start"
    if command == "start":
        if operands and not fields.get("prompt"):
            fields["prompt"] = " ".join(operands)
        if fields.get("protocol", PROTOCOL_VERSION) != PROTOCOL_VERSION:
            warnings.append(
                f"protocol version {fields['protocol'][:20]} was requested; using "
                f"{PROTOCOL_VERSION}"
            )
        if fields.get("format", "stream-json") != "stream-json":
            warnings.append(
                f"--output-format {fields['format'][:20]} is not supported; using stream-json"
            )
    return YumeInvocation(command=command, args=tuple(operands), warnings=tuple(warnings), **fields)


def _convert_to_kebab_case(name: str) -> str:
    """Convert a flag to kebab case: `--historyFile` becomes `--history-file`."""
    if not name.startswith("--"):
        return name
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in name)

"""What a vendor is, as data: how it is found and started, what it can do, and who translates it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import ModeError
from shim.core.policy.policy import BYPASS
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.vendor.tools import Tools, vendor_names
from shim.core.vendor.versions import LoginProbe, ModelProbe, VersionProbe

if TYPE_CHECKING:
    from shim.core.policy.policy import Policy
    from shim.core.policy.rules import Rule
    from shim.core.vendor.translator import Translator

# Linux refuses a single argument of 128 KiB; the rest of the command line needs room too.
ARGUMENT_BYTES = 100_000


class Launch(NamedTuple):
    """How to start a child: its arguments (without the program) and the bytes of its stdin, closed behind them.

    `environment` are variables that are added, `unset` those that it must not see, `enforced` those that carry rules,
    so that no setting goes before them. `pipe`: a stdin with nothing in it is a pipe all the same. `files` are paths of
    ours that its arguments name, removed when it has ended.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()
    pipe: bool = False
    files: tuple[str, ...] = ()
    enforced: Mapping[str, str] = {}


class Report(NamedTuple):
    """A file, one JSON object, that a vendor writes into `Request.report_folder` about its run, and its keys of use."""

    file: str
    keys: tuple[str, ...]


class Servers(NamedTuple):
    """MCP servers: name → configuration as Claude has it.

    `given` are those of `--mcp-config`, `private` those that no command line may have.
    """

    given: Mapping[str, Mapping[str, Any]] = {}
    private: Mapping[str, Mapping[str, Any]] = {}

    @property
    def all(self) -> dict[str, Mapping[str, Any]]:
        return {**self.given, **self.private}


class Request(NamedTuple):
    """One turn that is asked of a vendor.

    `mode` are the arguments that honour the permission mode `permission_mode`, `resume` is the vendor's own id of the
    session that goes on, `variant` the vendor's dialect if it has several, `trust` whether its trust gate may be
    opened, `knows` tells whether the installed program has a flag, `removed` are Claude's names of the tools that are
    denied as a whole.
    `listens`: the child stays for the conversation and is told everything through its stdin (`Vendor.speaks`).
    `unheard`: why the program may not obey what keeps it narrow, a file of ours or our hook; "" where it does.
    `policy` has the rules that it is kept to; `judge` are the words that start our hook, which judges one call by them.
    `environment` is what its child would see. `session` is the session's id where the vendor's own is another one, and
    `transcript` a path in the folder of its history. `mode_file` has the mode while it may change; "" where it may not.
    `keep` writes a text to a file of ours, whose name has the given end; its path, None when that cannot be.
    `report_folder` is where it may write its `Vendor.report`, None if it would not be read.
    `servers` are the MCP servers that it is told of.
    """

    invocation: Invocation
    prompt: str
    mode: tuple[str, ...] = ()
    permission_mode: str = "default"
    resume: str | None = None
    variant: str = "auto"
    trust: bool = False
    knows: Callable[[str], bool] = lambda flag: True
    removed: tuple[str, ...] = ()
    listens: bool = False
    environment: Mapping[str, str] = {}
    keep: Callable[..., str | None] = lambda text, suffix=".txt": None
    report_folder: str | None = None
    unheard: str = ""
    policy: "Policy | None" = None
    judge: tuple[str, ...] = ()
    session: str = ""
    transcript: str = ""
    mode_file: str = ""
    servers: Servers = Servers()

    def with_system_prompt(self) -> str:
        """The prompt behind the system prompts, for vendors that have no flag for them."""
        given = (self.invocation.system.system_prompt, self.invocation.system.append_system_prompt)
        return "\n\n".join([text for text in given if text] + [self.prompt])

    def flag(self, name: str, value: str | None) -> list[str]:
        """`[name, value]`, or nothing when there is no value.

        A value that begins with a dash is joined with `=`, so that it cannot become a flag (threats: frontend); pi,
        which knows no `=`, takes the next word whatever it is.
        """
        if not value:
            return []
        return [f"{name}={value}"] if value.startswith("-") else [name, value]

    def kept(self, text: str | None) -> str | None:
        """The path of a file that holds a text which is too long for an argument; None for one that is not."""
        return self.keep(text) if text and len(text.encode("utf-8", "replace")) > ARGUMENT_BYTES else None

    def mcp_configs(self) -> list[str]:
        """`--mcp-config`, without the servers of type `sdk`, which live in the frontend itself.

        A vendor reaches those through relays of ours, which are among the private servers.
        """
        return [kept for config in self.invocation.configuration.mcp_config if (kept := _reachable(config))]

    def private_config(self) -> list[str]:
        """The path of a file of ours with the private servers, for a vendor that reads such files."""
        import orjson

        servers = self.servers.private
        path = self.keep(orjson.dumps({"mcpServers": servers}).decode(), ".json") if servers else None
        return [] if path is None else [path]


class Abilities(NamedTuple):
    """What a vendor can do. What it cannot is done for it, or has no effect.

    streams       it can print fragments
    resumes       it can resume a session
    takes_model   its command line names a model; otherwise the one that a frontend asks for is not what answers
    takes_effort  it can be told how hard its model is to try
    limits_tools  its own flags keep tools from it; otherwise a forbidden call stops the turn
    limits_turns  it counts turns itself (`--max-turns`); otherwise the Turn does
    structures    it keeps to `--json-schema` itself; otherwise the prompt asks and the answer is read
    prices        it says what a reply cost, so `--max-budget-usd` can be kept
    retracts      it may say a reply again that was cut
    servers       it takes MCP servers (`--mcp-config`)
    """

    streams: bool = False
    resumes: bool = False
    takes_model: bool = True
    takes_effort: bool = False
    limits_tools: bool = False
    limits_turns: bool = False
    structures: bool = False
    prices: bool = False
    retracts: bool = False
    servers: bool = False


class Enforcement(NamedTuple):
    """How a vendor is kept to rules before a call runs.

    asks        Claude's names of the tools that a request lets it run only after its question was answered
    binds       whether what a request launches it with keeps it to a rule
    told        whether it hears beforehand of a rule about a whole tool, so that such a call does not end its turn
    allows      whether a request launches it so that it runs unasked what a rule allows
    subagents   calls of its subagents are bound, and asked about, like its own
    own         it keeps Claude's rules by itself, so that whatever it asks is asked
    heeds       whether our hook lets it run what a rule allows
    hooked      our hook judges each of its calls
    says_first  it says a call before our hook has judged it
    judged      its own modes let more run than Claude's: in each but the widest its questions are answered here
    plain       a prompt without the words for which it reads files before any call
    """

    asks: "Callable[[Request], frozenset[str]]" = lambda request: frozenset()
    binds: "Callable[[Rule, Request], bool]" = lambda rule, request: False
    told: "Callable[[Rule], bool]" = lambda rule: False
    allows: "Callable[[Rule, Request], bool]" = lambda rule, request: False
    subagents: bool = False
    own: bool = False
    heeds: "Callable[[Rule], bool]" = lambda rule: False
    hooked: bool = False
    says_first: bool = False
    judged: bool = False
    plain: Callable[[str], str] = lambda prompt: prompt


class SessionFacts(NamedTuple):
    """What is peculiar to a vendor's sessions.

    saves_late  a session can only go on once a reply was complete
    given_id    a new session has our id, because the vendor tells its own too late for a turn that is cut
    prefixes    a child that stays is told system prompts before the first message, and nowhere else
    """

    saves_late: bool = False
    given_id: bool = False
    prefixes: bool = False


class ExitRules(NamedTuple):
    """How a vendor's turn is stopped, and how its process ends.

    interrupt    the signal that stops its turn
    grace        the seconds that it gets for that; 0 is as long as any vendor
    clean_exits  exit codes that do not contradict its own "done"
    """

    interrupt: str = "SIGINT"
    grace: float = 0.0
    clean_exits: frozenset[int] = frozenset({0})


class ProgramFacts(NamedTuple):
    """What is peculiar to a vendor's program.

    bundled     the module of ours that is its program
    variants    names of its dialects; `probe` picks one from the program's `--help`
    unreleased  what a person should know of a vendor that no released program is
    install     the command that installs it
    login       how it is asked whether it has a login
    plays       the vendor that it stands for, where it plays recordings
    place       where it is in them, which is its own id of the session then
    two_way     gives the same vendor, driven so that it asks; None where it always is, or has no such way
    models      Claude's name of a model → its own, where the settings say nothing else
    listing     how it is asked for its models
    """

    bundled: str = ""
    variants: tuple[str, ...] = ()
    probe: Callable[[str], str] | None = None
    unreleased: str = ""
    install: str = ""
    login: LoginProbe = LoginProbe()
    plays: str = ""
    place: Callable[[], str] | None = None
    two_way: "Callable[[], Vendor] | None" = None
    models: Mapping[str, str] = MappingProxyType({})
    listing: ModelProbe = ModelProbe()


class Surroundings(NamedTuple):
    """The variables, files and folders that matter to a vendor's program.

    keys          the ANTHROPIC_* variables that it may see
    api_base      the variable in which it reads another address of its model's API
    home          its folder of records: the variable that names it, and where in the person's home it is without
    report        what it writes about its run into a folder of ours
    overruled_by  system → files, and folders with `.toml` files, that go before what we tell it
    widened_by    JSON file in the working directory or at home → its key that gives tools which no rule names
    brings        what of a working directory, or a folder around it, it starts unasked: path → the keys of a JSON file
                  that name programs, none where the path itself is one
    brings_off    a flag that only a version knows which does not start them
    gate          what its stderr says when its trust gate is closed; `trust = true` opens it
    """

    keys: tuple[str, ...] = ()
    api_base: str = ""
    home: tuple[str, str] | None = None
    report: Report | None = None
    overruled_by: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    widened_by: Mapping[str, str] = MappingProxyType({})
    brings: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    brings_off: str = ""
    gate: str = ""


class Vendor(NamedTuple):
    """A vendor.

    programs      names on PATH, the first that exists is started
    translates    who translates its lines: "module:Class", or what gives the class; loaded once its child runs
    modes         Claude's permission mode → the vendor's arguments for it; a mode that is missing is refused
    tools         its tools in Claude's words
    listed        Claude's names of what it can run, where its own stream does not say
    chooses       which tools a request leaves it, where that is more than `listed`
    unattended    it runs its tools and never asks
    passthrough   its stream is Claude's already
    speaks        the `Speech` of a child that stays for the conversation, named as in `translates`; "": a child
                  a turn
    login         how a person logs in with it, said when the vendor is not logged in
    timeouts      how long it may be silent, where that is longer than others (keys of `config.TIMEOUTS`)
    version       how its program is asked for its version, and which ones were tried
    """

    name: str
    programs: tuple[str, ...]
    translates: "str | Callable[[], type[Translator]]"
    launch: Callable[[Request], Launch]
    modes: Mapping[str, tuple[str, ...]]
    tools: Tools = MappingProxyType({})
    listed: tuple[str, ...] = ()
    chooses: Callable[[Request], tuple[str, ...]] | None = None
    unattended: bool = False
    passthrough: bool = False
    speaks: str | Callable[[], Any] = ""
    login: str = ""
    timeouts: Mapping[str, float] = MappingProxyType({})
    version: VersionProbe = VersionProbe()
    abilities: Abilities = Abilities()
    enforcement: Enforcement = Enforcement()
    sessions: SessionFacts = SessionFacts()
    exit: ExitRules = ExitRules()
    program: ProgramFacts = ProgramFacts()
    surroundings: Surroundings = Surroundings()

    @property
    def translator(self) -> "type[Translator]":
        """The class that translates its lines. Its module is imported here and not before: the child starts first."""
        found: type[Translator] = _loaded(self.translates) if isinstance(self.translates, str) else self.translates()
        return found

    def speech(self) -> Any:
        """The `Speech` of one child that stays; only for a vendor that `speaks`."""
        return _loaded(self.speaks)() if isinstance(self.speaks, str) else self.speaks()

    @property
    def shown(self) -> str:
        """The name that a frontend sees: of who speaks, recorded or not."""
        return self.program.plays or self.name

    def available(self, request: Request) -> tuple[str, ...]:
        """Claude's names of the tools that it can run under a request, for `init.tools`."""
        return self.listed if self.chooses is None else self.chooses(request)

    def judged(self, mode: str) -> bool:
        """Whether its calls in a mode have to be judged here, because its own mode lets more run."""
        return self.enforcement.judged and mode not in ("auto", BYPASS)

    def unheeded(self, invocation: Invocation) -> list[str]:
        """What of an invocation has no effect, a line each."""
        said = []
        if invocation.limits.max_budget_usd is not None and not (self.abilities.prices or self.passthrough):
            said.append(f"--max-budget-usd has no effect: {self.name} does not say what a reply costs\n")
        if invocation.model and not self.abilities.takes_model:
            said.append(f"--model has no effect: {self.name} has no flag for it\n")
        if invocation.limits.effort and not (self.abilities.takes_effort or self.passthrough):
            said.append(f"--effort has no effect: {self.name} cannot be told how hard its model is to try\n")
        if invocation.configuration.mcp_config and not (self.abilities.servers or self.program.plays):
            said.append(f"--mcp-config has no effect: {self.name} takes no MCP servers here\n")
        return said

    def wait_for_answers(self) -> None:
        """ModeError for a vendor that never asks, where each call is to wait for its answer (Yume's interactive)."""
        if self.unattended:
            raise ModeError(
                f"{self.name} runs its tools and asks nobody, so it cannot be run in the mode interactive",
                hint="choose the mode default, or a vendor that asks (`shim vendors`)",
            )

    def mode_arguments(self, mode: str) -> tuple[str, ...]:
        """The arguments that honour a permission mode; ModeError when there is no way to (surface page)."""
        if mode in self.modes:
            return self.modes[mode]
        raise ModeError(
            f"{self.name} has no way to honour the permission mode {mode}; it can do: {', '.join(self.modes)}",
            hint="ask for one of these modes, or choose another vendor (`shim vendors` lists what each can do)",
        )

    def own_names(self, names: tuple[str, ...]) -> list[str]:
        """Its own names of the tools that Claude calls `names`."""
        return vendor_names(self.tools, names)


def _loaded(place: str) -> Any:
    """The class that "module:Class" names."""
    from importlib import import_module

    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _reachable(config: str) -> str:
    """A configuration as it came, unless it names such a server; "" when nothing else is in it."""
    import orjson

    try:
        read = orjson.loads(config)
    except orjson.JSONDecodeError:
        return config  # the path of a file
    servers = read.get("mcpServers") if isinstance(read, dict) else None
    if not isinstance(servers, dict):
        return config
    inside = {name for name, server in servers.items() if isinstance(server, dict) and server.get("type") == "sdk"}
    if not inside:
        return config
    kept = {name: server for name, server in servers.items() if name not in inside}
    return orjson.dumps(read | {"mcpServers": kept}).decode() if kept else ""


def as_argument(prompt: str) -> bool:
    """Whether a prompt may be one argument: short, and not to be taken for a flag, a file or a subcommand."""
    return (
        " " in prompt and not prompt.startswith(("-", "@")) and len(prompt.encode("utf-8", "replace")) <= ARGUMENT_BYTES
    )


def as_stdin(prompt: str) -> bytes:
    return prompt.encode("utf-8", "replace")

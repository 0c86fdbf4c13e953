"""A vendor described in TOML: its table, checked and compiled into a `Vendor` like any other.

                                   WHAT A PROFILE HOLDS

    schema = 1
    id = "name"               the name of its file
    extends = "opencode"      a bundled profile whose tables this one changes (lists are replaced)
    unattended = true         it runs its tools and asks nobody
    listed = ["Bash"]         what it can run, in Claude's words; else all that [tools] names
    other_tools = { … }, unknown_tools = "pass"    `tools`
    adapter = "module:Class"  a class for what rules cannot say; see below
    [launch]                  `launch`, and permission_args (mode → words), permission_env (mode → variables),
                              permission_tools (mode → `listed`, where that is less),
                              timeouts = { first_byte, idle, tool } in seconds,
                              interrupt = { signal = "SIGINT", grace = 1.4 } (seconds until it is ended all the same),
                              env_keep (ANTHROPIC_* that it may see), resume_id_pattern, model_map (Claude's
                              name of a model → its own), gate (what stderr says when its trust gate is closed), login,
                              api_base (the variable with another address of its API),
                              version_probe = { args = ["--version"], regex = 'own ([0-9.]+)', tested = ">=1.2,<2" }:
                              how it is asked for its version, where that stands in the answer (the first group, or
                              all), and which versions these rules were tried with. No turn waits for it
                              home = { variable = "X_HOME", folder = ".x" }: its own records, which an adapter may read
    [stream]                  text = final (or delta, cumulative): what a `text` rule gives
                              usage = none (request: they add up, run_total: the last one counts, thread_total: that,
                              less what the session had before; that is kept with it)
                              end = { ok_exit = [0], result = "event" }: "event" needs a `result` rule to have been
                              seen, "synthesize" makes it of a good exit behind a whole reply
                              ids = "process": ids of calls begin anew with each process (else: "session")
                              results = "late": what a call returned may come behind the next text, or never (else:
                              "next"); a whole text waits one event while calls are open
                              stderr_noise = ["…"]: beginnings of lines that never are the reason of a failure
                              saves_late = true: a session can go on only once a reply was complete
                              given_id = true: {session_id} names every new session, because it tells its id too late
    [[event]]                 `rules`, `emits`
    [[report]]                rules of the file `launch.report`, read at the end: session, usage, result, error, notice
    [[stderr]]                regex, emit = "session" (group session_id) or "error" (group error, cause)
    [exit_codes]              code = cause, for an end of which nothing else says why
    [tools]                   `tools`

A profile has no state and no code. `adapter` names a subclass of `ProfileTranslator`: a bundled profile's is a module
of `shim.vendors`, a user's is a file beside the profile itself, `vendors/MODULE.py`, found by its place and never by
a search path, so that no working directory and no package can put another in its stead (threats page). Whoever may
write there may write the profile, which names the program to run, so it adds no power.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from shim.core.api_errors import classify
from shim.core.claude.policy import MODES
from shim.core.reading.account import uncoloured
from shim.core.turn.result import Exit
from shim.core.turn.turn import Turn
from shim.core.vendor.translator import Event, Translator
from shim.core.vendor.vendor import Vendor
from shim.profiles.compile.emits import TEXT_MODES
from shim.profiles.compile.ends import CAUSES
from shim.profiles.compile.engine import USAGES, Engine, Told
from shim.profiles.compile.rules import RULES, Handler, Rule, handlers, rule
from shim.profiles.compile.toml_errors import SEARCHED_CHARACTERS, Source, Spot
from shim.profiles.compile.tools import tools
from shim.profiles.launch import of_modes, overruled_by, template

SCHEMA = 1
KEYS = (
    *("schema", "id", "extends", "unattended", "listed", "other_tools", "unknown_tools", "adapter"),
    *("launch", "stream", "event", "report", "stderr", "exit_codes", "tools", "note"),
)
STREAM_KEYS = ("text", "usage", "end", "ids", "results", "stderr_noise", "saves_late", "given_id")
IDS = ("session", "process")
RESULTS = ("next", "late")
ENDS = ("event", "synthesize")
SIGNALS = ("SIGINT", "SIGTERM")
REPORT_EMITS = ("session", "usage", "result", "notice", "error", "ignore")  # a run is over when its file is read
TIMEOUTS = ("first_byte", "idle", "tool")
GRACE = 10.0  # seconds after an interrupt; a frontend that waits longer has given up
STDERR_RULES = 50
STDERR_LINES = 1000  # of its tail are looked at; a tail has fewer
REASON_CHARACTERS = 2000  # as `ending` has of a stderr
DAY = 86_400.0  # seconds; no silence is longer on purpose
EXIT_CAUSES = (*CAUSES, "interrupted")

StderrRule = Callable[["ProfileTranslator", str], bool]
Table = Mapping[str, Any]
Trace = Callable[[Spot, Rule], Rule]


class ProfileTranslator(Engine):
    """Runs the rules of one profile. An adapter is a subclass with `on_event` or `on_exit` of its own."""

    rules: ClassVar[Mapping[str, Handler]] = {}
    others: ClassVar[Handler]
    reports: ClassVar[Handler | None] = None
    ok_exits: ClassVar[frozenset[int]] = frozenset({0})
    synthesizes: ClassVar[bool] = False
    causes: ClassVar[Mapping[int, str]] = {}
    stderr_rules: ClassVar[tuple[StderrRule, ...]] = ()
    described: ClassVar[Any] = ()  # the rules as they were written, for who asks what they name

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        bound = {kind: types.MethodType(handler, self) for kind, handler in self.rules.items()}
        self._others: Callable[[Event], None] = types.MethodType(type(self).others, self)
        self.handlers = _Handlers(bound, self._others)

    def begin(self, turn: Turn) -> None:
        """Another turn."""
        super().begin(turn)
        self.forget()

    def on_event(self, event: Event) -> bool:
        """An adapter's: whether it has dealt with an event; what it has not falls through to the rules."""
        return False

    def on_exit(self, child_exit: Exit | None, stderr: str) -> None:
        """An adapter's: the child is at its end, before the profile makes an outcome of it; `report` has its file."""

    def eof(self, child_exit: Exit | None, stderr: str) -> None:
        """What stderr and the exit code say, where no event said how it ended."""
        reads = type(self).reports
        if reads is not None and self.report is not None:
            reads(self, self.report)
        self.on_exit(child_exit, stderr)
        if self.held:
            self.say_held(fill=False)
        said = stderr.splitlines()[-STDERR_LINES:]
        reasons = [one for one in said if not one.startswith(self.noise)]
        for line in said:
            for read in self.stderr_rules:
                if read(self, line[:SEARCHED_CHARACTERS]):
                    break
        turn, cut = self.turn, bool(self.parts)
        self.gathered(whole=False)
        self.spend()
        if turn.outcome is not None or child_exit is None or child_exit.signal is not None:
            return
        if turn.terms.gate and turn.terms.gate in stderr:
            return  # the hint that goes with a trust gate says more than an exit code
        code = child_exit.code or 0
        if self.synthesizes and code in self.ok_exits and not cut and self._whole():
            turn.ended()
            return
        reason = uncoloured("\n".join(reasons).strip() or self.notice)[:REASON_CHARACTERS]
        cause = self.causes.get(code)
        if classify(reason).api or cause is None:
            if not "".join(reasons).strip() and self.notice:
                turn.failed(reason)
        elif cause == "interrupted":
            turn.interrupted()
        else:
            text = reason or f"{turn.terms.vendor} exited with code {code}"
            turn.failed(text, api=False, kind=cause)  # type: ignore[arg-type]  # checked when it was compiled

    def _whole(self) -> bool:
        """Whether what was said is a whole answer: the last reply ended, and did not ask for tools."""
        turn = self.turn
        if self.counts_replies:
            return turn.state == "ready" and not turn.asks_tools and (turn.replies > 0 or turn.stop_reason is not None)
        return turn.replies > 0 and not turn.open and not turn.asks_tools


class FeedingTranslator(ProfileTranslator):
    """One whose events have no `type` that decides, or that an adapter sees first."""

    def feed(self, event: Event) -> None:
        """Handle one event: the adapter, then the rules of its type, then those for any."""
        if self.on_event(event):
            return
        kind = event.get("type")
        (self.handlers.get(kind, self._others) if kind.__class__ is str else self._others)(event)


class _Handlers(dict[Any, Callable[[Event], None]]):
    """The handlers by type; an event of another type goes to the rules for any."""

    def __init__(self, table: Mapping[str, Callable[[Event], None]], others: Callable[[Event], None]) -> None:
        super().__init__(table)
        self.others = others

    def __missing__(self, kind: Any) -> Callable[[Event], None]:
        return self.others


def merged(base: Table, own: Table) -> dict[str, Any]:
    """A table over another: tables inside are merged, everything else is replaced."""
    result = dict(base)
    for key, value in own.items():
        before = result.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        result[key] = merged(before, value) if both and before is not None else value
    return result


def build(
    name: str, table: Table, source: Source, adapter: type[Translator] | None = None, trace: Trace | None = None
) -> Vendor:
    """The vendor that a profile describes. FrontendError, with file, line and key, for one that is wrong.

    `adapter` is the class that the profile names, imported by whoever read it. `trace` puts another rule in the place
    of each (`tracing`), which nobody pays for but who asked for it.
    """
    spot = Spot(source, table)
    spot.table(KEYS)
    if spot.at("schema").value.__class__ is not int or spot.at("schema").value != SCHEMA:
        raise spot.at("schema").refused(f"{SCHEMA}", spot.at("schema").value or "not there")
    if spot.at("id").text() != name:
        raise spot.at("id").refused(f"{name!r}, as its file is called")
    listed_tools = tools(spot.at("tools"), spot.at("other_tools"), spot.at("unknown_tools"), name)
    launch, stream = spot.at("launch"), spot.at("stream")
    stream.table(STREAM_KEYS)
    made = template(launch, name, listed_tools)
    late = stream.at("results").choice(RESULTS, RESULTS[0]) == "late"
    text = stream.at("text").choice(TEXT_MODES, "final")
    hides = spot.at("unknown_tools").value == "hide"
    told = Told(listed_tools, text, late, hides, _reconciled(spot.at("event").items(RULES), text))
    rules = [rule(one, told) for one in spot.at("event").items(RULES)]
    if not rules:
        raise spot.refused("a profile with at least one [[event]]", "a profile without")
    if trace is not None:
        rules = [trace(one, made_of) for one, made_of in zip(spot.at("event").items(RULES), rules, strict=True)]
    translator = _translator(spot, rules, told, adapter)
    tools_of = {mode: one.texts() for mode, one in of_modes(launch, "permission_tools").items()}
    says = {one.emit for one in rules}
    listed = spot.at("listed").texts() if spot.at("listed") else tuple(sorted({t.name for t in listed_tools.values()}))
    return Vendor(
        name=name,
        programs=made.programs,
        translates=lambda: translator,
        launch=made.start,
        modes=_modes(launch.at("permission_args")),
        tools=listed_tools,
        listed=listed,
        unattended=spot.at("unattended").switch(),
        limits_tools=not made.uses.isdisjoint(("denied_tools", "allowed_tools")),
        limits_turns="max_turns" in made.uses,
        streams=told.text != "final"
        or any(one.value.get("mode") in _STREAMED for one in spot.at("event").items(RULES)),
        takes_model="model" in made.uses,
        resumes="resume" in made.uses,
        saves_late=stream.at("saves_late").switch(),
        given_id=stream.at("given_id").switch(),
        retracts="retract" in says,
        interrupt=_interrupt(launch.at("interrupt")),
        grace=_grace(launch.at("interrupt").at("grace")),
        variants=made.variants,
        probe=made.probe,
        clean_exits=translator.ok_exits,
        keys=launch.at("env_keep").texts(20),
        gate=launch.at("gate").text(""),
        prices=_prices(table),
        login=launch.at("login").text(""),
        version=made.version,
        report=made.report,
        api_base=launch.at("api_base").text(""),
        home=_home(launch.at("home")),
        overruled_by=overruled_by(launch.at("overruled_by")),
        timeouts=_timeouts(launch.at("timeouts")),
        chooses=(lambda request: tools_of.get(request.permission_mode, listed)) if tools_of else None,
    )


_STREAMED = ("delta", "cumulative")


def _reconciled(rules: list[Spot], text: str) -> frozenset[str]:
    """Of text and thinking those that a profile streams and says whole too, without a name for the block."""
    found: dict[str, set[str]] = {"text": set(), "thinking": set()}
    for one in rules:
        table = one.table()
        if table.get("emit") in ("text", "thinking") and "block" not in table:
            found[table["emit"]].add("final" if table.get("mode", text) == "final" else "streamed")
    return frozenset(kind for kind, modes in found.items() if len(modes) > 1)


def _modes(spot: Spot) -> dict[str, tuple[str, ...]]:
    if not spot:
        return {"default": ()}
    spot.table(MODES)
    return {mode: spot.at(mode).texts(20) for mode in spot.value}


def _interrupt(spot: Spot) -> str:
    spot.table(("signal", "grace"))
    return spot.at("signal").choice(SIGNALS, "SIGINT")


def _grace(spot: Spot) -> float:
    return spot.number(0.1, GRACE) if spot else 0.0


def _timeouts(spot: Spot) -> dict[str, float]:
    spot.table(TIMEOUTS)
    return {f"{key}_timeout": spot.at(key).number(1, DAY) for key in spot.table()}


def _home(spot: Spot) -> tuple[str, str] | None:
    """The variable and the folder of `home`."""
    if not spot:
        return None
    spot.table(("variable", "folder"))
    folder = spot.at("folder").text()
    if not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise spot.at("folder").refused("a folder in the person's home, such as .codex")
    return spot.at("variable").text(""), folder


def _prices(table: Table) -> bool:
    """Whether a rule says what a reply cost."""
    rules = [one for one in table.get("event", ()) if one.get("emit") in ("usage", "result")]
    return any("cost_usd" in one or "cost_usd" in (one.get("usage") or ()) for one in rules)


def _translator(spot: Spot, rules: list[Rule], told: Told, adapter: type[Translator] | None) -> type[ProfileTranslator]:
    """The class of a profile's translator."""
    stream = spot.at("stream")
    end = stream.at("end")
    end.table(("ok_exit", "result"))
    typed, others = handlers(rules)
    codes = end.at("ok_exit").items(20)
    if adapter is None:
        base: type[Translator] = ProfileTranslator if all(one.types for one in rules) else FeedingTranslator
    elif issubclass(adapter, ProfileTranslator):
        base = type(adapter.__name__, (adapter, FeedingTranslator), {"__doc__": adapter.__doc__})
    else:
        raise spot.at("adapter").refused("a subclass of shim.profiles.profile.ProfileTranslator")
    fields: dict[str, Any] = {
        "__doc__": f"The rules of {spot.source.path}.",
        "described": spot.value.get("event"),
        "tools": told.tools,
        "hides": told.hides,
        "rules": typed,
        "others": staticmethod(others),
        "ok_exits": frozenset(int(one.number(0, 255)) for one in codes) or frozenset({0}),
        "synthesizes": end.at("result").choice(ENDS, "event") == "synthesize",
        "causes": {_code(spot.at("exit_codes").at(key)): text for key, text in _causes(spot.at("exit_codes")).items()},
        "stderr_rules": tuple(_stderr(one) for one in spot.at("stderr").items(STDERR_RULES)),
        "noise": stream.at("stderr_noise").texts(50),
        "reports": _reports(spot, told),
        "untyped": any(one.types is None and one.emit != "session" for one in rules),
        "marks_ids": stream.at("ids").choice(IDS, "session") == "process",
        "usage_means": stream.at("usage").choice(USAGES, "none"),
        "counts_replies": any(one.value.get("stop_reason") for one in spot.at("event").items(RULES)),
    }
    made = type(base.__name__, (base,), fields)
    assert issubclass(made, ProfileTranslator)
    return made


def _reports(spot: Spot, told: Told) -> "staticmethod[[Engine, Any], None] | None":
    """What reads the file that the program wrote about its run."""
    rules = [rule(one, told) for one in spot.at("report").items(RULES)]
    if bool(rules) and not spot.at("launch").at("report"):
        raise spot.at("report").refused("in a profile with `launch.report`")
    for place, one in enumerate(rules):
        if one.types is not None:
            raise spot.at("report").at(place).at("match").refused("without `type`: the file has none")
        if one.emit not in REPORT_EMITS:
            raise spot.at("report").at(place).at("emit").refused(f"one of {', '.join(REPORT_EMITS)}")
    return staticmethod(handlers(rules)[1]) if rules else None


def _causes(spot: Spot) -> dict[str, str]:
    return {key: spot.at(key).choice(EXIT_CAUSES) for key in spot.table()}


def _code(spot: Spot) -> int:
    key = str(spot.keys[-1])
    if not (key.isascii() and key.isdigit() and int(key) < 256):
        raise spot.refused("under an exit code from 0 to 255", key)
    return int(key)


def _stderr(spot: Spot) -> StderrRule:
    spot.table(("regex", "emit", "cause", "note"))
    pattern = spot.at("regex").pattern()
    emit = spot.at("emit").choice(("session", "error"))
    group = "session_id" if emit == "session" else "error"
    if emit == "session" and group not in pattern.groupindex:
        raise spot.at("regex").refused("a regular expression with a group (?P<session_id>…)")
    kind: Any = spot.at("cause").choice(CAUSES) if spot.at("cause") else None

    def read(engine: ProfileTranslator, line: str) -> bool:
        found = pattern.search(line)
        if found is None:
            return False
        if emit == "session":
            engine.turn.started(session_id=found[group])
        elif engine.turn.outcome is None and not line.startswith(engine.noise):
            text = found[group] if group in pattern.groupindex else found[0]
            engine.turn.failed(uncoloured(text), kind=kind)
        return True

    return read

"""How a profile's program is started: one template of arguments, filled in for each turn. Never a shell.

                                   HOW A COMMAND LINE IS SAID

    [launch]
    command = ["codex", "exec"]      a program on PATH (a path is for `[vendors.X] bin`), and its first words
    argv = [
      "--json",                                                    a word
      { when = "model", args = ["-m", "{model}"] },                words that are there if this is; `unless`: if not
      { each = "add_dirs", args = ["--add-dir", "{item}"] },       words for each of these
      { when = "permission_args" },                                the words of the permission mode, in this place
      { when = "prompt_argument", args = ["{prompt}"] },           the prompt, where it is an argument
      { when = "prompt_stdin", args = ["-"] },                     where it is not
    ]
    prompt = { via = "arg", dash_guard = "--", long = "stdin" }

via: arg, stdin or file (`{prompt_file}`). dash_guard keeps a prompt from becoming a flag or a subcommand: `stdin` (what
is usual) gives such a prompt on stdin, `--` is put before any, `equals` asks for a word such as `--prompt={prompt}`,
`space` puts a space before a dash, for a prompt that is a flag's value. `long` says where a prompt goes that is too
long for an argument: stdin, file, or refuse. A child whose stdin is not its prompt has none: many wait for its end.
`{bundled}` is the folder of the bundled profiles, for a file that the program reads from there.
What a frontend gives was checked before (`start.checked`); the id of a session is checked here, by its pattern.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shim.errors import FrontendError
from shim.profiles.check import Spot
from shim.tools import Tools, vendor_names
from shim.vendor import ARGUMENT_BYTES, Launch, Request, as_argument, as_stdin
from shim.versions import VersionProbe, conditions

WORDS = 200  # of one template
PROGRAM = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
# Ours, and what decides which code a program runs before its first line: a profile has its command for that.
FORBIDDEN_VARIABLES = r"SHIM_.*|CLAUDE.*|LD_.*|DYLD_.*|PATH|HOME|NODE_OPTIONS|PYTHON(PATH|HOME|STARTUP)"
RESUME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_PLACEHOLDER = r"\{([a-z_]+)\}"
_LISTS = ("add_dirs", "denied_tools", "mcp_configs")
_TEXTS = ("prompt", "prompt_file", "model", "resume", "session_id", "system_prompt", "max_turns", "item")
_BUNDLED = "bundled"
_SWITCHES = ("permission_args", "prompt_argument", "prompt_stdin", "fork", "new_session", "trust", "partial")
_CONDITIONS = (*_SWITCHES, *_TEXTS[1:-1], *_LISTS)
KEYS = (
    *("command", "programs", "argv", "prompt", "permission_args", "permission_env", "permission_tools", "model_map"),
    *("env", "env_keep", "resume_id_pattern", "interrupt", "timeouts", "stdin", "gate", "login", "api_base"),
    "version_probe",
)
VIAS, GUARDS, LONGS = ("arg", "stdin", "file"), ("--", "equals", "space", "stdin"), ("stdin", "file", "refuse")

Filled = Mapping[str, Any]
Part = Callable[[Filled], list[str]]


class Template(NamedTuple):
    """A checked `[launch]`; `start` is a vendor's `launch`, the rest are facts for the vendor."""

    programs: tuple[str, ...]
    start: Callable[[Request], Launch]
    uses: frozenset[str]
    version: VersionProbe


class _Prompt(NamedTuple):
    via: str
    guard: str
    long: str


def template(spot: Spot, name: str, tools: Tools) -> Template:
    """`[launch]`, compiled."""
    spot.table(KEYS)
    command = spot.at("command").texts(20)
    programs = (*command[:1], *spot.at("programs").texts(10))
    if not programs:
        raise spot.refused("a table with `command`", "a table without `command`")
    for place, program in enumerate(programs):
        if not re.fullmatch(PROGRAM, program):
            where = spot.at("command").at(0) if place == 0 else spot.at("programs").at(place - 1)
            raise where.refused("the name of a program on PATH; `[vendors.NAME] bin` in config.toml may be a path")
    prompt = _prompt(spot.at("prompt"))
    uses: set[str] = set()
    argv = spot.at("argv")
    parts = [_part(one, uses, prompt) for one in argv.items(WORDS)]
    for one in (word for word in ("prompt", "prompt_file") if (word == "prompt") is (prompt.via == "arg")):
        if prompt.via != "stdin" and one not in uses:
            raise argv.refused(f"a list with {{{one}}} in it, because prompt.via is {prompt.via}", "a list without")
    models = {key: spot.at("model_map").at(key).text() for key in spot.at("model_map").table()}
    environment = _environment(spot.at("env"))
    by_mode = {mode: environment | _environment(own) for mode, own in of_modes(spot, "permission_env").items()}
    pattern = spot.at("resume_id_pattern").pattern() if spot.at("resume_id_pattern") else re.compile(RESUME_PATTERN)
    prepends = "system_prompt" not in uses
    first = command[1:]

    def start(request: Request) -> Launch:
        invocation = request.invocation
        resume = request.resumed
        if resume and not pattern.fullmatch(resume):
            raise FrontendError(f"{resume[:60]!r} is no session id of {name}", hint="start a new session")
        if resume and "resume" not in uses:
            raise FrontendError(f"{name} cannot go on with a session", hint="start a new one")
        if resume and invocation.fork_session and "fork" not in uses:
            raise FrontendError(f"{name} cannot fork a session", hint="resume it without --fork-session")
        if resume and resume.startswith("-"):
            raise FrontendError(
                f"the session id {resume[:60]!r} of {name} begins with a dash", hint="start a new session"
            )
        system = "\n\n".join(filter(None, (invocation.system_prompt, invocation.append_system_prompt)))
        text = request.with_system_prompt() if prepends else request.prompt
        inline, path = _place(prompt, request, text, name)
        filled: dict[str, Any] = {
            "permission_args": request.mode,
            "prompt": f" {text}" if prompt.guard == "space" and text.startswith(("-", "@")) else text,
            "prompt_file": path,
            "prompt_argument": inline,
            "prompt_stdin": not inline and path is None,
            "model": models.get(invocation.model or "", invocation.model),
            "resume": resume,
            "fork": bool(resume and invocation.fork_session),
            "session_id": None if resume else invocation.session_id,
            "new_session": not resume,
            "system_prompt": system,
            "max_turns": None if invocation.max_turns is None else str(invocation.max_turns),
            "add_dirs": invocation.add_dirs,
            "mcp_configs": request.mcp_configs() if "mcp_configs" in uses else (),
            "denied_tools": vendor_names(tools, request.removed) if "denied_tools" in uses else (),
            "trust": request.trust,
            "partial": invocation.partial,
            _BUNDLED: import_module("shim.vendors").__path__[0] if _BUNDLED in uses else "",
        }
        words = [word for part in parts for word in part(filled)]
        stdin = b"" if inline or path is not None else as_stdin(text)
        return Launch((*first, *words), stdin, by_mode.get(request.permission_mode, environment))

    return Template(programs, start, frozenset(uses), _version(spot.at("version_probe")))


def _version(spot: Spot) -> VersionProbe:
    """`version_probe`; what it leaves out is as usual."""
    spot.table(("args", "regex", "tested"))
    usual = VersionProbe()
    if spot.at("regex"):
        spot.at("regex").pattern()
    tested = spot.at("tested").text("")
    try:
        conditions(tested)
    except ValueError as error:
        raise spot.at("tested").refused(
            'conditions with commas between them, such as ">=0.169,<0.170"', str(error) or tested
        ) from None
    return VersionProbe(spot.at("args").texts(10) or usual.args, spot.at("regex").text(usual.regex), tested)


def of_modes(launch: Spot, key: str) -> dict[str, Spot]:
    """What a table of `[launch]` says for each permission mode: of those that the profile honours."""
    spot = launch.at(key)
    modes = launch.at("permission_args").table()
    return {mode: spot.at(mode) for mode in spot.table(tuple(modes) or ("default",))}


def _prompt(spot: Spot) -> _Prompt:
    spot.table(("via", "dash_guard", "long"))
    via = spot.at("via").choice(VIAS, "stdin")
    return _Prompt(via, spot.at("dash_guard").choice(GUARDS, "stdin"), spot.at("long").choice(LONGS, "stdin"))


def _place(prompt: _Prompt, request: Request, text: str, name: str) -> tuple[bool, str | None]:
    """Whether the prompt is an argument, and the file that it is in; neither: it is stdin."""
    if prompt.via == "stdin":
        return False, None
    long = len(text.encode("utf-8", "replace")) > ARGUMENT_BYTES
    if prompt.via == "arg":
        guarded = prompt.guard != "stdin" or as_argument(text)
        if request.inline and guarded and not long and text:
            return True, None
        if not long or prompt.long == "stdin":
            return False, None
    if prompt.via == "file" or prompt.long == "file":
        if path := request.keep(text):
            return False, path
        raise FrontendError(f"the prompt for {name} could not be written to a file")
    raise FrontendError(
        f"the prompt is longer than {ARGUMENT_BYTES} bytes, and {name} takes it as an argument only",
        hint="put the long part into a file and name that in the prompt",
    )


def _part(spot: Spot, uses: set[str], prompt: _Prompt) -> Part:
    if isinstance(spot.value, str):
        return _words([_word(spot, uses, prompt)])
    spot.table(("when", "unless", "each", "args"))
    if sum(1 for key in ("when", "unless", "each") if spot.at(key)) != 1:
        raise spot.refused("a string, or a table with one of when, unless, each")
    if spot.at("each"):
        key = spot.at("each").choice(_LISTS)
        uses.add(key)
        words = _words([_word(one, uses, prompt, "item") for one in spot.at("args").items(WORDS)])
        return lambda filled: [word for item in filled[key] for word in words({**filled, "item": item})]
    wanted = bool(spot.at("when"))
    key = spot.at("when" if wanted else "unless").choice(_CONDITIONS)
    uses.add(key)
    if key == "permission_args" and wanted and not spot.at("args"):
        return lambda filled: list(filled["permission_args"])
    words = _words([_word(one, uses, prompt, key if key in _LISTS else "") for one in spot.at("args").items(WORDS)])
    return lambda filled: words(filled) if bool(filled[key]) is wanted else []


def _words(parts: list[Part]) -> Part:
    return lambda filled: [word for part in parts for word in part(filled)]


def _word(spot: Spot, uses: set[str], prompt: _Prompt, own: str = "") -> Part:
    """One word: literal, or with placeholders; one that has nothing to be filled with is left out."""
    text = spot.value if spot.value == "" else spot.text()
    names = re.findall(_PLACEHOLDER, text) if "{" in text else []
    known = [name for name in _TEXTS if name != "item"] + [_BUNDLED] + ([own] if own else [])
    for name in names:
        if name not in known:
            raise spot.refused(f"a word with placeholders out of {', '.join('{' + one + '}' for one in known)}")
    uses.update(names)
    if not names:
        return lambda filled: [text]
    of_prompt = "prompt" in names
    if of_prompt and prompt.via != "arg":
        raise spot.refused(f"a word without {{prompt}}, because prompt.via is {prompt.via}")
    if of_prompt and prompt.guard == "equals" and not re.match(r"-[^{]*=\{prompt\}", text):
        raise spot.refused('a word such as "--prompt={prompt}", because prompt.dash_guard is equals')
    guard = ["--"] if of_prompt and prompt.guard == "--" else []

    def word(filled: Filled) -> list[str]:
        if of_prompt and not filled["prompt_argument"]:
            return []
        values = {name: _text(filled[name]) for name in names if filled.get(name)}
        if len(values) < len(set(names)):
            return []
        return [*guard, re.sub(_PLACEHOLDER, lambda found: values[found[1]], text)]

    return word


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(map(str, value))


def _environment(spot: Spot) -> dict[str, str]:
    found = {}
    for key in spot.table():
        if not re.fullmatch(VARIABLE, key) or re.fullmatch(FORBIDDEN_VARIABLES, key):
            raise spot.at(key).refused("a variable of the program's own", key)
        value = spot.at(key).value
        if not isinstance(value, str) or "\0" in value:
            raise spot.at(key).refused("a string")
        found[key] = value
    return found

"""A first profile out of captured output: what `shim vendor draft` writes. Pure: events in, TOML out.

Shapes are recognised by what many CLIs have in common (`draft_words`) and by what the output itself shows: that a call
and a result have an id in common, that some texts are the pieces of another, that one event is the last of each run.
It reads what was printed only, so that it knows nothing of what was not, and says so in comments.
"""

from typing import Any

from shim.commands.vendor.draft_calls import Calls, CallSite, find_calls
from shim.commands.vendor.draft_ends import End, Numbers, find_complaints, find_end, find_session, find_usage
from shim.commands.vendor.draft_results import Results, contents, failures, find_results
from shim.commands.vendor.draft_seen import Kind, Seen, words
from shim.commands.vendor.draft_texts import DELTA, FINAL, Spoken, find_texts
from shim.commands.vendor.draft_write import (
    Rule,
    alternatives,
    exists,
    failure,
    fields_of,
    listed,
    literal,
    quoted,
    single,
    tool_entries,
    within,
)
from shim.commands.vendor.tracing import Path

ALTERNATIVES = 6  # places of what calls returned in one rule; with more each has a rule of its own
RULES = 150  # a profile may have 200


def draft(seen: Seen, name: str) -> str:
    """The text of a profile called `name`, from all that was seen."""
    seen.close()
    calls = find_calls(seen)
    results = find_results(seen, calls)
    taken = {kind for kinds in (*calls.sites.values(), *results.sites.values()) for kind in kinds}
    texts = find_texts(seen, taken)
    taken |= {kind for one in texts.spoken for kind in one.kinds}
    end = find_end(seen, taken)
    taken |= set(end.kinds) if end is not None else set()
    usage = find_usage(seen, end)
    rules = [*_session(seen), *map(_spoken, texts.spoken), *_calls(calls), *_results(results, calls)]
    if usage is not None:
        rules.append(_usage(*usage))
        taken |= usage[0]
    for one in find_complaints(seen, taken, end):
        rule = Rule(one.kinds, "notice" if one.harmless else "error")
        rule.add("text" if one.harmless else "error", quoted(single(one.text)))
        rule.notes.append("Runs went on well after it." if one.harmless else "TODO: does this end a run?")
        rules.append(rule)
        taken |= one.kinds
    if end is not None:
        rules.append(_end(end))
    rules = rules[:RULES]
    known = {kind: "has no more than its session" for rule in rules if rule.emit == "session" for kind in rule.kinds}
    rules += _ignored(seen, taken, known | dict(texts.repeated))
    if not rules:
        rules.append(_example())
    counts = "run_total" if end is not None and end.usage is not None else "request" if usage is not None else "none"
    mode = texts.spoken[0].mode if texts.spoken else FINAL
    arguments: dict[str, set[str]] = {}
    for call in calls.calls:
        arguments.setdefault(call.name, set()).update(map(str, call.given))
    parts = [
        _head(seen, name, bool(texts.spoken), calls, results),
        _stream(mode, counts, end),
        *_written(rules, list(seen.kinds())),
        "\n".join(tool_entries(arguments)) + "\n",
    ]
    return "\n".join(parts)


def _head(seen: Seen, name: str, speaks: bool, calls: Calls, results: Results) -> str:
    lines = [
        f"# {name}: drafted from {seen.runs} runs, {len(seen.events)} events. Finish the lines that say TODO, then",
        f"# `shim vendor check {name}.toml FILE…` until it has nothing to fix.",
        "schema = 1",
        f"id = {quoted(name)}",
        "# TODO: delete this line if it asks before it runs a tool.",
        "unattended = true",
        "",
        "[launch]",
        "# TODO: the program on PATH, with the flags that make it print lines of JSON.",
        f"command = [{quoted(name)}]",
        '# TODO: its own flags, such as { when = "model", args = ["--model", "{model}"] } and',
        '# { when = "resume", args = ["--resume", "{resume}"] }.',
        'argv = [{ when = "permission_args" }, "{prompt}"]',
        "# TODO: how it takes a prompt that begins with a dash, or is long: `stdin` if it reads one there.",
        'prompt = { via = "arg", dash_guard = "space", long = "refuse" }',
        "",
        "[launch.permission_args]",
        "default = []",
        '# TODO: bypassPermissions = ["--its-own-flag"], acceptEdits, plan: only where it has them.',
    ]
    if not speaks:
        lines.insert(2, "# TODO: no text of the model was recognised. Capture a run that answers something.")
    if not calls.sites:
        lines.insert(2, "# TODO: no call of a tool was recognised. Capture a run that reads a file and runs a command.")
    elif results.unpaired:
        said = f"# {results.unpaired} of {len(calls.calls)} calls have no result in these files."
        lines.insert(2, said)
    if seen.odd:
        lines.insert(2, f"# {seen.odd} lines were no JSON objects: is there a flag that keeps them away?")
    return "\n".join(lines) + "\n"


def _stream(mode: str, counts: str, end: End | None) -> str:
    lines = ["[stream]"]
    if mode != FINAL:
        lines.append(f"text = {quoted(mode)}")
    if counts != "none":
        lines += ["# TODO: request adds up, run_total counts the last, thread_total that less what came before."]
        lines.append(f"usage = {quoted(counts)}")
    if end is None:
        lines += ["# TODO: no event was recognised that ends a run, so a good exit does."]
        lines.append('end = { ok_exit = [0], result = "synthesize" }')
    return "\n".join(lines) + "\n"


def _example() -> Rule:
    """A rule for a person to begin with, where nothing was recognised: a profile has at least one."""
    rule = Rule((), "text")
    rule.more = {"type": quoted("text")}
    rule.add("text", quoted("text"))
    rule.notes.append("TODO: nothing was recognised. The first rule, to begin with.")
    return rule


def _session(seen: Seen) -> list[Rule]:
    found = find_session(seen)
    if found is None:
        return []
    rule = Rule(found.kinds or (), "session")
    if found.kinds is None:
        rule.more = dict([exists(found.path)])
    rule.add("session_id", quoted(single(found.path)))
    if found.model is not None and found.kinds is not None:
        rule.add("model", quoted(single(found.model)))
    return [rule]


def _spoken(one: Spoken) -> Rule:
    site = one.site
    rule = Rule(one.kinds, one.sort, site.item, site.condition)
    if site.odd:
        key, _ = exists(site.path)
        rule.more = {key: '{ kind = "string" }'} if not site.item else {}
    rule.add("text", quoted(within(site.path, site.item)))
    if one.mode != FINAL and one.sort == "thinking":
        rule.add("mode", quoted(one.mode))
    if one.mode == DELTA:
        rule.notes.append("Pieces, which are put together.")
    return rule


def _calls(calls: Calls) -> list[Rule]:
    rules = []
    for site, kinds in calls.sites.items():
        rule = Rule(kinds, "tool_use", site.item, site.condition)
        rule.add("id", quoted(within(site.identity, site.item)))
        if site.name is not None:
            rule.add("name", quoted(within(site.name, site.item)))
        else:
            rule.add("name", f"{{ const = {quoted(site.called)} }}")
            if not site.fields:
                rule.more = dict([exists(site.given)])
        rule.add("input", _given(site))
        rules.append(rule)
    return rules


def _given(site: CallSite) -> str:
    if site.fields:
        return fields_of(site.given, site.fields)
    path = quoted(within(site.given, site.item))
    return f'{{ path = {path}, parse = "json" }}' if site.parse else path


def _results(results: Results, calls: Calls) -> list[Rule]:
    rules = []
    for site, kinds in results.sites.items():
        tables = results.tables[site]
        base: Path = site.identity[:-1]
        places = [(*base, *path) for path in contents(tables)]
        signs = [((*base, *path), how, values) for path, how, values in failures(tables)]
        groups: list[tuple[list[Path], dict[str, str]]] = [(places, {})]
        if len(places) > ALTERNATIVES and not site.item:
            by_key: dict[Path, list[Path]] = {}
            for place in places:
                by_key.setdefault(place[: len(base) + 2], []).append(place)
            groups = [(own, dict([exists(key)])) for key, own in by_key.items()]
        for own, more in groups:
            rule = Rule(kinds, "tool_result", site.item, site.condition)
            rule.more = dict(more)
            if site.state is not None:
                key, _ = exists((*base, *site.state[0]))
                rule.more[key] = listed(site.state[1])
            rule.add("id", quoted(within(site.identity, site.item)))
            if own:
                rule.add("content", quoted(alternatives(own, site.item)))
            if signs:
                rule.add("is_error", failure(signs[:ALTERNATIVES], site.item))
            else:
                rule.notes.append("TODO: is_error, once it is known how a call that failed looks.")
            rules.append(rule)
    return rules


def _counted(numbers: Numbers) -> dict[str, str]:
    return {ours: quoted(single(path)) for ours, path in numbers.counts.items()}


def _usage(kinds: frozenset[Kind], numbers: Numbers) -> Rule:
    rule = Rule(kinds, "usage")
    if numbers.cost is not None:
        rule.add("cost_usd", quoted(single(numbers.cost)))
    rule.notes.append("TODO: what was read from a cache is not input: { minus = [all, cached] } if it is in there.")
    rule.tables.append(("usage", _counted(numbers)))
    return rule


def _end(end: End) -> Rule:
    rule = Rule(end.kinds, "result")
    if end.failed:
        rule.add("is_error", failure(end.failed, ()))
    if end.errors or end.text:
        places = [*end.errors, *([end.text] if end.text else [])]
        rule.add("error", quoted(alternatives(places, ())))
    if end.text:
        rule.add("text", quoted(single(end.text)))
    if end.duration:
        rule.add("duration_ms", quoted(single(end.duration)))
    if end.usage is not None:
        if end.usage.cost is not None:
            rule.add("cost_usd", quoted(single(end.usage.cost)))
        rule.notes.append("TODO: what was read from a cache is not input: { minus = [all, cached] } if it is in there.")
        rule.tables.append(("usage", _counted(end.usage)))
    return rule


def _ignored(seen: Seen, taken: set[Kind], repeated: dict[Kind, str] | Any) -> list[Rule]:
    """The kinds that no rule takes: by their type, or as they are where they have none."""
    types: dict[str, str] = {}
    rules = []
    for kind in seen.kinds():
        if kind in taken or not kind:
            continue
        known = dict(kind).get(("type",))
        if known is None:
            rule = Rule([kind], "ignore")
            rule.notes.append(f"TODO: nothing is made of {', '.join(words(kind))}.")
            rules.append(rule)
        else:
            types.setdefault(known, repeated.get(kind, ""))
    if types:
        rule = Rule((), "ignore")
        again = [kind for kind, why in types.items() if why]
        others = [kind for kind, why in types.items() if not why]
        if again:
            rule.notes.append(f"Of these nothing more is needed: {', '.join(again)}")
        if others:
            rule.notes.append(f"TODO: nothing is made of these: {', '.join(others)}")
        rule.more = {"type": literal(next(iter(types))) if len(types) == 1 else listed(types)}
        rules.append(rule)
    return rules


def _written(rules: list[Rule], every: list[Kind]) -> list[str]:
    said = []
    for place, rule in enumerate(rules):
        later = rules[place + 1 :]
        shared = rule.emit == "session" or any(rule.kinds & other.kinds for other in later)
        said.append(rule.text(every, goes_on=shared and rule.emit != "ignore"))
    return said

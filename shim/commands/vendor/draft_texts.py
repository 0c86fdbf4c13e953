"""Texts in captured output: which are the model's, which its thoughts, and which only say one of them again."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from shim.commands.vendor.draft_seen import Kind, Seen, item_condition, nodes, words
from shim.commands.vendor.draft_words import ENDS, ERRORS, FRAGMENTS, TEXT_KEYS, THINKING, TOOLS, USERS, has, plain
from shim.commands.vendor.tracing import ITEM, Path

SPEAKING = ("text", "message", "assistant", "content", "say", "answer", "chatcompletion")
SITES = 10  # of one sort that a draft writes
FINAL, CUMULATIVE, DELTA = "final", "cumulative", "delta"


class TextSite(NamedTuple):
    """Where texts stand; `odd`: sometimes something else than a text stands there."""

    path: Path
    item: Path
    condition: tuple[str, str] | None
    odd: bool = False


class Spoken(NamedTuple):
    """A site that is taken: text or thinking, whether its texts are whole, and the kinds of event that have it."""

    site: TextSite
    sort: str
    mode: str
    kinds: frozenset[Kind]


class Texts(NamedTuple):
    """The sites to be said; the kinds that only repeat them; those that end a run and say the last text again."""

    spoken: tuple[Spoken, ...]
    repeated: Mapping[Kind, str]


Strings = dict[int, list[str]]  # run → what stood at a site, in order


def find_texts(seen: Seen, taken: Iterable[Kind]) -> Texts:
    """The texts of the model and its thoughts; `taken` are the kinds of calls and results."""
    calls = set(taken)
    found: dict[tuple[Kind, TextSite], Strings] = {}
    odd: set[tuple[Kind, Path]] = set()
    first: dict[tuple[Kind, TextSite], int] = {}
    for event in seen.events:
        for node in nodes(event):
            key_name = node.key if node.path[-1] != ITEM else plain(node.path[-2])
            if key_name not in TEXT_KEYS or node.path.count(ITEM) > 1:
                continue
            if not isinstance(node.value, str):
                odd.add((event.kind, node.path))
                continue
            tools = _is_message(event.kind) is False or has(TOOLS, *words(event.kind))
            if event.kind in calls and not node.item[0] and tools:
                continue
            item = node.path if node.path[-1] == ITEM else node.item[0]
            site = TextSite(node.path, item, item_condition(node.item) if node.item[0] else None)
            key = event.kind, site
            first.setdefault(key, event.place)
            if node.value:
                found.setdefault(key, {}).setdefault(event.run, []).append(node.value)
    spoken: list[Spoken] = []
    repeated: dict[Kind, str] = {}
    for sort in ("text", "thinking"):
        sites = {key: strings for key, strings in found.items() if sort_of(*key) == sort}
        if sort == "text" and any(speaks(kind) for kind, _ in sites):
            sites = {key: strings for key, strings in sites.items() if speaks(key[0])}
        _choose(sites, first, odd, sort, spoken, repeated)
    return Texts(tuple(spoken), repeated)


def _is_message(kind: Kind) -> bool | None:
    """Whether a kind says that a model speaks (`role`); None where it does not say who does."""
    roles = [value for path, value in kind if plain(path[-1]) == "role"]
    return any(has(("assistant", "model", "agent"), role) for role in roles) if roles else None


def sort_of(kind: Kind, site: TextSite) -> str:
    """text, thinking, or "" for what is neither: words of the user, of tools, of errors, of the end."""
    conditions = [*words(kind), *((site.condition[1],) if site.condition else ())]
    roles = [value for path, value in kind if plain(path[-1]) == "role"]
    keys = site.path[len(site.item) :]
    if any(has(USERS, one) or has(TOOLS, one) for one in roles) or any(
        has(USERS, value) and not value.startswith("assistant") for _, value in kind if not roles
    ):
        return ""
    if has(THINKING, *conditions, *keys):
        return "thinking"
    if has(TOOLS, *conditions) or has(ERRORS, *conditions):
        return ""
    if any(plain(key) in ("error", "usage", "metadata", "display", "args", "input", "arguments") for key in site.path):
        return ""
    kinds = [value for path, value in kind if len(path) <= 2 and plain(path[-1]) != "role"]
    if _is_message(kind) is False or has(("control",), *kinds) or (not speaks(kind) and has(ENDS, *kinds)):
        return ""
    if has(("messages", "history", "toolresults"), *site.path[:1]):
        return ""
    return "text"


def speaks(kind: Kind) -> bool:
    """Whether a kind says by its words that a model speaks."""
    kinds = [value for path, value in kind if plain(path[-1]) != "role"]
    return bool(_is_message(kind)) or has(SPEAKING, *kinds)


def _choose(
    sites: Mapping[tuple[Kind, TextSite], Strings],
    first: Mapping[tuple[Kind, TextSite], int],
    odd: set[tuple[Kind, Path]],
    sort: str,
    spoken: list[Spoken],
    repeated: dict[Kind, str],
) -> None:
    """Take the sites that say something which none before says; whole texts go first, then what many runs have."""
    wholes: dict[int, set[str]] = {}
    for strings in sites.values():
        for run, each in strings.items():
            wholes.setdefault(run, set()).update(each)
    modes = {key: _mode(key[0], key[1], strings, wholes) for key, strings in sites.items()}
    rank = {FINAL: 0, DELTA: 1, CUMULATIVE: 2}
    ordered = sorted(sites, key=lambda key: (rank[modes[key]], -len(sites[key]), first[key]))
    covered: dict[int, str] = {}
    chosen: dict[tuple[TextSite, str], set[Kind]] = {}
    for key in ordered:
        kind, site = key
        said = {run: _joined(texts, modes[key]) for run, texts in sites[key].items()}
        again = [run for run, texts in said.items() if all(text in covered.get(run, "") for text in texts)]
        new = [run for run in said if run not in again]
        other = bool(chosen) and modes[key] not in {mode for _, mode in chosen}
        if (again and len(again) * 10 >= len(said)) or not new or other or len(chosen) >= SITES:
            repeated.setdefault(kind, f"says again what is said as {sort} elsewhere")
            continue
        for run, whole in said.items():
            covered[run] = covered.get(run, "") + "\0" + "".join(whole) + "\0" + "\0".join(whole)
        uneven = (kind, site.path) in odd
        chosen.setdefault((site._replace(odd=uneven), modes[key]), set()).add(kind)
    spoken += [Spoken(site, sort, mode, frozenset(kinds)) for (site, mode), kinds in chosen.items()]


def _joined(texts: list[str], mode: str) -> list[str]:
    if mode == DELTA:
        return ["".join(texts)]
    return _streaks(texts) if mode == CUMULATIVE else texts


def _streaks(texts: list[str]) -> list[str]:
    """The last text of each that grew."""
    ends = [one for one, after in pairwise(texts) if not after.startswith(one)]
    return [*ends, texts[-1]]


def _mode(kind: Kind, site: TextSite, strings: Strings, wholes: Mapping[int, set[str]]) -> str:
    """Whether the texts at a site are whole, pieces of one, or each the one before and more."""
    hinted = has(FRAGMENTS, *words(kind), *site.path) or (
        site.condition is not None and has(FRAGMENTS, site.condition[1])
    )
    grown = pairs = pieces = several = 0
    for run, texts in strings.items():
        for one, after in pairwise(texts):
            pairs += 1
            grown += len(after) > len(one) and after.startswith(one)
        others = wholes[run] - set(texts)
        several += len(texts) > 1
        pieces += len(texts) > 1 and (_flows(texts) or any(_made_of(whole, texts) for whole in others))
    if site.item and not hinted:
        return FINAL  # a block of a message
    if pairs and grown * 2 >= pairs:
        return CUMULATIVE
    return DELTA if hinted or pieces * 2 > several else FINAL


def _made_of(whole: str, texts: list[str]) -> bool:
    """Whether at least two texts in a row are the whole one."""
    for start in range(len(texts)):
        size, end = 0, start
        while end < len(texts) and size < len(whole) and whole.startswith(texts[end], size):
            size, end = size + len(texts[end]), end + 1
        if size == len(whole) and end - start > 1:
            return True
    return False


def _flows(texts: list[str]) -> bool:
    """Whether texts read as pieces of one: most begin with a space or in small letters, or end without a stop."""
    if len(texts) < 3:
        return False
    inner = sum(text[:1].isspace() or text[:1].islower() for text in texts[1:])
    return inner * 2 > len(texts)

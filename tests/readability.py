"""Measure the names of a tree of Python code: `python tests/readability.py` prints them.

The measures find places that need a reader. They do not make a name good.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 100


def parse_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that may begin the name of a function. A verb that is not listed may be added.
VERBS = parse_names(
    """
    accept accepts acquire add advance allow allows analyze announce answer append apply as
    ask assert assign attach authenticate authorize await become begin bind blank buffer build
    cache call can cancel capture change check choose classify clean clear close collect
    combine compare compile complete compute conclude configure confirm connect continue
    convert copy count create cut decide decode decrypt defer delete deliver deny derive
    describe detach detect dial diff disable discard dispatch display distribute drain draw drop
    dump echo emit enable encode encrypt end ensure enter escalate escape evaluate exchange
    execute exists exit expand expect expire explain export extend extract fail feed fetch
    fill filter finalize find finish fit flatten flush follow forbid force fork format forward
    freeze gather generate get grant group guess handle has hash hide hold ignore import include
    infer init initialize insert inspect install interrupt invite is iterate join keep kill leave lift
    limit link list load log make map mark match matches measure merge mirror move needs
    negotiate normalize note notify observe offers on open pack pad parse pass patch pause peek
    perform pick plan play pluralize poll pop populate post prefer preload prepare prepend
    press print probe prompt protect publish push put queue quote raise rank read reap receive
    recognize reconnect record redact refresh refuse register reject release reload remember remove rename
    renew render reopen repair repeat replace replay reply report request require resend reserve
    reset reshape resolve respawn respond restart restore restrict resume retract retry return revoke roll
    reuse rewrite rotate route run sanitize save scale scan schedule seal search seek select send
    serialize serve set setup shift shorten should show shrink shut shutdown sign signal
    simplify skip sleep sort spawn spill split start stat stay stop store stream strip submit
    subtract suggest sum summarize switch tail take tear terminate test to toggle touch trace track
    transform translate trim truncate try undo unescape uninstall unpack unregister unseal unsubscribe
    unwrap update upgrade use uses validate verify visit wait wake walk warn watch welcome with
    withdraw wrap write yield
    """
)
# Words without information, alone or as a part of a name.
EMPTY_WORDS = parse_names(
    """
    again anew asked began begun behind found given gone heard held it kept known one own
    place said seen shown spoken spot told tried wanted whole words
    """
)
# Words of the project's former dialect. The glossary of the field has another word for each.
BANNED_WORDS = parse_names(
    """
    account audience ceiling doing driven facts fault forget identity judge lane obedience
    outdated patience pen room seam seat settled speech standing steered strays tally terms
    unheard unheeded unhonoured unkept verdict ways
    """
)
DIALECT_VOCABULARY = EMPTY_WORDS | BANNED_WORDS
# Words that end like a participle and are nouns or plain verbs.
NO_PARTICIPLES = parse_names(
    """
    binding bring building during embed encoding evening heading indeed listing logging mapping
    meaning missing padding pending proceed remaining routing setting settings speed spelling
    string succeed thing thinking timing warning
    """
)
PARTICIPLES = parse_names(
    """
    begun chosen driven gone held kept known left made met seen sent shown spoken taken told
    """
)


class Measures(NamedTuple):
    single_word_percent: float  # of function names
    verb_first_percent: float  # of function names
    lone_participle_percent: float  # of function names
    empty_words: float  # variables, parameters and attributes per 1,000 statements
    ambiguous_types: int  # names of classes that stand for several classes
    long_lines_percent: float  # of all lines
    properties_per_100: float  # per 100 functions
    dialect_names: int  # names with an empty or banned word as a part


def split_name(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in spaced.lower().split("_") if word]


def is_participle(word: str) -> bool:
    if word in PARTICIPLES:
        return True
    return word.endswith(("ed", "ing")) and len(word) > 4 and word not in NO_PARTICIPLES


# The nodes that may bind a name, and the nodes that define one. Most nodes are neither.
BINDING_TYPES = (
    ast.Name, ast.Attribute, ast.arg, ast.alias, ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
DEFINITION_TYPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def list_bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node binds: a variable, a parameter, an attribute, or the name after
    `as`.
    """
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias) and node.asname:
        return [node.asname]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return [node.name]
    return []


def has_dialect_word(name: str) -> bool:
    """Return whether a word of the former dialect is a part of a name."""
    return not DIALECT_VOCABULARY.isdisjoint(split_name(name))


def list_dialect_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names with an empty or banned word as a part."""
    for node in nodes:
        names = []
        if isinstance(node, BINDING_TYPES):
            names = list_bound_names(node)
        elif isinstance(node, DEFINITION_TYPES):
            names = [node.name]
        yield from filter(has_dialect_word, names)


def measure(folder: Path) -> Measures:
    """Measure all modules below a folder."""
    counts: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        counts["lines"] += len(lines)
        counts["long"] += sum(len(line) > MAX_COLUMNS for line in lines)
        nodes = list(ast.walk(ast.parse(text)))
        counts["dialect"] += len(list(list_dialect_names(nodes)))
        for node in nodes:
            counts["statements"] += isinstance(node, ast.stmt)
            if isinstance(node, BINDING_TYPES):
                names = list_bound_names(node)
                counts["empty"] += sum(name.strip("_") in EMPTY_WORDS for name in names)
            if isinstance(node, ast.ClassDef):
                types[node.name.strip("_")] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                counts.update(_classify_function(node))
    functions = counts["functions"]
    return Measures(
        single_word_percent=100 * counts["single"] / functions,
        verb_first_percent=100 * counts["verb"] / functions,
        lone_participle_percent=100 * counts["participle"] / functions,
        empty_words=1000 * counts["empty"] / counts["statements"],
        ambiguous_types=sum(number > 1 for number in types.values()),
        long_lines_percent=100 * counts["long"] / counts["lines"],
        properties_per_100=100 * counts["properties"] / functions,
        dialect_names=counts["dialect"],
    )


def _classify_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the counts that a function adds to. Special methods and properties have no verb."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any("property" in decorator or ".setter" in decorator for decorator in decorators):
        return ["properties"]
    words = split_name(node.name)
    if node.name.startswith("__") or not words:
        return []
    kinds = ["functions"]
    if words[0] in VERBS:
        kinds.append("verb")
    if len(words) == 1:
        kinds.append("single")
        if is_participle(words[0]):
            kinds.append("participle")
    return kinds


def main() -> int:
    """Print the measures of the package and of its tests."""
    for name in ("shim", "tests"):
        measures = measure(ROOT / name)._asdict()
        rows = [f"  {key:<24} {value:8.1f}\n" for key, value in measures.items()]
        sys.stdout.write(f"{name}\n" + "".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

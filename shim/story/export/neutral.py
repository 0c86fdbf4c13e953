"""Words of anybody's in a Markdown page of somebody else's.

A model's Markdown stays Markdown, but its HTML, its images, its mentions and references are text, and its links lead
to the web. Any other text is text alone; what a tool printed stands in a fence that is longer than any in it.
"""

import re

# Behind `@` and `#` stands a space of no width: that they are written as entities does not keep a forge from
# mentioning somebody, because it looks for them in what it has rendered.
APART = "&#8203;"
_SIGNS = re.compile(r"[\\`*_{}\[\]()<>&|~$!]|://|@|#|(?<=GH)-(?=[0-9])", re.IGNORECASE)
# In a model's own Markdown less is touched: what would be HTML, an image, a mention, a reference, a definition, a
# link to anything but the web.
_UNWANTED = re.compile(
    r"[<&\\`]|!(?=\[)|\]\((?!\s*https?://)|\]:|@(?=\w)|#(?=[0-9])|(?<=GH)-(?=[0-9])|://(?=(?:www\.)?github\.com\b)|www\.(?=github)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`]*)$")
_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")


def _entity(sign: str) -> str:
    return "".join(f"&#{ord(character)};" for character in sign)


def plain(text: str) -> str:
    """Text in one line in which nothing means anything: not in Markdown, not in HTML, not to a forge."""
    return _SIGNS.sub(lambda found: _apart(found[0]) or _entity(found[0]), " ".join(text.split()))


def _apart(sign: str) -> str:
    """A sign that means something together with its neighbours, without them; "" for any other sign."""
    return {"@": f"@{APART}", "#": f"#{APART}", "-": f"{APART}-", "://": f":{APART}//"}.get(sign, "")


def markdown(text: str) -> str:
    """A model's Markdown without what somebody else's page should not get from it.

    Its fences are written anew, so that none stays open; so are its code spans. No other backtick is left.
    """
    said: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        opened = _FENCE.match(line)
        if opened is None:
            said.append(_neutral_line(line))
            continue
        sign, kept = opened[1], list[str]()
        for inner in lines:
            mark = inner.strip()
            if mark.startswith(sign) and not mark.strip(sign[0]):
                break
            kept.append(inner)
        language = _LANGUAGE.match(opened[2].strip())
        said += ["", fence("\n".join(kept), language[0] if language else ""), ""]
    spaced = [line for line, before in zip(said, ["", *said], strict=False) if line or before]
    return "\n".join(spaced).strip("\n")


def _neutral_line(line: str) -> str:
    """A line outside of fences: its code spans as they are, everything else without what is unwanted."""
    parts, at = list[str](), 0
    while (found := _UNWANTED.search(line, at)) is not None:
        parts.append(line[at : found.start()])
        sign, at = found[0], found.end()
        if sign == "`":
            span, at = _code_span(line, found.start())
            parts.append(span)
        elif sign == "\\":
            escaped = line[at : at + 1]
            is_sign = escaped.isascii() and not escaped.isalnum() and not escaped.isspace()
            parts.append(_entity(escaped or sign) if is_sign else _entity(sign))
            parts.append(APART if escaped in ("@", "#") else "")
            at += len(escaped) if is_sign else 0
        elif sign == "://":
            parts.append("://redirect.")  # the forge's own way to a page of its own that leaves no trace there
        elif len(sign) == 4:
            parts.append(f"{sign}{APART}")
        else:
            parts.append(_apart(sign) or (f"]{_entity(sign[1])}" if sign[0] == "]" else _entity(sign)))
    return "".join([*parts, line[at:]])


def _code_span(line: str, at: int) -> tuple[str, int]:
    """The code span that begins at a place, and where it ends; without an end its backticks are text."""
    ticks = line[at : len(line) - len(line[at:].lstrip("`"))]
    for end in re.finditer("`+", line[at + len(ticks) :]):
        if len(end[0]) == len(ticks):
            inside = line[at + len(ticks) : at + len(ticks) + end.start()]
            return f"{ticks}{inside}{ticks}", at + len(ticks) + end.end()
    return _entity(ticks), at + len(ticks)


def fence(text: str, language: str = "") -> str:
    """A fence that nothing in the text ends."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"

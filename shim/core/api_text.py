"""A failure of the model's API as Claude says it (contract 5.8), with the vendor's own words behind.

Clients look at how these texts begin: ACP asks for a login when it reads `Please run /login`, others show what
follows `API Error:`. Numbers are never invented: where a vendor names no status, the text has none.
"""

import orjson

from shim.core.api_errors import READ_CHARACTERS, Failure

# Kind → how Claude begins; {status} is "500 " or "", {model} the model that was asked. What ends in a word is
# continued with the vendor's words behind a dot.
BEGINNINGS = {
    "key": "Invalid API key · Fix external API key",
    "forbidden": "Failed to authenticate. API Error: {status}",
    "billing": "Credit balance is too low",
    "model": "There's an issue with the selected model ({model}). ",
    "too_long": "Prompt is too long",
    "too_large": "Request too large. ",
    "overload": "API Error: {status}Overloaded. "
    "This is a server-side issue, usually temporary — try again in a moment. ",
    "refused": "API Error: Connection refused — ",
    "connection": "API Error: Connection error — ",
}
NOT_LOGGED_IN = "Not logged in · Please run /login"
_API = "API Error: "
_PREFIXES = ("API Error:", "Error:")
_BRACKETED = "[API Error:"  # qwen and gemini


def api_text(failure: Failure, message: str, *, vendor: str, login: str, model: str) -> str:
    """What Claude would say; `login` says how a person logs in with this vendor, "" when that is not known."""
    if failure.kind == "login":
        hint = f"\nhint: {login}" if login else ""
        return f"{NOT_LOGGED_IN}{hint}\n{vendor}: {stripped(message, None)}"
    words = stripped(message, failure.status)
    number = "" if failure.status is None else str(failure.status)
    if failure.kind == "rate":
        begin = f"API Error: Request rejected ({number})" if number else "API Error: Rate limited"
    else:
        begin = BEGINNINGS.get(failure.kind, "API Error: {status}")
        begin = begin.format(status=number and number + " ", model=model or "unknown")
    if begin.endswith(" — ") and words.lower().startswith(begin.removeprefix(_API).removesuffix(" — ").lower()):
        begin = _API  # the vendor begins as Claude does
    if number not in begin:
        words = f"{number} {words}".rstrip()
    return _joined(begin, words)


def _joined(begin: str, words: str) -> str:
    if not words or words.lower() == begin.lower():
        return begin.rstrip(" —")
    if words.lower().startswith(begin.lower()):
        return begin + words[len(begin) :]
    if begin.endswith(" "):
        return begin + words
    return f"{begin}\n{words}" if "\n" in words else f"{begin} · {words}"


def stripped(message: str, status: int | None) -> str:
    """The words of an error without what Claude's own beginning says: prefixes, the status, a JSON body around."""
    words = message.strip()
    if words.startswith(_BRACKETED):
        words = words[1:].removesuffix("]")
    while words.startswith(_PREFIXES):
        words = words.partition(":")[2].lstrip()
    words = _body(words) or words
    if status is not None and words.startswith(number := str(status)) and not words[len(number) :][:1].isalnum():
        words = words[len(number) :].lstrip(": ")
    return words


def _body(words: str) -> str:
    """The message inside a JSON body that ends an error text, "" when there is none."""
    begin = words.find("{")
    if begin < 0 or len(words) > READ_CHARACTERS or not words.rstrip(' "\n').endswith("}"):
        return ""
    try:
        body = orjson.loads(words[begin : words.rindex("}") + 1])
    except orjson.JSONDecodeError:
        return ""
    for inner in ("error", "data"):  # the body of an API; opencode's own
        if isinstance(body.get(inner), dict):
            body = body[inner]
    message = body.get("message")
    return message.strip() if isinstance(message, str) else ""

"""The one table of what secrets look like; `redactor` looks for them.

A pattern is a row of parts: fixed words, and runs of characters with a least and a most. From the
parts come both its regular expression and the one for a text that breaks off in the middle of it,
so the two cannot disagree. Nothing in a row repeats without an end, so no text makes a search long:
that is why rows are not written as free expressions.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a pattern: `full` matches all of it, `begun` the part of it with which a text may
    end.
    """

    full: str
    begun: str = ""


def word(*texts: str, any_case: bool = False) -> Part:
    """One of several fixed texts."""
    full, begun = "|".join(map(re.escape, texts)), trie(texts)
    return Part(f"(?i:{full})", f"(?i:{begun})") if any_case else Part(f"(?:{full})", begun)


def run(characters: str, least: int, most: int = 0) -> Part:
    """Characters of one set, from `least` to `most` of them; with `least` alone exactly that many."""
    inside = least - 1 if most in (0, least) else most
    return Part(f"{characters}{{{least},{most or least}}}", f"{characters}{{0,{inside}}}\\Z")


def look(expression: str, begun: str = "") -> Part:
    """A condition on the text ahead; `begun` matches the end of a text that is too short to tell."""
    return Part(expression, begun)


def trie(texts: Iterable[str], *, whole: bool = False) -> str:
    """An expression for the beginnings of words, at the end of a text; with `whole` for the whole
    words too.
    """
    following: dict[str, list[str]] = {}
    for text in texts:
        following.setdefault(text[0], []).append(text[1:])
    branches = []
    for character, rests in following.items():
        longer = [rest for rest in rests if rest]
        ends = ["\\Z"] if longer else []
        if longer and (whole or any(len(rest) > 1 for rest in longer)):
            ends.append(trie([rest for rest in longer if whole or len(rest) > 1], whole=whole))
        if whole or ends:
            branches.append(re.escape(character) + (f"(?:{'|'.join(ends)})" if ends else ""))
    return f"(?:{'|'.join(branches)})" if branches else "(?!)"


class Pattern:
    """One kind of secret.

    `stems` are the ways in which it begins, in small letters; without any it begins with one of
    SIGNS, right behind one of the words `behind` (as they are written where they are in capitals).
    The first `kept` parts stay visible. `tail` are characters that belong to it, however many
    follow; `body` are those of a key's block, which follows instead.
    """

    def __init__(
        self,
        kind: str,
        stems: Iterable[str],
        parts: Iterable[Part],
        *,
        behind: tuple[str, ...] = (),
        kept: int = 0,
        tail: str = "",
        body: str = "",
    ) -> None:
        self.kind = kind
        self.stems = tuple(stems)
        self.behind = behind
        self.shouted = "".join(behind).isupper()
        self.parts = tuple(parts)
        self._kept = kept
        self.tail = tail
        self.body = body
        self.mark = f"[REDACTED:{kind}]"

    @cached_property
    def full(self) -> re.Pattern[str]:
        """Matches a secret without its tail; its group is the part that stays."""
        written = [part.full for part in self.parts]
        return re.compile(f"({''.join(written[: self._kept])}){''.join(written[self._kept :])}")

    @cached_property
    def open(self) -> re.Pattern[str]:
        """Matches the end of a text that may become a secret, or another secret, when the text goes
        on.
        """
        expression = "(?!)" if self.tail or self.body else "\\Z"
        for number, part in reversed(list(enumerate(self.parts))):
            if not part.begun:
                continue
            begun = part.begun if number == 0 else f"\\Z|{part.begun}"
            expression = f"(?:{begun}|{part.full}{expression})"
        return re.compile(expression)

    @cached_property
    def rest(self) -> re.Pattern[str]:
        """Matches all of the tail or body, possessively."""
        return re.compile(f"{self.tail or self.body}*+")


ALNUM, WORD, URL, HEX = "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[A-Za-z0-9._~+/=-]", "[0-9a-f]"


def _mixed(characters: str, length: int) -> Part:
    """Rules out words of a language or of a style sheet: there must be a digit, or a small letter
    before a capital.
    """
    return look(f"(?={characters}{{0,{length - 2}}}(?:[0-9]|[a-z][A-Z]))")


def _token(
    kind: str, prefixes: str, characters: str, least: int, *, mixed: bool = False
) -> Pattern:
    """A token: a fixed prefix and then random characters, of which there are at least so many."""
    words = prefixes.split()
    parts = [word(*words), *([_mixed(characters, least)] if mixed else []), run(characters, least)]
    return Pattern(kind, [prefix.lower() for prefix in words], parts, tail=characters)


_SLACK, _DISCORD = (
    ["hooks.slack.com/services/"],
    ["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
)
_SIGNATURE = ["x-amz-signature="]

# fmt: off
# After a character that is neither letter nor digit. Lengths are those of the issuers or a little
# less.
TOKENS = (
    _token("anthropic-key",     "sk-ant-",                                              WORD,   16, mixed=True),
    _token("openai-key",        "sk-proj- sk-svcacct- sk-admin- sk-or-v1- sk-None-",    WORD,   16, mixed=True),
    _token("api-key",           "sk-",                                                  ALNUM,  20, mixed=True),
    _token("github-token",      "ghp_ gho_ ghu_ ghs_ ghr_",                             ALNUM,  30),
    _token("github-token",      "github_pat_",                                          "[A-Za-z0-9_]", 22),
    _token("gitlab-token",      "glpat- gldt- glrt- glptt- glcbt- glsoat- glft- glagent-", WORD, 20),
    _token("google-key",        "AIza",                                                 WORD,   35),
    _token("google-oauth",      "ya29. 1//0 GOCSPX-",                                   WORD,   20),
    _token("aws-key-id",        "AKIA ASIA ABIA ACCA",                                  "[A-Z0-9]", 16),
    _token("npm-token",         "npm_",                                                 ALNUM,  36),
    _token("pypi-token",        "pypi-AgE pypi-AgN",                                    WORD,   40),
    _token("huggingface-token", "hf_ api_org_",                                         ALNUM,  30),
    _token("slack-token",       "xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xapp-",
                                "[A-Za-z0-9.%-]", 16, mixed=True),
    _token("stripe-key",        "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_ whsec_", ALNUM, 16),
    _token("sendgrid-key",      "SG.",                                                  "[A-Za-z0-9._-]", 60),
    _token("twilio-key",        " ".join(f"SK{digit}" for digit in "0123456789abcdef"), HEX,    31),
    _token("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_",                             HEX,    64),
    _token("databricks-token",  "dapi",                                                 HEX,    32),
    _token("shopify-token",     "shpat_ shpca_ shppa_ shpss_",                          "[0-9a-fA-F]", 32),
    _token("vault-token",       "hvs. hvb. hvr.",                                       WORD,   24, mixed=True),
    _token("docker-token",      "dckr_pat_ dckr_oat_",                                  WORD,   27),
    _token("atlassian-token",   "ATATT3 ATCTT3",                                        "[A-Za-z0-9_=-]", 40),
    _token("groq-key",          "gsk_",                                                 ALNUM,  40),
    _token("xai-key",           "xai-",                                                 ALNUM,  40),
    _token("perplexity-key",    "pplx-",                                                ALNUM,  40),
    _token("replicate-token",   "r8_",                                                  ALNUM,  37),
    _token("linear-key",        "lin_api_",                                             ALNUM,  40),
    _token("notion-token",      "ntn_",                                                 ALNUM,  40),
    _token("figma-token",       "figd_",                                                WORD,   40),
    _token("grafana-token",     "glsa_ glc_",                                           "[A-Za-z0-9_+/=]", 32),
    _token("newrelic-key",      "NRAK-",                                                "[A-Z0-9]", 27),
    _token("sentry-token",      "sntrys_ sntryu_",                                      "[A-Za-z0-9_+/=]", 60),
    _token("supabase-token",    "sbp_ sb_secret_",                                      WORD,   30),
    _token("planetscale-token", "pscale_tkn_ pscale_pw_ pscale_oauth_",                 "[A-Za-z0-9_.=-]", 32),
    _token("postman-key",       "PMAK-",                                                WORD,   50),
    _token("rubygems-key",      "rubygems_",                                            HEX,    48),
    _token("square-token",      "sq0atp- sq0csp-",                                      WORD,   22),
    _token("mailgun-key",       "key-",                                                 HEX,    32),
    _token("doppler-token",     "dp.pt. dp.st. dp.sa.",                                 "[A-Za-z0-9._-]", 40),
    _token("age-key",           "AGE-SECRET-KEY-1",                                     "[A-Z0-9]", 50),
    _token("alibaba-key-id",    "LTAI",                                                 ALNUM,  17, mixed=True),
    Pattern("bearer-token", ["bearer"],
            [word("bearer", any_case=True), run("[ \\t]", 1, 3), _mixed(URL, 16), run(URL, 16)], kept=2, tail=URL),
    Pattern("webhook", _SLACK, [word(*_SLACK), run("[A-Za-z0-9/]", 20)], kept=1, tail="[A-Za-z0-9/]"),
    Pattern("webhook", _DISCORD, [word(*_DISCORD), run("[A-Za-z0-9/_-]", 40)], kept=1, tail="[A-Za-z0-9/_-]"),
    Pattern("signature", _SIGNATURE, [word(*_SIGNATURE, any_case=True), run(HEX, 64)], kept=1, tail=HEX),
    Pattern("jwt", ["eyj"], [word("eyJ"), run(WORD, 8, 200), word(".eyJ"), run(WORD, 8)], tail="[A-Za-z0-9._-]"),
)
# fmt: on

# between the name of a secret and its value: `"password": `, `TOKEN=`, `api_key => `, `<secret>`
SIGNS = ":=>"
BEFORE_CHARACTERS = 40  # of a name, with what closes it

CLOSING = " \t]\"'`\\"  # what may stand between the name and the sign as well


def _names(*names: str) -> tuple[str, ...]:
    """Names of secrets, each also as the key of an object."""
    return tuple(name + key for name in names for key in ("", "key", "_key", "-key"))


_OWNERS = [
    f"{owner}{link}key"
    for owner in ("api", "access", "account", "private", "auth")
    for link in ("", "_", "-")
]
_PASSWORDS = _names("password", "passwd", "passphrase", "pwd", "secret")
_NAMES = (*_PASSWORDS, *_names("token", "credential", "credentials", "authorization"), *_OWNERS)
_SHOUTED = tuple(
    name.upper() for name in _NAMES if "-" not in name and name not in ("pwd", "authorization")
)
_NO_PASSWORD = "password|passwd|passphrase|secret|undefined|required|optional|disabled|encrypted|plaintext|redacted"
_OPTIONS = (
    "--password",
    "--passwd",
    "--passphrase",
    "--token",
    "--secret",
    "--api-key",
    "--apikey",
    "--auth-token",
)


# The ends of all names of secrets, for a first look.
NAME_ENDS = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "key"),
    *("credential", "credentials", "authorization", "sig"),
)

_SIGN = (run(f"[{SIGNS}]", 1, 2), run("[ \\t]", 0, 4))
_QUOTE = (run("\\\\", 0, 1), run("[\"'`]", 1))
_UNQUOTE = look("(?=\\\\?[\"'`])", begun="\\\\?\\Z")
_PLAIN, _QUOTED, _ENV = (
    "[A-Za-z0-9_+/=~!@#$%^*?-]",
    "[^\\s\"'`<>\\\\]",
    "[^\\s\"'`<>(){}\\[\\],;&|\\\\]",
)
_LONG = 128  # characters in one piece: a value of this length is a secret, whatever follows
# Not a value: a variable, a place, a type, the name of a method.
_NO_VALUE = look(
    "(?![$<{%\\[(]|https?:|\\.{0,2}/[a-z_.-]{2,40}/|(?i:u?int|float|utf-?|sha-?|md|base|oauth|argon|ipv)[0-9])"
)


def _letters_and_digits(characters: str) -> Part:
    """A condition: a value of these characters has letters and digits."""
    return look(f"(?={characters}{{0,{_LONG - 1}}}[0-9])(?={characters}{{0,{_LONG - 1}}}[A-Za-z])")


# A value without quotes ends at a bracket or a separator of the language around it, or at a full
# stop.
_END = look("(?=[^!-~]|[\"'`,;&|)}\\]<>\\\\]|\\.(?:\\s|\\Z)|\\Z)", begun="\\.?\\Z")


def _assigned(characters: str, *opening: Part, ending: Part) -> tuple[Pattern, Pattern]:
    """A value behind the name of a secret: letters and digits, to their end, or too many to be a
    word.
    """
    parts = (*_SIGN, *opening, _NO_VALUE)
    both = _letters_and_digits(characters)
    kept = len(parts) - 1
    value = (*parts, both, run(characters, 6, _LONG - 1), ending)
    long = (*parts, both, run(characters, _LONG))
    return (
        Pattern("assigned-secret", [], value, behind=_NAMES, kept=kept),
        Pattern("assigned-secret", [], long, behind=_NAMES, kept=kept, tail=characters),
    )


def _key(name: Part, *behind: Part, comments: str = "") -> Pattern:
    """A key's block, from its first line on; `behind` are parts that follow that line, not a
    sentence about it.
    """
    parts = (word("-----BEGIN "), run("[A-Z0-9 ]", 0, 30), name, word("-----"), *behind)
    return Pattern(
        "private-key", ["-----begin "], parts, body=f"[A-Za-z0-9+/=\\s\\\\:,\"'{comments}-]"
    )


# Anywhere.
DASHED = (
    _key(word("PRIVATE KEY"), run("[\\r\\n\\\\]", 1)),
    _key(word("PRIVATE KEY"), run("[ \\t]", 1), run("[A-Za-z0-9+/=]", 16)),
    _key(word("PRIVATE KEY BLOCK"), run("[\\r\\n\\\\]", 1), comments=".()<>@;_"),
    Pattern(
        "assigned-secret",
        _OPTIONS,
        [
            word(*_OPTIONS),
            run("[ =]", 1),
            run("[\"']", 0, 1),
            _NO_VALUE,
            _letters_and_digits(_PLAIN),
            run(_PLAIN, 6, _LONG - 1),
            _END,
        ],
        kept=3,
    ),
)

# Behind a name, also a longer one: DB_PASSWORD, clientSecret, x-api-key.
ASSIGNED = (
    Pattern(
        "authorization",
        [],
        [
            *_SIGN,
            run("\\\\", 0, 1),
            run("[\"'`]", 0, 1),
            word("basic", "bearer", "digest", "negotiate", "token", "apikey", any_case=True),
            run("[ \\t]", 1, 3),
            _mixed(URL, 8),
            run(URL, 8),
        ],
        behind=("authorization",),
        kept=6,
        tail=URL,
    ),
    *_assigned(_QUOTED, *_QUOTE, ending=_UNQUOTE),
    *_assigned(_PLAIN, ending=_END),
    Pattern(  # small letters only: a quoted password, not the name of a type or of a field
        "assigned-secret",
        [],
        [
            *_SIGN,
            *_QUOTE,
            look(f"(?!(?:{_NO_PASSWORD})\\\\?[\"'`])"),
            run("[a-z]", 8, 64),
            _UNQUOTE,
        ],
        behind=_PASSWORDS,
        kept=4,
    ),
    Pattern(  # the same without quotes, as in a query or on a command line
        "assigned-secret",
        [],
        [
            run("=", 1),
            look(f"(?!(?:{_NO_PASSWORD})(?![a-z]))"),
            run("[a-z]", 8, 64),
            look("(?=[\\s&;\"'`\\\\]|\\Z)"),
        ],
        behind=_PASSWORDS,
        kept=1,
    ),
    Pattern(  # as in a file of environment variables
        "assigned-secret",
        [],
        [
            run("=", 1),
            _NO_VALUE,
            look(f"(?={_ENV}{{0,{_LONG - 1}}}[a-z])"),
            run(_ENV, 6, _LONG - 1),
            look("(?=[\\s\"'`;&|\\\\]|\\Z)"),
        ],
        behind=_SHOUTED,
        kept=1,
    ),
    Pattern(
        "signature",
        [],
        [run("=", 1), run("[A-Za-z0-9%+/=]", 30)],
        behind=("?sig", "&sig"),
        kept=1,
        tail="[A-Za-z0-9%+/=]",
    ),
)

# `scheme://user:password@host`; the sign is its colon.
ADDRESS = Pattern(
    "url-password",
    [],
    [
        word("://"),
        run("[^\\s/@:\"'`<>\\\\]", 0, 100),
        word(":"),
        _NO_VALUE,
        run("[^\\s/\"'`<>\\\\]", 1, 200),
        look("(?=@[\\w\\[])", begun="@?\\Z"),
    ],
    kept=3,
)

"""The table of secret patterns that `redactor` searches for.

A pattern is a sequence of parts: fixed texts, and runs of characters with a minimum and a maximum
length. Two regular expressions are built from these parts. One matches a secret, and the other
matches a text that ends in the middle of a secret. All repetitions have a maximum, so no text can
make a search slow. A handwritten regular expression would not guarantee this.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple


class SecretPatternPart(NamedTuple):
    """A part of a secret pattern. `full_expression` matches the complete part. `prefix_expression`
    matches the beginning of the part at the end of a text.
    """

    full_expression: str
    prefix_expression: str = ""


def build_literal_pattern_part(*texts: str, ignore_case: bool = False) -> SecretPatternPart:
    """Return a pattern part that matches any of several fixed texts."""
    full_expression = "|".join(map(re.escape, texts))
    prefix_expression = build_truncated_text_regex_source(texts)
    if ignore_case:
        return SecretPatternPart(f"(?i:{full_expression})", f"(?i:{prefix_expression})")
    return SecretPatternPart(f"(?:{full_expression})", prefix_expression)


def build_char_class_pattern_part(
    characters: str, min_chars: int, max_chars: int = 0
) -> SecretPatternPart:
    """Return a pattern part that matches from `min_chars` to `max_chars` characters of a set.
    Without `max_chars`, the part matches exactly `min_chars` characters.
    """
    max_prefix_chars = max_chars
    if max_chars in (0, min_chars):
        max_chars = min_chars
        max_prefix_chars = min_chars - 1
    return SecretPatternPart(
        f"{characters}{{{min_chars},{max_chars}}}",
        f"{characters}{{0,{max_prefix_chars}}}\\Z",
    )


def build_lookahead_part(expression: str, prefix_expression: str = "") -> SecretPatternPart:
    """Return a pattern part that is a condition on the following text. `prefix_expression` matches
    if the text ends before the condition can be decided.
    """
    return SecretPatternPart(expression, prefix_expression)


def build_truncated_text_regex_source(
    texts: Iterable[str], *, matches_full_texts: bool = False
) -> str:
    """Return a regular expression that matches the beginning of any of `texts` at the end of a
    text. If `matches_full_texts` is set, it also matches the complete `texts` anywhere.
    """
    rests_by_character: dict[str, list[str]] = {}
    for text in texts:
        rests_by_character.setdefault(text[0], []).append(text[1:])
    branches = []
    for character, suffixes in rests_by_character.items():
        nonempty_suffixes = [suffix for suffix in suffixes if suffix]
        endings = []
        if nonempty_suffixes:
            endings = ["\\Z"]
        if nonempty_suffixes and (
            matches_full_texts or any(len(suffix) > 1 for suffix in nonempty_suffixes)
        ):
            endings.append(
                build_truncated_text_regex_source(
                    [
                        suffix
                        for suffix in nonempty_suffixes
                        if matches_full_texts or len(suffix) > 1
                    ],
                    matches_full_texts=matches_full_texts,
                )
            )
        if matches_full_texts or endings:
            branches.append(re.escape(character) + (f"(?:{'|'.join(endings)})" if endings else ""))
    if branches:
        return f"(?:{'|'.join(branches)})"
    return "(?!)"


class SecretPattern:
    """The pattern for one kind of secret.

    A secret begins with one of `stems`, which are in lower case. Without stems, a secret begins
    with an assignment sign (SIGN_CHARS) directly after one of `preceding_names`. Names in upper
    case match only uppercase text. The first `visible_part_count` parts of the pattern are not
    redacted. All following `tail_chars` belong to the secret. For a private key, `body_chars` are
    used instead: the characters of the key's block.
    """

    def __init__(
        self,
        kind: str,
        stems: Iterable[str],
        parts: Iterable[SecretPatternPart],
        *,
        preceding_names: tuple[str, ...] = (),
        visible_part_count: int = 0,
        tail_chars: str = "",
        body_chars: str = "",
    ) -> None:
        self.kind = kind
        self.stems = tuple(stems)
        self.preceding_names = preceding_names
        self.is_uppercase = "".join(preceding_names).isupper()
        self.parts = tuple(parts)
        self._visible_part_count = visible_part_count
        self.tail_chars = tail_chars
        self.body_chars = body_chars
        self.placeholder = f"[REDACTED:{kind}]"

    @cached_property
    def secret_without_tail_regex(self) -> re.Pattern[str]:
        """The regular expression for a secret without its tail. Its group matches the part that is
        not redacted.
        """
        expressions = [part.full_expression for part in self.parts]
        return re.compile(
            f"({''.join(expressions[: self._visible_part_count])}){''.join(expressions[self._visible_part_count :])}"
        )

    @cached_property
    def incomplete_secret_regex(self) -> re.Pattern[str]:
        """The regular expression for an unfinished secret at the end of a text. More text could
        complete the secret, or turn it into a different secret.
        """
        expression = "\\Z"
        if self.tail_chars or self.body_chars:
            expression = "(?!)"
        for index, part in reversed(list(enumerate(self.parts))):
            if not part.prefix_expression:
                continue
            if index == 0:
                prefix_expression = part.prefix_expression
            else:
                prefix_expression = f"\\Z|{part.prefix_expression}"
            expression = f"(?:{prefix_expression}|{part.full_expression}{expression})"
        return re.compile(expression)

    @cached_property
    def secret_tail_regex(self) -> re.Pattern[str]:
        """The possessive regular expression for a secret's complete tail or body."""
        return re.compile(f"{self.tail_chars or self.body_chars}*+")


ALNUM_CHARS = "[A-Za-z0-9]"
ID_CHARS = "[A-Za-z0-9_-]"
URL_CHARS = "[A-Za-z0-9._~+/=-]"
HEX_CHARS = "[0-9a-f]"


def _require_mixed(characters: str, min_chars: int) -> SecretPatternPart:
    """Return a condition that excludes ordinary words. The text must have a digit, or a lowercase
    letter directly before an uppercase letter.
    """
    return build_lookahead_part(f"(?={characters}{{0,{min_chars - 2}}}(?:[0-9]|[a-z][A-Z]))")


def _build_token_pattern(
    kind: str, prefixes: str, characters: str, min_chars: int, *, is_mixed: bool = False
) -> SecretPattern:
    """Return the pattern for a token: a fixed prefix followed by at least `min_chars` characters."""
    stems = prefixes.split()
    parts = [
        build_literal_pattern_part(*stems),
        *([_require_mixed(characters, min_chars)] if is_mixed else []),
        build_char_class_pattern_part(characters, min_chars),
    ]
    return SecretPattern(kind, [prefix.lower() for prefix in stems], parts, tail_chars=characters)


_SLACK_STEMS = ["hooks.slack.com/services/"]
_DISCORD_STEMS = ["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"]
_SIGNATURE_STEMS = ["x-amz-signature="]

# fmt: off
# The patterns of tokens. A token must follow a character that is neither a letter nor a digit. The
# minimum length is the length that the token's issuer uses, or slightly less.
TOKEN_PATTERNS = (
    _build_token_pattern("anthropic-key",     "sk-ant-",                               ID_CHARS,    16, is_mixed=True),
    _build_token_pattern("openai-key",        "sk-proj- sk-svcacct- sk-admin- sk-or-v1- sk-None-",
                                              ID_CHARS, 16, is_mixed=True),
    _build_token_pattern("api-key",           "sk-",                                   ALNUM_CHARS, 20, is_mixed=True),
    _build_token_pattern("github-token",      "ghp_ gho_ ghu_ ghs_ ghr_",              ALNUM_CHARS, 30),
    _build_token_pattern("github-token",      "github_pat_",                           "[A-Za-z0-9_]", 22),
    _build_token_pattern("gitlab-token",      "glpat- gldt- glrt- glptt- glcbt- glsoat- glft- glagent-",
                                              ID_CHARS, 20),
    _build_token_pattern("google-key",        "AIza",                                  ID_CHARS,    35),
    _build_token_pattern("google-oauth",      "ya29. 1//0 GOCSPX-",                    ID_CHARS,    20),
    _build_token_pattern("aws-key-id",        "AKIA ASIA ABIA ACCA",                   "[A-Z0-9]",  16),
    _build_token_pattern("npm-token",         "npm_",                                  ALNUM_CHARS, 36),
    _build_token_pattern("pypi-token",        "pypi-AgE pypi-AgN",                     ID_CHARS,    40),
    _build_token_pattern("huggingface-token", "hf_ api_org_",                          ALNUM_CHARS, 30),
    _build_token_pattern("slack-token",       "xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xoxc- xoxd- xapp-",
                                              "[A-Za-z0-9.%-]", 16, is_mixed=True),
    _build_token_pattern("stripe-key",        "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_ whsec_",
                                              ALNUM_CHARS, 16),
    _build_token_pattern("sendgrid-key",      "SG.",                                   "[A-Za-z0-9._-]", 60),
    _build_token_pattern("twilio-key",        " ".join(f"SK{digit}" for digit in "0123456789abcdef"), HEX_CHARS,   31),
    _build_token_pattern("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_",              HEX_CHARS,   64),
    _build_token_pattern("databricks-token",  "dapi",                                  HEX_CHARS,   32),
    _build_token_pattern("shopify-token",     "shpat_ shpca_ shppa_ shpss_",           "[0-9a-fA-F]", 32),
    _build_token_pattern("vault-token",       "hvs. hvb. hvr.",                        ID_CHARS,    24, is_mixed=True),
    _build_token_pattern("docker-token",      "dckr_pat_ dckr_oat_",                   ID_CHARS,    27),
    _build_token_pattern("atlassian-token",   "ATATT3 ATCTT3",                         "[A-Za-z0-9_=-]", 40),
    _build_token_pattern("groq-key",          "gsk_",                                  ALNUM_CHARS, 40),
    _build_token_pattern("xai-key",           "xai-",                                  ALNUM_CHARS, 40),
    _build_token_pattern("perplexity-key",    "pplx-",                                 ALNUM_CHARS, 40),
    _build_token_pattern("replicate-token",   "r8_",                                   ALNUM_CHARS, 37),
    _build_token_pattern("linear-key",        "lin_api_",                              ALNUM_CHARS, 40),
    _build_token_pattern("notion-token",      "ntn_",                                  ALNUM_CHARS, 40),
    _build_token_pattern("figma-token",       "figd_",                                 ID_CHARS,    40),
    _build_token_pattern("grafana-token",     "glsa_ glc_",                            "[A-Za-z0-9_+/=]", 32),
    _build_token_pattern("newrelic-key",      "NRAK-",                                 "[A-Z0-9]",  27),
    _build_token_pattern("sentry-token",      "sntrys_ sntryu_",                       "[A-Za-z0-9_+/=]", 60),
    _build_token_pattern("supabase-token",    "sbp_ sb_secret_",                       ID_CHARS,    30),
    _build_token_pattern("planetscale-token", "pscale_tkn_ pscale_pw_ pscale_oauth_",  "[A-Za-z0-9_.=-]", 32),
    _build_token_pattern("postman-key",       "PMAK-",                                 ID_CHARS,    50),
    _build_token_pattern("rubygems-key",      "rubygems_",                             HEX_CHARS,   48),
    _build_token_pattern("square-token",      "sq0atp- sq0csp-",                       ID_CHARS,    22),
    _build_token_pattern("mailgun-key",       "key-",                                  HEX_CHARS,   32),
    _build_token_pattern("doppler-token",     "dp.pt. dp.st. dp.sa.",                  "[A-Za-z0-9._-]", 40),
    _build_token_pattern("age-key",           "AGE-SECRET-KEY-1",                      "[A-Z0-9]",  50),
    _build_token_pattern("alibaba-key-id",    "LTAI",                                  ALNUM_CHARS, 17, is_mixed=True),
    SecretPattern("bearer-token", ["bearer"],
                  [build_literal_pattern_part("bearer", ignore_case=True),
                   build_char_class_pattern_part("[ \\t]", 1, 3),
                   _require_mixed(URL_CHARS, 16), build_char_class_pattern_part(URL_CHARS, 16)],
                  visible_part_count=2, tail_chars=URL_CHARS),
    SecretPattern("webhook", _SLACK_STEMS,
                  [build_literal_pattern_part(*_SLACK_STEMS), build_char_class_pattern_part("[A-Za-z0-9/]", 20)],
                  visible_part_count=1, tail_chars="[A-Za-z0-9/]"),
    SecretPattern("webhook", _DISCORD_STEMS,
                  [build_literal_pattern_part(*_DISCORD_STEMS), build_char_class_pattern_part("[A-Za-z0-9/_-]", 40)],
                  visible_part_count=1, tail_chars="[A-Za-z0-9/_-]"),
    SecretPattern("signature", _SIGNATURE_STEMS,
                  [build_literal_pattern_part(*_SIGNATURE_STEMS, ignore_case=True),
                   build_char_class_pattern_part(HEX_CHARS, 64)],
                  visible_part_count=1, tail_chars=HEX_CHARS),
    SecretPattern("jwt", ["eyj"],
                  [build_literal_pattern_part("eyJ"), build_char_class_pattern_part(ID_CHARS, 8, 200),
                   build_literal_pattern_part(".eyJ"), build_char_class_pattern_part(ID_CHARS, 8)],
                  tail_chars="[A-Za-z0-9._-]"),
)
# fmt: on

# The assignment signs that separate the name of a secret from its value, as in `"password": `,
# `TOKEN=`, `api_key => ` and `<secret>`.
SIGN_CHARS = ":=>"
NAME_CONTEXT_CHARS = 40  # the maximum length of a secret's name with CLOSING_CHARS

CLOSING_CHARS = " \t]\"'`\\"  # may stand between a secret's name and the assignment sign


def _add_key_forms(*names: str) -> tuple[str, ...]:
    """Return the names of secrets, each with and without a suffix such as `_key`."""
    return tuple(name + suffix for name in names for suffix in ("", "key", "_key", "-key"))


_KEY_NAMES = [
    f"{owner}{separator}key"
    for owner in ("api", "access", "account", "private", "auth")
    for separator in ("", "_", "-")
]
_PASSWORD_NAMES = _add_key_forms("password", "passwd", "passphrase", "pwd", "secret")
_SECRET_NAMES = (
    *_PASSWORD_NAMES,
    *_add_key_forms("token", "credential", "credentials", "authorization"),
    *_KEY_NAMES,
)
_UPPERCASE_NAMES = tuple(
    name.upper()
    for name in _SECRET_NAMES
    if "-" not in name and name not in ("pwd", "authorization")
)
_NON_PASSWORDS = "password|passwd|passphrase|secret|undefined|required|optional|disabled|encrypted|plaintext|redacted"
_SECRET_OPTIONS = (
    "--password",
    "--passwd",
    "--passphrase",
    "--token",
    "--secret",
    "--api-key",
    "--apikey",
    "--auth-token",
)


# The endings of all secret names, for a quick check.
SECRET_NAME_ENDINGS = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "key"),
    *("credential", "credentials", "authorization", "sig"),
)

_SIGN_PARTS = (
    build_char_class_pattern_part(f"[{SIGN_CHARS}]", 1, 2),
    build_char_class_pattern_part("[ \\t]", 0, 4),
)
_OPENING_QUOTE = (
    build_char_class_pattern_part("\\\\", 0, 1),
    build_char_class_pattern_part("[\"'`]", 1),
)
_CLOSING_QUOTE = build_lookahead_part("(?=\\\\?[\"'`])", prefix_expression="\\\\?\\Z")
_PLAIN_CHARS = "[A-Za-z0-9_+/=~!@#$%^*?-]"
_QUOTED_CHARS = "[^\\s\"'`<>\\\\]"
_ENV_CHARS = "[^\\s\"'`<>(){}\\[\\],;&|\\\\]"
# a value of at least this length without a separator is always a secret
_LONG_VALUE_CHARS = 128
# Rejects values that are not secrets: a variable, a path, a type or the name of a method.
_REJECT_NON_VALUES = build_lookahead_part(
    "(?![$<{%\\[(]|https?:|\\.{0,2}/[a-z_.-]{2,40}/|(?i:u?int|float|utf-?|sha-?|md|base|oauth|argon|ipv)[0-9])"
)


def _require_letters_and_digits(characters: str) -> SecretPatternPart:
    """Return the condition that a value made of these characters has both letters and digits."""
    return build_lookahead_part(
        f"(?={characters}{{0,{_LONG_VALUE_CHARS - 1}}}[0-9])(?={characters}{{0,{_LONG_VALUE_CHARS - 1}}}[A-Za-z])"
    )


# Matches the end of a value without quotes: a bracket, a separator or a full stop.
_VALUE_END = build_lookahead_part(
    "(?=[^!-~]|[\"'`,;&|)}\\]<>\\\\]|\\.(?:\\s|\\Z)|\\Z)", prefix_expression="\\.?\\Z"
)


def _build_assigned_patterns(
    characters: str, *opening_parts: SecretPatternPart, end_part: SecretPatternPart
) -> tuple[SecretPattern, SecretPattern]:
    """Return the patterns for a value that follows the name of a secret. The complete value must
    have both letters and digits, or be longer than any word.
    """
    parts = (*_SIGN_PARTS, *opening_parts, _REJECT_NON_VALUES)
    letters_and_digits = _require_letters_and_digits(characters)
    visible_part_count = len(parts) - 1
    value_parts = (
        *parts,
        letters_and_digits,
        build_char_class_pattern_part(characters, 6, _LONG_VALUE_CHARS - 1),
        end_part,
    )
    long_value_parts = (
        *parts,
        letters_and_digits,
        build_char_class_pattern_part(characters, _LONG_VALUE_CHARS),
    )
    return (
        SecretPattern(
            "assigned-secret",
            [],
            value_parts,
            preceding_names=_SECRET_NAMES,
            visible_part_count=visible_part_count,
        ),
        SecretPattern(
            "assigned-secret",
            [],
            long_value_parts,
            preceding_names=_SECRET_NAMES,
            visible_part_count=visible_part_count,
            tail_chars=characters,
        ),
    )


def _build_key_pattern(
    name_part: SecretPatternPart, *following_parts: SecretPatternPart, comment_chars: str = ""
) -> SecretPattern:
    """Return the pattern for a block with a private key. `following_parts` distinguish the block's
    first line from a sentence that mentions such a line.
    """
    parts = (
        build_literal_pattern_part("-----BEGIN "),
        build_char_class_pattern_part("[A-Z0-9 ]", 0, 30),
        name_part,
        build_literal_pattern_part("-----"),
        *following_parts,
    )
    return SecretPattern(
        "private-key",
        ["-----begin "],
        parts,
        body_chars=f"[A-Za-z0-9+/=\\s\\\\:,\"'{comment_chars}-]",
    )


# The patterns of secrets that may begin anywhere in a text.
DASHED_PATTERNS = (
    _build_key_pattern(
        build_literal_pattern_part("PRIVATE KEY"), build_char_class_pattern_part("[\\r\\n\\\\]", 1)
    ),
    _build_key_pattern(
        build_literal_pattern_part("PRIVATE KEY"),
        build_char_class_pattern_part("[ \\t]", 1),
        build_char_class_pattern_part("[A-Za-z0-9+/=]", 16),
    ),
    _build_key_pattern(
        build_literal_pattern_part("PRIVATE KEY BLOCK"),
        build_char_class_pattern_part("[\\r\\n\\\\]", 1),
        comment_chars=".()<>@;_",
    ),
    SecretPattern(
        "assigned-secret",
        _SECRET_OPTIONS,
        [
            build_literal_pattern_part(*_SECRET_OPTIONS),
            build_char_class_pattern_part("[ =]", 1),
            build_char_class_pattern_part("[\"']", 0, 1),
            _REJECT_NON_VALUES,
            _require_letters_and_digits(_PLAIN_CHARS),
            build_char_class_pattern_part(_PLAIN_CHARS, 6, _LONG_VALUE_CHARS - 1),
            _VALUE_END,
        ],
        visible_part_count=3,
    ),
)

# The patterns of secrets that follow a name. The name may be the end of a longer name, as in
# DB_PASSWORD, clientSecret and x-api-key.
ASSIGNED_PATTERNS = (
    SecretPattern(
        "authorization",
        [],
        [
            *_SIGN_PARTS,
            build_char_class_pattern_part("\\\\", 0, 1),
            build_char_class_pattern_part("[\"'`]", 0, 1),
            build_literal_pattern_part(
                "basic", "bearer", "digest", "negotiate", "token", "apikey", ignore_case=True
            ),
            build_char_class_pattern_part("[ \\t]", 1, 3),
            _require_mixed(URL_CHARS, 8),
            build_char_class_pattern_part(URL_CHARS, 8),
        ],
        preceding_names=("authorization",),
        visible_part_count=6,
        tail_chars=URL_CHARS,
    ),
    *_build_assigned_patterns(_QUOTED_CHARS, *_OPENING_QUOTE, end_part=_CLOSING_QUOTE),
    *_build_assigned_patterns(_PLAIN_CHARS, end_part=_VALUE_END),
    SecretPattern(  # a quoted password in lowercase letters, but no word such as "required"
        "assigned-secret",
        [],
        [
            *_SIGN_PARTS,
            *_OPENING_QUOTE,
            build_lookahead_part(f"(?!(?:{_NON_PASSWORDS})\\\\?[\"'`])"),
            build_char_class_pattern_part("[a-z]", 8, 64),
            _CLOSING_QUOTE,
        ],
        preceding_names=_PASSWORD_NAMES,
        visible_part_count=4,
    ),
    SecretPattern(  # a password in lowercase letters without quotes, as in a URL query
        "assigned-secret",
        [],
        [
            build_char_class_pattern_part("=", 1),
            build_lookahead_part(f"(?!(?:{_NON_PASSWORDS})(?![a-z]))"),
            build_char_class_pattern_part("[a-z]", 8, 64),
            build_lookahead_part("(?=[\\s&;\"'`\\\\]|\\Z)"),
        ],
        preceding_names=_PASSWORD_NAMES,
        visible_part_count=1,
    ),
    SecretPattern(  # a value in a file of environment variables
        "assigned-secret",
        [],
        [
            build_char_class_pattern_part("=", 1),
            _REJECT_NON_VALUES,
            build_lookahead_part(f"(?={_ENV_CHARS}{{0,{_LONG_VALUE_CHARS - 1}}}[a-z])"),
            build_char_class_pattern_part(_ENV_CHARS, 6, _LONG_VALUE_CHARS - 1),
            build_lookahead_part("(?=[\\s\"'`;&|\\\\]|\\Z)"),
        ],
        preceding_names=_UPPERCASE_NAMES,
        visible_part_count=1,
    ),
    SecretPattern(
        "signature",
        [],
        [
            build_char_class_pattern_part("=", 1),
            build_char_class_pattern_part("[A-Za-z0-9%+/=]", 30),
        ],
        preceding_names=("?sig", "&sig"),
        visible_part_count=1,
        tail_chars="[A-Za-z0-9%+/=]",
    ),
)

# Matches the password in `scheme://user:password@host`. The match begins at the colon in `://`.
URL_PASSWORD_PATTERN = SecretPattern(
    "url-password",
    [],
    [
        build_literal_pattern_part("://"),
        build_char_class_pattern_part("[^\\s/@:\"'`<>\\\\]", 0, 100),
        build_literal_pattern_part(":"),
        _REJECT_NON_VALUES,
        build_char_class_pattern_part("[^\\s/\"'`<>\\\\]", 1, 200),
        build_lookahead_part("(?=@[\\w\\[])", prefix_expression="@?\\Z"),
    ],
    visible_part_count=3,
)

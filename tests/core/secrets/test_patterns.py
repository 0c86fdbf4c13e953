"""The table of secrets: each kind is detected, similar text is not, and no text makes a search
slow.
"""

import re
import re._constants as codes
import re._parser as parser
from collections.abc import Iterator

import pytest
from fake_secrets import BARE, INNOCENT, SECRETS, SECRETS_IN_CONTEXT, generate_secret
from sweeps import loop_over_rows

from shim.core.secrets import redactor as redact
from shim.core.secrets.patterns import (
    ASSIGNED_PATTERNS,
    DASHED_PATTERNS,
    NAME_CONTEXT_CHARS,
    SECRET_NAME_ENDINGS,
    TOKEN_PATTERNS,
    URL_PASSWORD_PATTERN,
    SecretPattern,
)
from shim.core.secrets.redactor import MAX_BUFFERED_CHARS, ROOT_CHARS, Redactor

PATTERNS = (*TOKEN_PATTERNS, *DASHED_PATTERNS, *ASSIGNED_PATTERNS, URL_PASSWORD_PATTERN)
AROUND = [
    "{}",
    "say {} now",
    "x={};",
    '"{}"',
    "({})",
    "\n{}\n",
    "`{}`",
    "{}.",
    "é{}é",
    "a,{},b",
    "/{}?",
]


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS)
def test_only_the_secret_is_redacted(kind, before, secret, suffix):
    redactor = Redactor()
    assert redactor.redact_text(f"{before}{secret}{suffix}") == f"{before}[REDACTED:{kind}]{suffix}"
    assert redactor.counts == {kind: 1}


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS)
def test_secret_is_redacted_in_any_surrounding_text(kind, before, secret, suffix):
    for around in AROUND:
        if around == "/{}?" and before.startswith("--"):
            continue  # there is no option here
        assert secret not in Redactor().redact_text(around.format(f"{before}{secret}{suffix}")), (
            around
        )


def test_every_pattern_has_an_example():
    assert {pattern.kind for pattern in PATTERNS} == {*BARE, *SECRETS_IN_CONTEXT}


def test_several_secrets_are_redacted_separately():
    text = " and ".join(secret for secrets in BARE.values() for secret in secrets)
    redactor = Redactor()
    redacted = redactor.redact_text(text)
    assert re.sub(r"\[REDACTED:[a-z-]+\]", "", redacted).strip(" and") == ""
    assert sum(redactor.counts.values()) == sum(map(len, BARE.values()))


@loop_over_rows("text", INNOCENT)
def test_text_that_resembles_a_secret_is_not_redacted(text):
    redactor = Redactor()
    for around in ("{}", "say {} now", '"{}"', "\n{}\n"):
        assert redactor.redact_text(around.format(text)) == around.format(text)
    assert redactor.counts == {}


@loop_over_rows(("kind", "before", "secret", "suffix"), SECRETS)
def test_redacted_text_is_not_redacted_twice(kind, before, secret, suffix):
    redacted = Redactor().redact_text(f"{before}{secret}{suffix}")
    assert Redactor().redact_text(redacted) == redacted


def test_unterminated_key_block_is_redacted_up_to_the_end_of_its_key_data():
    redacted = Redactor().redact_text(
        f"-----BEGIN PRIVATE KEY-----\n{generate_secret(64)}\n{generate_secret(64)}; and more"
    )
    assert redacted == "[REDACTED:private-key]; and more"


def test_pattern_stems_are_lowercase_and_long_enough():
    assert all(
        len(stem) >= ROOT_CHARS and stem == stem.lower()
        for pattern in PATTERNS
        for stem in pattern.stems
    )


# -- no text makes a search slow: proved by the structure of the expressions, not by a clock -------


def repeats(expression: str) -> Iterator[tuple[object, int, object, int]]:
    """Yield every repetition in an expression: its kind, its maximum, its content, and its nesting
    depth.
    """

    def walk(items: object, depth: int) -> Iterator[tuple[object, int, object, int]]:
        for code, value in items:
            inner = depth
            if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
                yield code, value[1], value[2], depth
                inner = depth + (value[1] > 1)
            for part in value if isinstance(value, tuple | list) else ():
                if isinstance(part, parser.SubPattern):
                    yield from walk(part, inner)
                elif isinstance(part, list):
                    for branch in part:
                        if isinstance(branch, parser.SubPattern):
                            yield from walk(branch, inner)

    return walk(parser.parse(expression), 0)


def check_bounded(expression: str) -> None:
    for code, most, _, depth in repeats(expression):
        assert code is codes.MAX_REPEAT
        assert most is not codes.MAXREPEAT and most <= 200, "every repetition has an end"
        assert depth == 0, "nothing that repeats is repeated"


@loop_over_rows("pattern", PATTERNS)
def test_pattern_repetitions_are_bounded_and_not_nested(pattern: SecretPattern):
    check_bounded(pattern.secret_without_tail_regex.pattern)
    check_bounded(pattern.incomplete_secret_regex.pattern)


def test_repetition_check_rejects_unbounded_and_nested_expressions():
    for bad in ("(?:a{1,3}){1,5}", "a*", "a+b", "(?:a|b)+", "a{5,}"):
        with pytest.raises(AssertionError):
            check_bounded(bad)


@loop_over_rows(
    "pattern", [candidate for candidate in PATTERNS if candidate.tail_chars or candidate.body_chars]
)
def test_tail_regex_is_a_single_possessive_repetition(pattern: SecretPattern):
    ((code, _, repeated, depth),) = repeats(pattern.secret_tail_regex.pattern)
    assert (code, depth, len(repeated)) == (codes.POSSESSIVE_REPEAT, 0, 1)


def test_pattern_prefix_fits_the_buffer_limit():
    assert (
        max(
            parser.parse(pattern.incomplete_secret_regex.pattern).getwidth()[1]
            for pattern in PATTERNS
        )
        <= MAX_BUFFERED_CHARS
    )


def test_preceding_names_fit_the_context_and_match_the_name_regex():
    names = [name for pattern in ASSIGNED_PATTERNS for name in pattern.preceding_names]
    assert max(map(len, names)) <= NAME_CONTEXT_CHARS // 2
    assert all(name.lower().endswith(SECRET_NAME_ENDINGS) for name in names)
    assert all(redact._SECRET_NAME.search(f"{name.lower()}=") for name in SECRET_NAME_ENDINGS)


HOSTILE = [
    "password=", "sk-", "a:", "=", "://a:", "://", "eyJ-", "-eyJ" + "a" * 200, "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----\n",
    "token='", "token=1a", "--token ", "Bearer a", "A" * 30 + "=", "secret:" + "x" * 127 + "\n", "\\", "-", "[?&sig=",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_matched_at_most_once_per_position(piece, monkeypatch):
    match_count, match_secret = 0, redact._match_secret

    def count_match(text, lower_text, position, is_token_start, *, is_final):
        nonlocal match_count
        match_count += 1
        return match_secret(text, lower_text, position, is_token_start, is_final=is_final)

    monkeypatch.setattr("shim.core.secrets.redactor._match_secret", count_match)
    text = (piece * (100_000 // len(piece) + 1))[:100_000]
    Redactor().redact_text(text)
    assert match_count <= len(text)
